//! What a caller can know about a connection.

use std::time::{Duration, Instant};

use super::Connection;
use super::gate::Access;
use super::inner::ConnectionInner;
use super::state::State;
use crate::delivery::EndedBy;
use crate::error::Status;
use crate::ids::ConnId;
use crate::net::endpoint::Endpoint;

/// The three states a caller sees. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ConnectionState {
    /// Being dialled.
    Connecting = 1,
    /// The ZMTP handshake has succeeded.
    Ready = 2,
    /// It has ended.
    Ended = 3,
}

/// What is known about a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The connection.
    pub conn: ConnId,
    /// Its endpoint, canonical.
    pub endpoint: Endpoint,
    /// Its state.
    pub state: ConnectionState,
    /// OK while it lives, else why it ended.
    pub status: Status,
    /// errno behind the end, or 0.
    pub os_errno: i32,
    /// The last message accepted.
    pub accepted: u64,
    /// The last message that the peer's kernel has acknowledged. `None`: unknown.
    pub acknowledged: Option<u64>,
    /// The buffers of every message up to this one are the caller's again.
    pub released: u64,
    /// Bytes on the wire that are in flight. They count against the budget.
    pub queued_bytes: u64,
    /// How it ended.
    pub ended_by: EndedBy,
    /// Threads waiting in a send.
    pub waiting: u32,
    /// How long the first of them has waited.
    pub longest_wait: Duration,
    /// It is full and has made no progress for `stall_ms`.
    pub stalled: bool,
    /// The time since a byte was last acknowledged, or since it was READY.
    pub without_progress: Duration,
    /// The time since its dial began.
    pub age: Duration,
    /// How long it was or is READY. Zero if it never was.
    pub ready_for: Duration,
    /// How often the gate's safety net has caught a lost wake-up. Must be 0.
    pub rescues: u64,
    /// Why it ended. Empty while it lives.
    pub message: String,
}

impl Connection {
    /// What is known about it.
    pub fn info(&self) -> ConnectionInfo {
        self.info_of(&mut self.gate.lock())
    }

    /// The same without waiting for the lock. `None` if another thread holds it.
    pub(crate) fn try_info(&self) -> Option<ConnectionInfo> {
        Some(self.info_of(&mut self.gate.try_lock()?))
    }

    fn info_of(&self, inner: &mut Access<'_, ConnectionInner>) -> ConnectionInfo {
        let delivery = inner.delivery();
        let (state, status) = match inner.state {
            State::Connecting => (ConnectionState::Connecting, Status::Ok),
            State::Ready => (ConnectionState::Ready, Status::Ok),
            State::Ended(ending) => (ConnectionState::Ended, ending.status()),
        };
        let until = inner.end.as_ref().map_or_else(Instant::now, |end| end.at);
        ConnectionInfo {
            conn: self.id,
            endpoint: self.endpoint.clone(),
            state,
            status,
            os_errno: inner.end.as_ref().map_or(0, |end| end.os_errno),
            accepted: delivery.accepted,
            acknowledged: delivery.acknowledged,
            released: inner.tracking().0.first().map_or(delivery.accepted, |first| first - 1),
            queued_bytes: if inner.end.is_none() { inner.queued() } else { 0 },
            ended_by: delivery.ended_by,
            waiting: u32::try_from(inner.waiting()).unwrap_or(u32::MAX),
            longest_wait: inner.longest_wait(),
            stalled: inner.stalled,
            without_progress: inner.without_progress(),
            age: self.dialled.elapsed(),
            ready_for: inner.ready_at.map_or(Duration::ZERO, |at| until.saturating_duration_since(at)),
            rescues: inner.rescues(),
            message: inner.end.as_ref().map_or_else(String::new, |end| end.message.clone()),
        }
    }
}
