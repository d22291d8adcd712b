//! What can fail: the one table of statuses, and the error that carries one.
//!
//! [`STATUSES`] is the single source for the header's constants, `docs/status.md` and the Python exceptions.
//! Numbers are frozen: a status may be added, never renumbered.

use std::fmt;
use std::time::Duration;

use crate::ids::ConnId;

/// The scope of an error: what else is affected besides the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Scope {
    /// No error.
    None = 0,
    /// This call only: its arguments, or what it asks for.
    Call = 1,
    /// This endpoint only.
    Peer = 2,
    /// The endpoints that this life of the node alone owned.
    Node = 3,
    /// The whole process, or the manager.
    Process = 4,
}

impl Scope {
    /// The word used in documents.
    pub fn name(self) -> &'static str {
        match self {
            Scope::None => "–",
            Scope::Call => "CALL",
            Scope::Peer => "PEER",
            Scope::Node => "NODE",
            Scope::Process => "PROCESS",
        }
    }
}

/// The result of a call. Each is one row of [`STATUSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)] // the table documents each
pub enum Status {
    Ok = 0,
    Invalid = -1,
    Stale = -2,
    NotFound = -3,
    Timeout = -4,
    Stalled = -5,
    Backoff = -6,
    ConnectFailed = -7,
    PeerLost = -8,
    Disconnected = -9,
    NodeFailed = -10,
    Conflict = -11,
    Limit = -12,
    Shutdown = -13,
    Internal = -14,
    Unsupported = -15,
    Partial = -16,
    WouldDeadlock = -17,
    Evicted = -18,
}

/// One row of the table of statuses.
#[derive(Debug)]
pub struct StatusRow {
    /// The status.
    pub status: Status,
    /// Its C name.
    pub name: &'static str,
    /// What else it affects.
    pub scope: Scope,
    /// Whether the same endpoint may be tried again without a change by the caller. A call with the id of an ended connection
    /// never succeeds.
    pub retriable: bool,
    /// The errno of an error for which the operating system has given none, and its name. 0 for OK alone.
    pub errno: (i32, &'static str),
    /// What it means, one sentence.
    pub meaning: &'static str,
    /// What the caller should do about it, one sentence.
    pub what_to_do: &'static str,
}

const fn row(
    status: Status,
    name: &'static str,
    scope: Scope,
    retriable: bool,
    errno: (i32, &'static str),
    meaning: &'static str,
    what_to_do: &'static str,
) -> StatusRow {
    StatusRow { status, name, scope, retriable, errno, meaning, what_to_do }
}

/// A number with its name.
macro_rules! errno {
    ($name:ident) => {
        (libc::$name, stringify!($name))
    };
}

/// Every status there is, in the order of their numbers.
#[rustfmt::skip]
pub const STATUSES: &[StatusRow] = &[
    row(Status::Ok, "KVCONN_OK", Scope::None, false, (0, "–"),
        "Done.",
        "Go on."),
    row(Status::Invalid, "KVCONN_INVALID", Scope::Call, false, errno!(EINVAL),
        "An argument is not valid. Nothing was done.",
        "Fix the argument named in the message."),
    row(Status::Stale, "KVCONN_STALE", Scope::Call, false, errno!(ESTALE),
        "The id is 0, was never given out, belongs to a destroyed manager or to the process before a fork, or ended too long ago to be remembered.",
        "Get a current id: kvconn_connect, kvconn_find, kvconn_node_open or kvconn_node_find."),
    row(Status::NotFound, "KVCONN_NOT_FOUND", Scope::Call, false, errno!(ENOENT),
        "It does not exist now: no connection to that endpoint, or no live node of that name.",
        "Connect or open it, if it should exist."),
    row(Status::Timeout, "KVCONN_TIMEOUT", Scope::Peer, true, errno!(ETIMEDOUT),
        "The call's deadline passed. A send returns it at once if an earlier send with the same or a longer timeout ran out here and nothing has moved since. A send was not accepted; a dial goes on.",
        "Try again after a pause, or treat the peer as slow."),
    row(Status::Stalled, "KVCONN_STALLED", Scope::Peer, true, errno!(EAGAIN),
        "The queue to the peer is full and made no progress for at least this call's own timeout, or the dial has had no answer for so long. The call did not wait longer.",
        "Treat the peer as stuck: use another one, or disconnect it. The event RECOVERED reports that it makes progress again."),
    row(Status::Backoff, "KVCONN_BACKOFF", Scope::Peer, true, errno!(EAGAIN),
        "Less than one backoff step ago the last dial failed or was given up, or its connection was lost within one backoff step of READY. This call did not dial.",
        "Try again after retry_after_ms. os_errno and the message say why the dial failed."),
    row(Status::ConnectFailed, "KVCONN_CONNECT_FAILED", Scope::Peer, true, errno!(ECONNABORTED),
        "The dial failed: refused, unreachable, name not resolved, timed out, or the peer is not a ZeroMQ PULL socket.",
        "Read the message. Try again later, or report the node unhealthy."),
    row(Status::PeerLost, "KVCONN_PEER_LOST", Scope::Peer, true, errno!(ECONNRESET),
        "The connection was READY and has ended: the peer closed it, died, or stopped answering.",
        "Connect to its next life, or report the node failed."),
    row(Status::Disconnected, "KVCONN_DISCONNECTED", Scope::Peer, false, errno!(ENOTCONN),
        "This process ended the connection. If it did so by endpoint, the endpoint is fenced: nothing is dialled.",
        "Call kvconn_connect, or register the endpoint in a live node, if you need it again."),
    row(Status::NodeFailed, "KVCONN_NODE_FAILED", Scope::Node, false, errno!(EHOSTDOWN),
        "This life of the node has ended. The endpoints that it alone owned are fenced.",
        "Open the node again, and register its endpoints in the new life."),
    row(Status::Conflict, "KVCONN_CONFLICT", Scope::Call, false, errno!(EBUSY),
        "The options differ from those of the live connection, or a setting can no longer be changed.",
        "Pass NULL to use the live connection, or disconnect it first."),
    row(Status::Limit, "KVCONN_LIMIT", Scope::Process, true, errno!(ENOBUFS),
        "A limit is reached. The message names it and its current value. Nothing was created.",
        "Raise the limit, or end something."),
    row(Status::Shutdown, "KVCONN_SHUTDOWN", Scope::Process, false, errno!(ESHUTDOWN),
        "kvconn_shutdown was called: kvconn has ended in this process for good.",
        "Stop calling kvconn."),
    row(Status::Internal, "KVCONN_INTERNAL", Scope::Process, false, errno!(ENOTRECOVERABLE),
        "kvconn or libzmq is in a state that should not exist. The message says where.",
        "Report it as a defect, with the message."),
    row(Status::Unsupported, "KVCONN_UNSUPPORTED", Scope::Call, false, errno!(EOPNOTSUPP),
        "Not possible here: on this kind of endpoint, with these options, or on this platform.",
        "Work without it. The message says what is missing."),
    row(Status::Partial, "KVCONN_PARTIAL", Scope::Call, false, errno!(EIO),
        "Some items of the call failed, or all: messages of a batch, or endpoints of kvconn_node_connect. The others succeeded.",
        "Check the status of each item. To send the failed messages again, set conn to 0 for those that are OK."),
    row(Status::WouldDeadlock, "KVCONN_WOULD_DEADLOCK", Scope::Call, false, errno!(EDEADLK),
        "The call would wait for its own thread: a release function waits for a later release.",
        "Return from the release function first, or wait on another thread."),
    row(Status::Evicted, "KVCONN_EVICTED", Scope::Peer, true, errno!(ENOTCONN),
        "The connection was idle, with all messages acknowledged, and was closed to free its descriptors.",
        "Connect again: nothing is fenced, and nothing was lost."),
];

impl Status {
    /// The row of the table that describes this status.
    pub fn row(self) -> &'static StatusRow {
        // The table is in the order of the numbers 0, -1, -2 …; a test checks that.
        &STATUSES[-(self as i32) as usize]
    }

    /// The status with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Status> {
        STATUSES.iter().map(|r| r.status).find(|s| *s as i32 == number)
    }

    /// The C name.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// Why a call failed. An error means that nothing was accepted and nothing is half-made. Exceptions: PARTIAL says this
/// of the failed items only. After TIMEOUT of a connect its dial goes on, if `conn` names one. After TIMEOUT of a call
/// that ends things, they are ended.
#[derive(Clone, Debug)]
pub struct Error {
    /// The status.
    pub status: Status,
    /// The operating system's errno behind it, or else that of the status. Never 0.
    pub os_errno: i32,
    /// How long until the endpoint may be dialled again, if that is known.
    pub retry_after: Option<Duration>,
    /// The connection it is about, 0 if none.
    pub conn: ConnId,
    /// The endpoint it is about, empty if none. Canonical if it could be parsed.
    pub endpoint: String,
    /// One line of text for operators: what happened, and the values.
    pub message: String,
}

/// The result of every fallible call of the core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its text. It has the errno of its status, in case nothing names a better one.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error {
            status,
            os_errno: status.row().errno.0,
            retry_after: None,
            conn: ConnId::NONE,
            endpoint: String::new(),
            message: message.into(),
        }
    }

    /// A bad argument.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::Invalid, message)
    }

    /// kvconn_shutdown was called.
    pub(crate) fn shut() -> Error {
        Error::new(Status::Shutdown, "kvconn_shutdown was called in this process")
    }

    /// A limit is reached.
    pub fn limit(message: impl Into<String>) -> Error {
        Error::new(Status::Limit, message)
    }

    /// OK if all of `what` succeeded, or PARTIAL with the first that failed in its text.
    pub fn partial<T>(what: &str, results: &[Result<T>]) -> Result<()> {
        let mut failed = results.iter().enumerate().filter_map(|(place, result)| Some((place, result.as_ref().err()?)));
        let Some((place, first)) = failed.next() else { return Ok(()) };
        let count = 1 + failed.count();
        Err(Error::partial_of(what, count, results.len(), place, first.clone()))
    }

    /// PARTIAL: so many of all failed, and this is the first of them and its error.
    pub(crate) fn partial_of(what: &str, failed: usize, all: usize, place: usize, first: Error) -> Error {
        let text =
            format!("{failed} of {all} {what} failed; {what}[{place}]: {}: {}", first.status.name(), first.message);
        Error { status: Status::Partial, message: text, retry_after: None, ..first }
    }

    /// The same error, about this connection.
    pub fn about(mut self, conn: ConnId) -> Error {
        self.conn = conn;
        self
    }

    /// The same error, about this endpoint.
    pub fn at(mut self, endpoint: impl fmt::Display) -> Error {
        self.endpoint = endpoint.to_string();
        self
    }

    /// The same error, with the operating system's errno; 0 changes nothing.
    pub fn errno(mut self, os_errno: i32) -> Error {
        if os_errno != 0 {
            self.os_errno = os_errno;
        }
        self
    }

    /// The same error, with the time after which the endpoint may be dialled again.
    pub fn retry_after(mut self, wait: Duration) -> Error {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)?;
        if !self.endpoint.is_empty() {
            write!(f, " [{}]", self.endpoint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        for (index, row) in STATUSES.iter().enumerate() {
            assert_eq!(row.status as i32, -(index as i32), "{}", row.name);
            assert_eq!(row.status.row().name, row.name);
            assert_eq!(Status::from_number(row.status as i32), Some(row.status));
            assert!(row.name.starts_with("KVCONN_"));
            assert_eq!(row.errno.0 == 0, row.status == Status::Ok, "{}", row.name);
            assert_eq!(Error::new(row.status, "").os_errno, row.errno.0);
            assert_eq!(Error::new(row.status, "").errno(0).os_errno, row.errno.0, "0 changes nothing");
        }
        assert_eq!(Status::from_number(1), None);
    }
}
