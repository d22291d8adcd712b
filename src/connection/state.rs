//! The states of a connection, as a pure state machine.
//!
//! | state | handshake done | dial failed | peer gone | ended by the caller, its node, or shutdown |
//! | --- | --- | --- | --- | --- |
//! | CONNECTING | READY | ended: CONNECT_FAILED | ended: CONNECT_FAILED | ended: DISCONNECTED, NODE_FAILED, SHUTDOWN |
//! | READY | – | – | ended: PEER_LOST | ended: DISCONNECTED, NODE_FAILED, SHUTDOWN; when idle, EVICTED |
//! | ended | – | – | – | – |
//!
//! "–" changes nothing: the first ending stays, and there is exactly one.

use crate::error::Status;
use crate::events::EventKind;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Dialling: resolving, connecting or in the ZMTP handshake. Nothing is accepted.
    Connecting,
    /// The handshake of this connection has succeeded.
    Ready,
    /// Ended, for this reason.
    Ended(EndReason),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The dial failed.
    ConnectFailed,
    /// The peer of a READY connection is gone.
    PeerLost,
    /// The caller ended it.
    Disconnected,
    /// The node that owned its endpoint failed.
    NodeFailed,
    /// kvconn was shut down.
    Shutdown,
    /// It was idle, and its descriptors were needed.
    Evicted,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The ZMTP handshake has succeeded.
    HandshakeDone,
    /// No address could be connected, or the peer is not a ZeroMQ PULL socket with matching keys.
    DialFailed,
    /// The descriptor was closed, or the pipe is dead.
    PeerGone,
    /// `kvconn_disconnect*`, or the manager's end.
    Disconnect,
    /// `kvconn_handle_failure`, or the policy `node_loss`.
    NodeFailure,
    /// `kvconn_shutdown`.
    Shutdown,
    /// Idle for longer than `idle_timeout_ms`, or the longest idle one when `evict_idle` makes room.
    Evict,
}

impl State {
    /// The next state. The same state if nothing changes.
    pub fn after(self, transition: Transition) -> State {
        use Transition as T;
        match (self, transition) {
            (State::Ended(_), _) => self,
            (State::Connecting, T::HandshakeDone) => State::Ready,
            (State::Connecting, T::DialFailed | T::PeerGone) => State::Ended(EndReason::ConnectFailed),
            (State::Ready, T::HandshakeDone | T::DialFailed) => self,
            (State::Ready, T::PeerGone) => State::Ended(EndReason::PeerLost),
            (State::Connecting, T::Evict) => self,
            (State::Ready, T::Evict) => State::Ended(EndReason::Evicted),
            (_, T::Disconnect) => State::Ended(EndReason::Disconnected),
            (_, T::NodeFailure) => State::Ended(EndReason::NodeFailed),
            (_, T::Shutdown) => State::Ended(EndReason::Shutdown),
        }
    }
}

impl EndReason {
    /// The status that calls on such a connection get.
    pub fn status(self) -> Status {
        match self {
            EndReason::ConnectFailed => Status::ConnectFailed,
            EndReason::PeerLost => Status::PeerLost,
            EndReason::Disconnected => Status::Disconnected,
            EndReason::NodeFailed => Status::NodeFailed,
            EndReason::Shutdown => Status::Shutdown,
            EndReason::Evicted => Status::Evicted,
        }
    }

    /// The event that reports this end.
    pub fn event(self) -> EventKind {
        match self {
            EndReason::ConnectFailed => EventKind::ConnectFailed,
            EndReason::PeerLost => EventKind::PeerLost,
            EndReason::Disconnected | EndReason::Shutdown => EventKind::Disconnected,
            EndReason::NodeFailed => EventKind::NodeFailed,
            EndReason::Evicted => EventKind::Evicted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn transitions() -> impl Strategy<Value = Vec<Transition>> {
        use Transition::*;
        proptest::collection::vec(
            prop_oneof![
                Just(HandshakeDone),
                Just(DialFailed),
                Just(PeerGone),
                Just(Disconnect),
                Just(NodeFailure),
                Just(Shutdown),
                Just(Evict)
            ],
            0..12,
        )
    }

    proptest! {
        #[test]
        fn the_first_ending_is_the_only_one(transitions in transitions()) {
            let mut state = State::Connecting;
            let mut was_ready = false;
            let mut endings = 0;
            for transition in transitions {
                let next = state.after(transition);
                if let State::Ended(_) = state {
                    prop_assert_eq!(next, state);
                } else if let State::Ended(ending) = next {
                    endings += 1;
                    // Only a READY connection can lose its peer. Only one that was never READY can fail to connect.
                    prop_assert_eq!(ending == EndReason::PeerLost, was_ready && transition == Transition::PeerGone);
                    prop_assert!(!(ending == EndReason::ConnectFailed && was_ready));
                    prop_assert!(ending != EndReason::Evicted || was_ready);
                }
                was_ready |= next == State::Ready;
                state = next;
            }
            prop_assert!(endings <= 1);
            prop_assert_eq!(endings == 1, matches!(state, State::Ended(_)));
        }

        #[test]
        fn only_the_handshake_leads_to_ready(transitions in transitions()) {
            let mut state = State::Connecting;
            for transition in transitions {
                let next = state.after(transition);
                if next == State::Ready && state != State::Ready {
                    prop_assert_eq!(state, State::Connecting);
                    prop_assert_eq!(transition, Transition::HandshakeDone);
                }
                state = next;
            }
        }
    }
}
