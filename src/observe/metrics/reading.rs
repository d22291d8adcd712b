//! One consistent reading of all counts.

use std::sync::Arc;

use crate::connection::{Connection, ConnectionInfo, ConnectionState};
use crate::ids::ManagerId;
use crate::log;
use crate::manager::Manager;
use crate::manager::counts::{ByStatus, Past, WaitsRead};
use crate::net::endpoint::Endpoint;
use crate::options::Key;
use crate::process::Process;

/// One reading of a manager. It counts every message and every connection once.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Totals of ended connections, up to the moment in which each connection was read.
    pub(super) past: Past,
    pub(super) dials_refused: ByStatus,
    pub(super) sends_refused: ByStatus,
    pub(super) waits: WaitsRead,
    pub(super) live: Live,
    pub(super) endpoints_in_use: u64,
    pub(super) endpoints_known: u64,
    pub(super) endpoints_fenced: u64,
    pub(super) nodes: u64,
    pub(super) requests: u64,
    pub(super) failure_reports: u64,
    pub(super) stalls: u64,
    pub(super) events_waiting: u64,
    pub(super) events_lost: u64,
    /// The endpoints that have series of their own.
    pub(super) endpoints: Vec<EndpointReading>,
    /// In the text of manager 0 only.
    pub(super) process: Option<ProcessReading>,
}

/// The sums over the live connections.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) connecting: u64,
    pub(super) ready: u64,
    pub(super) stalled: u64,
    pub(super) waiting: u64,
    pub(super) accepted: u64,
    pub(super) acknowledged: u64,
    pub(super) in_flight: u64,
    pub(super) queued_bytes: u64,
    pub(super) unknown: u64,
    pub(super) rescues: u64,
}

/// One endpoint in use.
#[derive(Debug)]
pub(super) struct EndpointReading {
    pub(super) endpoint: Endpoint,
    pub(super) accepted: u64,
    pub(super) acknowledged: u64,
    pub(super) state: u64,
    pub(super) waiting: u64,
    pub(super) stalled: u64,
}

/// Numbers of the whole process.
#[derive(Debug)]
pub(super) struct ProcessReading {
    pub(super) managers: u64,
    pub(super) descriptors_in_use: u64,
    pub(super) descriptors_limit: u64,
    pub(super) queued_bytes_reserved: u64,
    pub(super) queued_bytes_limit: u64,
    pub(super) log_dropped_lines: u64,
    pub(super) log_failures: u64,
}

impl Reading {
    pub(super) fn of(manager: &Manager, process: &Process) -> Reading {
        let sets = manager.sets();
        let mut reading = Reading {
            past: sets.past.clone(),
            endpoints_in_use: sets.cache.in_use() as u64,
            nodes: sets.nodes.live_count() as u64,
            requests: sets.nodes.tracked_requests() as u64,
            failure_reports: sets.nodes.untaken_failures() as u64,
            ..Reading::default()
        };
        let limit = sets.values.count(Key::MetricsEndpoints);
        // Read under the same lock as `past`: a connection that is not counted there as ended is live here. Each is
        // read afterwards, without the lock, even if it has ended by then.
        let mut live: Vec<Arc<Connection>> = Vec::new();
        let mut endpoints = Vec::new();
        for (endpoint, entry) in sets.cache.iter() {
            reading.endpoints_known += 1;
            reading.endpoints_fenced += u64::from(entry.fence().is_some());
            if limit > 0 && entry.in_use() {
                endpoints.push((endpoint.clone(), entry.delivered(), entry.current().cloned()));
            } else {
                live.extend(entry.current().cloned());
            }
        }
        drop(sets);

        for conn in live {
            reading.add(&conn.info());
        }
        endpoints.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        for (place, (endpoint, delivered, conn)) in endpoints.into_iter().enumerate() {
            let info = conn.map(|conn| conn.info());
            info.iter().for_each(|info| reading.add(info));
            if place < limit {
                reading.endpoints.push(EndpointReading::new(endpoint, delivered, info.as_ref()));
            }
        }

        let counts = manager.counts();
        reading.dials_refused = counts.dials_refused.read();
        reading.sends_refused = counts.sends_refused.read();
        reading.waits = counts.waits.read();
        let events = manager.events();
        let (waiting, lost) = events.counts();
        (reading.events_waiting, reading.events_lost) = (waiting as u64, lost);
        reading.stalls = events.stalls();
        if manager.id() == ManagerId::NONE {
            let (queued_bytes_reserved, queued_bytes_limit) = process.runtime().bytes().state();
            reading.process = Some(ProcessReading {
                managers: process.managers().len() as u64,
                descriptors_in_use: process.runtime().descriptors().in_use() as u64,
                descriptors_limit: process.runtime().descriptors().limit(),
                queued_bytes_reserved,
                queued_bytes_limit,
                log_dropped_lines: log::dropped(),
                log_failures: log::failures(),
            });
        }
        reading
    }

    /// Adds a connection that was live under the lock.
    fn add(&mut self, info: &ConnectionInfo) {
        match info.state {
            ConnectionState::Connecting => self.live.connecting += 1,
            ConnectionState::Ready => self.live.ready += 1,
            ConnectionState::Ended => {
                return self.past.ended(info.status, info.accepted, info.acknowledged, info.rescues);
            }
        }
        self.live.stalled += u64::from(info.stalled);
        self.live.waiting += u64::from(info.waiting);
        self.live.rescues += info.rescues;
        self.live.queued_bytes += info.queued_bytes;
        self.live.accepted += info.accepted;
        match info.acknowledged {
            Some(acknowledged) => {
                self.live.acknowledged += acknowledged;
                self.live.in_flight += info.accepted - acknowledged;
            }
            None => self.live.unknown += info.accepted,
        }
    }
}

impl EndpointReading {
    /// `delivered`: messages that its earlier connections accepted, and how many are known to be acknowledged.
    fn new(endpoint: Endpoint, delivered: (u64, u64), info: Option<&ConnectionInfo>) -> EndpointReading {
        let live = info.filter(|info| info.state != ConnectionState::Ended);
        EndpointReading {
            endpoint,
            accepted: delivered.0 + info.map_or(0, |info| info.accepted),
            acknowledged: delivered.1 + info.and_then(|info| info.acknowledged).unwrap_or(0),
            state: live.map_or(0, |info| info.state as u64),
            waiting: live.map_or(0, |info| info.waiting.into()),
            stalled: live.map_or(0, |info| info.stalled.into()),
        }
    }
}
