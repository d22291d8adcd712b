//! Outcomes of accepted messages: the counts of a connection, and the outcome of one message.

use std::fmt;

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
    /// It has not ended, or the cause is unknown.
    Unknown = 0,
    /// The peer's process closed the connection, exited or was killed, when its kernel held nothing unread. It says
    /// nothing about whether the process still lives. Acknowledged messages are safe only if it goes on reading.
    Fin = 1,
    /// The same, with unread data, which may be lost; or the network reset it.
    Reset = 2,
    /// No answer from the peer's host. Data in its kernel may be lost.
    Timeout = 3,
    /// This process ended it.
    Local = 4,
}

impl EndedBy {
    /// Its name, as in the header's constants.
    pub fn name(self) -> &'static str {
        match self {
            EndedBy::Unknown => "UNKNOWN",
            EndedBy::Fin => "FIN",
            EndedBy::Reset => "RESET",
            EndedBy::Timeout => "TIMEOUT",
            EndedBy::Local => "LOCAL",
        }
    }
}

/// One line for a person.
impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.acknowledged {
            Some(acknowledged) => {
                let unacknowledged = self.accepted.saturating_sub(acknowledged);
                write!(f, "{} accepted, {acknowledged} acknowledged, {unacknowledged} unacknowledged", self.accepted)?;
            }
            None => write!(f, "{} accepted, acknowledged: unknown", self.accepted)?,
        }
        write!(f, ", ended by {}", self.ended_by.name())
    }
}

/// The outcome of a message whose buffers are released. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    /// The peer's kernel has acknowledged the whole message.
    Acknowledged = 1,
    /// The connection ended before that.
    Unacknowledged = 2,
    /// Unknown.
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
