//! Zero-copy buffers in flight on a connection, and which of them belong to the caller again.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::delivery::{Delivery, Outcome, Release};
use crate::ids::ConnId;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::thread::host_call;

thread_local! {
    /// The process in which this thread releases buffers, or 0.
    static RELEASES_IN: Cell<u32> = const { Cell::new(0) };
}

/// Marks the calling thread as the one that releases buffers.
pub(crate) fn mark_release_thread() {
    RELEASES_IN.set(std::process::id());
}

/// Whether the caller runs in a release function. False in a child process that such a function has forked.
pub(crate) fn is_release_thread() -> bool {
    RELEASES_IN.get() == std::process::id()
}

/// The zero-copy buffers of a connection's messages. Its lock is a leaf.
pub(crate) struct BuffersInFlight {
    state: Mutex<BufferState>,
    released: Condvar,
}

#[derive(Default)]
struct BufferState {
    /// Ascending sequences, and whether that message's buffers were released. The first one's were not.
    out: VecDeque<(u64, bool)>,
    /// The final counts.
    end: Option<Delivery>,
    /// The connection is kept only for these buffers.
    forgotten: bool,
}

impl BuffersInFlight {
    pub(crate) fn new() -> Arc<BuffersInFlight> {
        Arc::new(BuffersInFlight { state: Mutex::new(BufferState::default()), released: Condvar::new() })
    }

    fn sent(&self, sequence: u64) {
        self.state.lock().out.push_back((sequence, false));
    }

    /// The connection has ended with these counts.
    pub(crate) fn ended(&self, delivery: Delivery) {
        self.state.lock().end = Some(delivery);
    }

    /// Asks to forget the connection. Returns false while buffers are in flight, because a thread may wait for them.
    /// Then the release of the last buffer forgets the connection.
    pub(crate) fn forget(&self) -> bool {
        let mut state = self.state.lock();
        state.forgotten = true;
        state.out.is_empty()
    }

    /// The first message whose buffers are not released yet.
    pub(crate) fn first(&self) -> Option<u64> {
        self.state.lock().out.front().map(|(sequence, _)| *sequence)
    }

    /// Waits until all buffers up to that message are released. Returns whether they are.
    pub(crate) fn wait_released(&self, sequence: u64, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.out.front().is_none_or(|(first, _)| *first > sequence) {
                return true;
            }
            if self.released.wait_until(&mut state, deadline).timed_out() {
                return state.out.front().is_none_or(|(first, _)| *first > sequence);
            }
        }
    }

    /// A message's buffers are released. Returns true when the connection can be forgotten now.
    fn released(&self, sequence: u64) -> bool {
        let mut state = self.state.lock();
        if let Ok(place) = state.out.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            state.out[place].1 = true;
        }
        while state.out.front().is_some_and(|(_, released)| *released) {
            state.out.pop_front();
        }
        self.released.notify_all();
        state.forgotten && state.out.is_empty()
    }
}

/// The zero-copy buffers of one message.
pub(crate) struct ZeroCopyBuffers {
    conn: ConnId,
    in_flight: Arc<BuffersInFlight>,
    /// The caller's function; taken when it is called.
    release: Mutex<Option<Release>>,
}

impl ZeroCopyBuffers {
    pub(crate) fn new(conn: ConnId, in_flight: Arc<BuffersInFlight>, release: Option<Release>) -> ZeroCopyBuffers {
        ZeroCopyBuffers { conn, in_flight, release: Mutex::new(release) }
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    /// The message was accepted.
    pub(super) fn sent(&self, sequence: u64) {
        self.in_flight.sent(sequence);
    }

    /// The outcome of the message, once its connection has ended.
    pub(crate) fn outcome(&self, sequence: u64) -> Option<Outcome> {
        Some(self.in_flight.state.lock().end?.outcome(sequence))
    }

    /// Calls the caller's function, without a lock. Then the buffers count as released. Returns true when the
    /// connection can be forgotten now.
    pub(crate) fn release(&self, sequence: u64, outcome: Outcome) -> bool {
        let release = self.release.lock().take();
        if let Some(release) = release {
            host_call(|| release(self.conn, sequence, outcome));
        }
        self.in_flight.released(sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn buffers_are_released_up_to_the_first_that_is_not() {
        let in_flight = BuffersInFlight::new();
        for sequence in [2, 3, 7] {
            in_flight.sent(sequence);
        }
        assert_eq!(in_flight.first(), Some(2));
        in_flight.released(3);
        assert_eq!(in_flight.first(), Some(2));
        assert!(in_flight.wait_released(1, Instant::now()) && !in_flight.wait_released(2, Instant::now()));
        in_flight.released(2);
        assert_eq!(in_flight.first(), Some(7));
        assert!(in_flight.wait_released(6, Instant::now()) && !in_flight.wait_released(7, Instant::now()));
        in_flight.released(7);
        assert_eq!(in_flight.first(), None);
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let in_flight = BuffersInFlight::new();
        in_flight.sent(1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| in_flight.wait_released(1, Instant::now() + Duration::from_secs(20)));
            in_flight.released(1);
            assert!(waits.join().unwrap());
        });
    }
}
