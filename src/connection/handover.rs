//! Handing over a message of many frames without its connection's lock.
//!
//! libzmq takes a message frame by frame, and keeps the frames to itself until it has the last one. So a sender takes
//! the socket out of the locked state after the first frame, hands over the others, and takes the lock again for the
//! last one, with which libzmq accepts the message. A connection that has ended meanwhile drops the unfinished message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::socket::{PushSocket, Sent};
use crate::connection::message::Message;
use crate::ids::AttemptId;

/// A message of more frames than this is handed over in steps of so many. That many take about 10 µs.
const STEP: usize = 128;

/// The socket, while a long message is handed over.
pub(crate) struct Handover {
    pub(super) socket: (AttemptId, PushSocket),
    /// The pipe died.
    pub(super) is_broken: bool,
    /// The connection has ended.
    ended: Arc<AtomicBool>,
}

impl Handover {
    /// Whether a message is so long that it needs one.
    pub(super) fn is_for(message: &Message) -> bool {
        message.frames().len() > STEP
    }

    /// For a message whose first frame was taken.
    pub(super) fn new(socket: (AttemptId, PushSocket), ended: Arc<AtomicBool>) -> Handover {
        Handover { socket, is_broken: false, ended }
    }

    /// Hands over all frames but the first and the last. It stops early when the connection has ended.
    pub(super) fn run(&mut self, message: &mut Message) {
        let last = message.frames().len() - 1;
        for begin in (1..last).step_by(STEP) {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let sent = self.socket.1.send_frames(message.frames_mut(), begin..last.min(begin + STEP));
            if !matches!(sent, Sent::Accepted) {
                self.is_broken = true;
                return;
            }
        }
    }
}
