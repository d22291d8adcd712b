//! What became of accepted messages: the counts of a connection, and the outcome of one message.

use crate::ids::ConnId;

/// What became of what was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The last message accepted.
    pub accepted: u64,
    /// The last message that the peer's kernel has acknowledged whole; `None`: nobody can tell.
    pub acknowledged: Option<u64>,
    /// How the connection ended.
    pub ended_by: EndedBy,
}

/// How a connection ended, which says what an acknowledgement is worth. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum EndedBy {
    /// It has not ended, or nobody can tell.
    Unknown = 0,
    /// The peer closed it in order: what was acknowledged it can have if it goes on reading; one that has closed its socket before
    /// it has read everything does not.
    Fin = 1,
    /// The peer or its kernel reset it: what its kernel held may be gone.
    Reset = 2,
    /// The kernel gave up: nobody answered. What the peer's kernel holds may be dropped when it answers again.
    Timeout = 3,
    /// This process ended it.
    Local = 4,
}

/// What became of a message whose buffers are given back. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    /// The peer's kernel has acknowledged it whole.
    Acknowledged = 1,
    /// The connection has ended before that.
    Unacknowledged = 2,
    /// Nobody can tell.
    Unknown = 3,
}

impl Delivery {
    /// What became of that message of an ended connection.
    pub(crate) fn outcome(&self, sequence: u64) -> Outcome {
        match self.acknowledged {
            Some(acknowledged) if acknowledged >= sequence => Outcome::Acknowledged,
            Some(_) => Outcome::Unacknowledged,
            None => Outcome::Unknown,
        }
    }

    /// The same while it lives: `None` when that is still open.
    pub(crate) fn outcome_so_far(&self, sequence: u64) -> Option<Outcome> {
        Some(self.outcome(sequence)).filter(|outcome| *outcome != Outcome::Unacknowledged)
    }
}

/// Is told once that the buffers of a message are the caller's again.
pub type Release = Box<dyn FnOnce(ConnId, u64, Outcome) + Send>;
