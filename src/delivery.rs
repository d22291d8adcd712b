//! Outcomes of accepted messages: the counts of a connection, and the outcome of one message.

use crate::ids::ConnId;

/// The counts of a connection's accepted messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The last message accepted.
    pub accepted: u64,
    /// The last message that the peer's kernel has acknowledged whole. `None`: unknown.
    pub acknowledged: Option<u64>,
    /// How the connection ended.
    pub ended_by: EndedBy,
}

/// How a connection ended. It says what an acknowledgement is worth. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum EndedBy {
    /// It has not ended, or it is unknown.
    Unknown = 0,
    /// The peer closed it in order. The peer gets everything acknowledged if it keeps reading. A peer that closed its socket
    /// before it had read everything does not.
    Fin = 1,
    /// The peer or its kernel reset it: what its kernel held may be lost.
    Reset = 2,
    /// The kernel gave up because no answer came. What the peer's kernel holds may be dropped when it answers again.
    Timeout = 3,
    /// This process ended it.
    Local = 4,
}

/// The outcome of a message whose buffers are released. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    /// The peer's kernel has acknowledged it whole.
    Acknowledged = 1,
    /// The connection ended before that.
    Unacknowledged = 2,
    /// Acknowledgements are unknown for its connection.
    Unknown = 3,
}

impl Delivery {
    /// The outcome of that message of an ended connection.
    pub(crate) fn outcome(&self, sequence: u64) -> Outcome {
        match self.acknowledged {
            Some(acknowledged) if acknowledged >= sequence => Outcome::Acknowledged,
            Some(_) => Outcome::Unacknowledged,
            None => Outcome::Unknown,
        }
    }

    /// The outcome while the connection lives. `None` while it is open.
    pub(crate) fn outcome_so_far(&self, sequence: u64) -> Option<Outcome> {
        Some(self.outcome(sequence)).filter(|outcome| *outcome != Outcome::Unacknowledged)
    }
}

/// Called once, when the buffers of a message are the caller's again.
pub type Release = Box<dyn FnOnce(ConnId, u64, Outcome) + Send>;
