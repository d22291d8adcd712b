//! Connecting all ranks of a node with one thread, under one deadline.
//!
//! The dials go on by themselves, so the thread only waits until one of them has an outcome, and looks at all that have
//! none yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Manager;
use super::flight::WAIT_FOR_CLOSING;
use crate::connection::Connection;
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, NodeId};
use crate::manager::cache::DialPolicy;
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Options, Reach};
use crate::timeout::Timeout;

/// Counts what may have given a dial its outcome.
#[derive(Default)]
pub(super) struct Settled {
    changes: u64,
    /// Threads that wait for the next change.
    waiting: usize,
}

/// One rank, and how far it is.
struct Rank {
    endpoint: Endpoint,
    dial: Progress,
}

enum Progress {
    /// It is being dialled.
    Dialling(Arc<Connection>),
    /// The last dial failed with this error; it is dialled again after the backoff step.
    Waiting(Error),
    Done(Result<ConnId>),
}

impl Manager {
    /// Registers endpoints with a live node, all or none, as `node_add_endpoints` does. Then dials all of them, and
    /// waits until each is READY or has failed, or until the time is over. Returns the connection of each, or why it has
    /// none; a TIMEOUT names the connection if its dial goes on. The endpoints stay registered.
    ///
    /// An error of the whole call means that nothing was registered; or that the node has ended during the call, and
    /// its endpoints with it.
    pub fn node_connect(
        self: &Arc<Self>,
        node: NodeId,
        endpoints: &[&str],
        options: Option<&Options>,
        wait: Timeout,
    ) -> Result<Vec<Result<ConnId>>> {
        let begun = Instant::now();
        let endpoints = self.endpoints(endpoints)?;
        if let Some(options) = options {
            options.only(&[Reach::Connection, Reach::Call], "kvconn_node_connect")?;
        }
        let retry = options.is_some_and(|options| options.flag(Key::ConnectRetry));
        let remembered = options.and_then(|options| options.over(None));
        let (registered, one_dial) = {
            let mut sets = self.open_sets()?;
            self.register(&mut sets, node, &endpoints, remembered.as_deref())?;
            let values = &sets.values;
            (Instant::now(), values.ms(Key::ConnectTimeoutMs) + values.ms(Key::HandshakeTimeoutMs))
        };
        // The endpoint remembers the options. A fence that is set from here on ends the dial.
        let policy = DialPolicy::Again(None, registered);
        let obtain = |endpoint: &Endpoint, last: Instant| {
            let conn = self.obtain(endpoint, policy, &|| last.max(begun + WAIT_FOR_CLOSING));
            match conn {
                Ok(conn) => Progress::Dialling(conn),
                Err(error) if retry && again(&error) => Progress::Waiting(error),
                Err(error) => Progress::Done(Err(error)),
            }
        };

        let mut places = HashMap::new();
        let mut ranks: Vec<Rank> = Vec::new();
        let place_of: Vec<usize> = endpoints
            .into_iter()
            .map(|endpoint| {
                *places.entry(endpoint).or_insert_with_key(|endpoint| {
                    let dial = obtain(endpoint, begun + wait.or(one_dial));
                    ranks.push(Rank { endpoint: endpoint.clone(), dial });
                    ranks.len() - 1
                })
            })
            .collect();
        // The default: as long as one dial can take, with the options of each.
        let dialled = Instant::now();
        let longest = ranks.iter().map(|rank| match &rank.dial {
            Progress::Dialling(conn) => {
                conn.values().ms(Key::ConnectTimeoutMs) + conn.values().ms(Key::HandshakeTimeoutMs)
            }
            _ => one_dial,
        });
        let deadline = match wait {
            Timeout::Default => dialled + longest.max().unwrap_or_default() + Duration::from_millis(10),
            Timeout::After(_) => begun + wait.or(one_dial),
        };
        if wait == Timeout::After(Duration::ZERO) {
            for rank in &mut ranks {
                rank.accept_what_is_dialled();
            }
        } else {
            loop {
                // Read first: what changes during the look ends the wait at once.
                let seen = self.settled.0.lock().changes;
                self.open_sets()?.nodes.check_live(node)?;
                let Some(until) = self.look_at_ranks(&mut ranks, retry, policy, deadline, &obtain) else { break };
                self.wait_settled(seen, until);
            }
        }
        // The connections of a node that has ended are no result.
        self.open_sets()?.nodes.check_live(node)?;
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.result()).collect();
        Ok(place_of.into_iter().map(|place| results[place].clone()).collect())
    }

    /// Updates each rank that has no outcome yet. Returns when to look again at the latest; `None` when all have one.
    fn look_at_ranks(
        self: &Arc<Self>,
        ranks: &mut [Rank],
        retry: bool,
        policy: DialPolicy<'_>,
        deadline: Instant,
        obtain: &impl Fn(&Endpoint, Instant) -> Progress,
    ) -> Option<Instant> {
        let mut next = None;
        for rank in ranks {
            let now = Instant::now();
            let mut until = deadline;
            if let Progress::Dialling(conn) = &rank.dial {
                match conn.wait_ready(now) {
                    Ok(()) => rank.dial = Progress::Done(Ok(conn.id())),
                    Err(error) if error.status == Status::Timeout && now < deadline => {}
                    Err(error) if retry && again(&error) && now < deadline => rank.dial = Progress::Waiting(error),
                    Err(error) => rank.dial = Progress::Done(Err(self.with_next_step(&rank.endpoint, error))),
                }
            }
            if let Progress::Waiting(last) = &rank.dial {
                let admitted = {
                    let sets = self.sets();
                    sets.cache.admit(&rank.endpoint, policy, &sets.values).map(drop)
                };
                match admitted {
                    _ if now >= deadline => {
                        let text = format!("not READY within the time given; the last dial: {}", last.message);
                        let error = Error::new(Status::Timeout, text).errno(last.os_errno).at(&rank.endpoint);
                        rank.dial = Progress::Done(Err(error));
                    }
                    Err(error) if error.status == Status::Backoff => {
                        until = now + error.retry_after.unwrap_or_default() + Duration::from_millis(1);
                    }
                    Err(error) => rank.dial = Progress::Done(Err(error)),
                    Ok(()) => {
                        rank.dial = obtain(&rank.endpoint, deadline);
                        if let Progress::Waiting(_) = rank.dial {
                            until = now + Duration::from_millis(1);
                        }
                    }
                }
            }
            if !matches!(rank.dial, Progress::Done(_)) {
                next = Some(next.unwrap_or(deadline).min(until));
            }
        }
        next
    }

    /// A dial may have an outcome. Takes a leaf lock.
    pub(super) fn note_settled(&self) {
        let mut settled = self.settled.0.lock();
        settled.changes += 1;
        if settled.waiting > 0 {
            self.settled.1.notify_all();
        }
    }

    /// Waits for a change after `seen`.
    fn wait_settled(&self, seen: u64, until: Instant) {
        let mut settled = self.settled.0.lock();
        settled.waiting += 1;
        while settled.changes == seen && !self.settled.1.wait_until(&mut settled, until).timed_out() {}
        settled.waiting -= 1;
    }
}

/// Whether connect_retry dials again after this.
fn again(error: &Error) -> bool {
    matches!(error.status, Status::ConnectFailed | Status::PeerLost | Status::Backoff)
}

impl Rank {
    /// The call does not wait: a dial that goes on is its result.
    fn accept_what_is_dialled(&mut self) {
        match std::mem::replace(&mut self.dial, Progress::Done(Ok(ConnId::NONE))) {
            Progress::Dialling(conn) => self.dial = Progress::Done(Ok(conn.id())),
            Progress::Waiting(error) => self.dial = Progress::Done(Err(error)),
            done => self.dial = done,
        }
    }

    fn result(self) -> Result<ConnId> {
        match self.dial {
            Progress::Done(result) => result,
            Progress::Dialling(conn) => Ok(conn.id()),
            Progress::Waiting(error) => Err(error),
        }
    }
}
