//! What libzmq holds of a message until it has written it out: told by the frames themselves.
//!
//! Two need to know. Where nobody can tell what the peer has, the bytes that libzmq holds are what counts against the
//! budget. And a buffer that was lent with a message is the caller's again only when libzmq has let it go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::loans::Loan;
use crate::connection::message::Message;
use crate::libzmq::FreeCallback;

/// What libzmq has let go of a connection's messages. One in two hundred small messages tells for those before it, for libzmq
/// lets go in order; what was accepted since the last that tells is not counted.
#[derive(Default)]
pub(in crate::connection) struct LetGo {
    /// Bytes on the wire that were accepted and will be told of, that were told of, and how many of these were noticed.
    told_of: u64,
    told: Arc<AtomicU64>,
    seen: u64,
    /// Bytes accepted since the last message that tells.
    untold: u64,
}

impl LetGo {
    /// Where messages tell.
    pub(in crate::connection) fn told(&self) -> Arc<AtomicU64> {
        self.told.clone()
    }

    /// True when more was let go than before.
    pub(in crate::connection) fn look(&mut self) -> bool {
        let told = self.told.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, told) < told
    }

    /// Bytes that libzmq holds, as far as it was looked.
    pub(in crate::connection) fn queued(&self) -> u64 {
        self.told_of.saturating_sub(self.seen)
    }

    /// Has a message of so many bytes tell, if enough have come together since the last that did.
    pub(in crate::connection) fn let_it_tell(&self, message: &mut Message, bytes: u64) -> io::Result<()> {
        /// What a message that tells costs, they cost together.
        const ENOUGH: u64 = 16 * 1024;
        let bytes = self.untold + bytes;
        if bytes < ENOUGH || message.held().is_some() { Ok(()) } else { message.tell(bytes, &self.told) }
    }

    /// A message of so many bytes was accepted, which tells of so many, if it tells.
    pub(in crate::connection) fn accept(&mut self, bytes: u64, tells: Option<u64>) {
        let tells = tells.unwrap_or(0);
        self.told_of += tells;
        // Others may have been accepted while it waited.
        self.untold = (self.untold + bytes).saturating_sub(tells);
    }
}

/// The account of one message.
pub(crate) struct Held {
    /// Frames that libzmq has not let go; one more for the send, until it has ended.
    left: AtomicUsize,
    /// Its sequence once it is accepted, before that 0.
    sequence: AtomicU64,
    /// Bytes on the wire that have gone when it has: its own, and those of messages before it that do not tell.
    bytes: u64,
    /// The bytes of its connection's accepted messages that libzmq has let go.
    let_go: Arc<AtomicU64>,
    loan: Option<Loan>,
}

impl Held {
    /// Of a message of which that many frames tell.
    pub(crate) fn new(frames: usize, bytes: u64, let_go: Arc<AtomicU64>, loan: Option<Loan>) -> Arc<Held> {
        Arc::new(Held { left: AtomicUsize::new(frames + 1), sequence: AtomicU64::new(0), bytes, let_go, loan })
    }

    /// Its sequence; 0 when it was not accepted.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// What it tells of.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What was lent with it.
    pub(crate) fn loan(&self) -> Option<&Loan> {
        self.loan.as_ref()
    }

    /// The message was accepted. May be told after libzmq has let it go.
    pub(crate) fn accepted(self: Arc<Self>, sequence: u64) {
        if let Some(loan) = &self.loan {
            loan.lent(sequence);
        }
        self.sequence.store(sequence, Ordering::Release);
        self.freed();
    }

    /// The message was not accepted: waits until libzmq has let go what it took of it. That is at once, unless the pipe died in
    /// the middle; then it is when the socket is closed, which its end has already asked for. False: not within a long time.
    pub(crate) fn taken_back(&self) -> bool {
        const LONG: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        while self.left.load(Ordering::Acquire) > 1 {
            if begun.elapsed() > LONG {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }
}

impl FreeCallback for Held {
    fn freed(self: Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 || self.sequence() == 0 {
            return;
        }
        self.let_go.fetch_add(self.bytes, Ordering::Release);
        if let Some(loan) = &self.loan {
            loan.releaser().let_go(self.clone());
        }
    }
}
