//! Sending to many connections with one thread, under one deadline.
//!
//! First each message is copied and tried once. Those that must wait then queue, the first of each connection, and one
//! wait serves all of them ([`errands`]). So nothing is copied while this thread stands in a queue that others stand
//! in, too.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::Connection;
use super::gate::errands::{self, Errand};
use crate::error::{Error, Result, Status};
use crate::ids::ConnId;
use crate::manager::Timeout;
use crate::message::{Copies, Message};
use crate::process::Process;
use crate::wake::Alarm;

/// The most messages one batch takes. It keeps an absurd count from being an allocation.
pub const MAX_BATCH: usize = 65_536;

/// What waits for one connection, with the places in the batch.
struct Lane {
    conn: Arc<Connection>,
    items: VecDeque<(usize, Message)>,
}

impl Process {
    /// Sends each message on its connection, and returns what became of each: its sequence, or why it was not accepted.
    /// Connection 0 is skipped, with sequence 0. What is for one connection is accepted in the order given. A message
    /// that finds no room in time takes those behind it with it: nothing may overtake it.
    pub fn send_batch<M>(&self, items: impl ExactSizeIterator<Item = (ConnId, M)>, timeout: Timeout) -> Vec<Result<u64>>
    where
        M: FnOnce(&mut Copies) -> Result<Message>,
    {
        let begun = Instant::now();
        let mut copies = Copies::default();
        let mut results = vec![Ok(0); items.len()];
        let mut lanes: Vec<Lane> = Vec::new();
        let mut lane_of = HashMap::new();
        for (place, (id, message)) in items.enumerate() {
            if id == ConnId::NONE {
                continue;
            }
            let (conn, mut message) = match self.prepare(id, || message(&mut copies)) {
                Ok(prepared) => prepared,
                Err(error) => {
                    results[place] = Err(error);
                    continue;
                }
            };
            if let Some(lane) = lane_of.get(&id) {
                let lane: &mut Lane = &mut lanes[*lane];
                lane.items.push_back((place, message));
            } else if let Some(result) = conn.gate.try_pass(&mut message) {
                results[place] = conn.counted(conn.noticing_loss(result));
            } else {
                lane_of.insert(id, lanes.len());
                lanes.push(Lane { conn, items: VecDeque::from([(place, message)]) });
            }
        }
        drop(copies);
        if !lanes.is_empty() {
            wait(lanes, begun, timeout, &mut results);
        }
        results
    }

    /// The connection, and the message when it is clear that it can be tried.
    fn prepare(&self, id: ConnId, message: impl FnOnce() -> Result<Message>) -> Result<(Arc<Connection>, Message)> {
        let conn = self.connection(id)?;
        let message = conn.check_lives().and_then(|()| message().map_err(|error| error.about(id).at(&conn.endpoint)));
        let message = conn.counted(message)?;
        Ok((conn, message))
    }
}

/// Queues the first of each lane, and waits for all.
fn wait(lanes: Vec<Lane>, begun: Instant, timeout: Timeout, results: &mut [Result<u64>]) {
    let (conns, items): (Vec<_>, Vec<_>) = lanes.into_iter().map(|lane| (lane.conn, lane.items)).unzip();
    let conn_of: HashMap<usize, &Arc<Connection>> =
        conns.iter().zip(&items).flat_map(|(conn, items)| items.iter().map(move |(place, _)| (*place, conn))).collect();
    let errands = conns.iter().zip(items).map(|(conn, items)| {
        let timeout = timeout.or(conn.manager.send_timeout());
        let deadline = begun + timeout;
        Errand { gate: &conn.gate, items, patience: move |life: &mut super::Life| life.patience(timeout, deadline) }
    });
    errands::run(errands, Arc::new(Alarm::new()), |place, result, behind| {
        let conn = conn_of[&place];
        conn.manager.counts().waits.add(begun.elapsed());
        let result = conn.noticing_loss(result);
        if let Err(error) = &result
            && matches!(error.status, Status::Timeout | Status::Stalled)
        {
            behind.drain(..).for_each(|(behind, _)| results[behind] = conn.counted(Err(error.clone())));
        }
        results[place] = conn.counted(result);
    });
}

/// PARTIAL when one of them failed, about the first that did.
pub fn verdict(results: &[Result<u64>]) -> Result<()> {
    let mut failed = results.iter().enumerate().filter_map(|(place, result)| Some((place, result.as_ref().err()?)));
    let Some((place, first)) = failed.next() else { return Ok(()) };
    let (count, all) = (1 + failed.count(), results.len());
    let text = format!("{count} of {all} items failed; items[{place}]: {}: {}", first.status.name(), first.message);
    Err(Error { status: Status::Partial, message: text, retry_after: None, ..first.clone() })
}
