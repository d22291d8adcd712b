//! One attempt to send a message, under the lock.

use std::sync::Arc;
use std::time::Duration;

use super::{ConnectionInner, DEAD_PIPE, Draining};
use crate::connection::acknowledgement::account::Room;
use crate::connection::gate::wait_source::SocketWaitSource;
use crate::connection::gate::{Channel, Tried};
use crate::connection::handover::Handover;
use crate::connection::message::{Message, ShortMessage};
use crate::connection::socket::{PushSocket, Sent};
use crate::connection::socket_watcher::ClosingSocket;
use crate::connection::state::State;
use crate::error::{Error, Status};
use crate::sys::wake::EventFd;

type TriedMessage = Tried<u64, Error, Handover>;

impl Channel for ConnectionInner {
    type Item = Message;
    type Short = ShortMessage;
    type Output = u64;
    type Refusal = Error;
    type WaitSource = SocketWaitSource;
    type Handover = Handover;
    type Released = ClosingSocket;

    #[inline(always)]
    fn attempt_short(&mut self, message: &mut ShortMessage) -> Option<u64> {
        let open = self.state == State::Ready && !self.dead && !self.handing_over && self.draining.is_none();
        let (_, push) = self.socket.as_ref().filter(|_| open)?;
        let bytes = self.account.room_for_short(message.wire())?;
        match push.send(message.frames_mut()) {
            Sent::Accepted => message.taken(),
            // `attempt` refuses it: some of its frames are gone.
            Sent::Broken => {
                self.dead = true;
                return None;
            }
            Sent::Full | Sent::NoMemory => return None,
        }
        self.over_budget = false;
        if self.account.accept_short(bytes) {
            self.trim_ledger();
        }
        self.note_accepted();
        Some(self.account.accepted())
    }

    fn attempt(&mut self, message: &mut Message) -> TriedMessage {
        if let Some(why) = self.refusal() {
            return Tried::Refused(why);
        }
        if self.state == State::Connecting || self.handing_over {
            return Tried::NotYet;
        }
        if let Some(no) = self.over_budget(self.account.wire_bytes(message)) {
            return no;
        }
        if let Err(e) = self.account.track(message) {
            let text = format!("no memory to track a message: {e}");
            return Tried::Refused(self.error(Status::Limit, libc::ENOMEM, &text));
        }
        let Some((_, push)) = &self.socket else { return Tried::NotYet };
        let is_long = Handover::is_for(message);
        let frames = message.frames_mut();
        let sent = if is_long { push.send_frames(frames, 0..1) } else { push.send(frames) };
        match sent {
            Sent::Accepted if is_long => self.begin_handover(message),
            Sent::Accepted => Tried::Passed(self.accept(message)),
            Sent::Full => {
                self.full = true;
                // The message was not accepted: return what was reserved for it.
                self.account.give_back();
                self.watch_progress(self.check_interval());
                Tried::Full
            }
            Sent::NoMemory => {
                self.account.give_back();
                Tried::Refused(self.error(
                    Status::Limit,
                    libc::ENOMEM,
                    "no memory to queue one more message; not accepted",
                ))
            }
            Sent::Broken => {
                // From here on `dead` refuses messages, because libzmq would silently drop their frames. The sender
                // reports the end.
                self.dead = true;
                Tried::Refused(self.error(Status::PeerLost, 0, DEAD_PIPE))
            }
        }
    }

    fn hand_over(handover: &mut Handover, message: &mut Message) {
        handover.run(message);
    }

    fn complete(&mut self, handover: Handover, message: &mut Message) -> Result<u64, Error> {
        let (socket, ended) = (handover.socket, self.end.is_some());
        self.handing_over = false;
        self.account.end_handover();
        // What ended meanwhile drops the unfinished message with the socket. What only accepts nothing new accepts this
        // one: it was begun before.
        let is_sent = !ended && !handover.is_broken && socket.1.send_last_frame(message);
        self.socket = Some(socket);
        if is_sent {
            return Ok(self.accept(message));
        }
        self.dead = true;
        Err(self.refusal().unwrap_or_else(|| self.error(Status::PeerLost, 0, DEAD_PIPE)))
    }

    fn refusal(&self) -> Option<Error> {
        match (&self.state, &self.end) {
            (State::Ended(ending), Some(end)) => Some(self.error(ending.status(), end.os_errno, &end.message)),
            (State::Ready, _) if self.dead => Some(self.error(Status::PeerLost, 0, DEAD_PIPE)),
            _ => self.draining.map(Draining::status).map(|(status, text)| self.error(status, 0, text)),
        }
    }

    fn refuses(&self) -> bool {
        matches!(self.state, State::Ended(_)) || self.dead || self.draining.is_some()
    }

    fn source(&mut self, has_waker: bool) -> SocketWaitSource {
        const NO_WAKE: Duration = Duration::from_millis(5);
        if self.wake.is_none() && !has_waker {
            // If no descriptor is left for an eventfd, the head looks again every few milliseconds instead.
            self.wake = EventFd::new().ok().map(Arc::new);
        }
        let wake = self.wake.clone().filter(|_| !has_waker);
        if self.over_budget {
            // libzmq's descriptor says nothing about the budget, and its present signal has not been consumed.
            return SocketWaitSource { socket: -1, wake, look_again: Some(self.budget_recheck_interval()) };
        }
        let look_again = if wake.is_none() && !has_waker { Some(NO_WAKE) } else { None };
        SocketWaitSource { socket: self.socket().map_or(-1, PushSocket::fd), wake, look_again }
    }

    fn release(&mut self) -> Option<ClosingSocket> {
        if self.end.is_none() && !self.dead {
            return None; // only draining
        }
        self.wake = None;
        let (attempt, push) = self.socket.take()?;
        push.linger(self.end.as_ref().map_or(Duration::ZERO, |end| end.linger));
        Some(ClosingSocket::new(attempt, push, self.watcher.clone()))
    }
}

impl ConnectionInner {
    /// Why `bytes` more do not fit into the budgets. `None` if they fit.
    fn over_budget(&mut self, bytes: u64) -> Option<TriedMessage> {
        let (room, progress) = self.account.room(bytes);
        if progress {
            self.note_progress();
        }
        self.over_budget = matches!(room, Room::Full);
        match room {
            Room::Yes => None,
            Room::Full => {
                self.watch_progress(self.check_interval());
                Some(Tried::Full)
            }
            Room::Spent { taken, limit } => {
                let text = format!("max_total_queued_bytes is {limit}, {taken} are queued, {bytes} more do not fit");
                Some(Tried::Refused(self.error(Status::Limit, 0, &text)))
            }
        }
    }

    /// A message was accepted.
    fn accept(&mut self, message: &mut Message) -> u64 {
        if self.account.accept(message) {
            self.refresh();
        }
        self.note_accepted();
        self.account.accepted()
    }

    #[cold]
    #[inline(never)]
    fn trim_ledger(&mut self) {
        self.refresh();
    }

    /// The first frame of a long message is taken: the sender takes the socket, and goes on without the lock.
    fn begin_handover(&mut self, message: &Message) -> TriedMessage {
        let Some(socket) = self.socket.take() else { return Tried::NotYet };
        self.handing_over = true;
        self.account.begin_handover(message);
        Tried::Begun(Handover::new(socket, self.ended.clone()))
    }
}
