//! Sending to many connections with one thread, under one deadline.
//!
//! First, each message is copied and tried once. Then the first message that must wait at each connection queues, and
//! one wait serves all of them ([`pending`]). So this thread copies nothing while it holds a place in a queue in which
//! other senders wait too.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::gate::Patience;
use super::gate::pending::{self, PendingSend};
use super::{Connection, ConnectionInner};
use crate::connection::message::{Copies, Message};
use crate::error::{Error, Result, Status};
use crate::ids::ConnId;
use crate::sys::wake::Waker;
use crate::timeout::Timeout;

/// The most messages of one batch. Without the limit, an absurd count would be allocated.
pub const MAX_BATCH: usize = 65_536;

/// The messages that must wait at one connection.
struct Lane {
    conn: Arc<Connection>,
    /// With their indices in the batch.
    items: VecDeque<(usize, Message)>,
    /// The first of them has waited.
    waited: Cell<bool>,
}

/// Sends each message on its connection, which `find` looks up by its id. Returns for each item its sequence, or why it
/// was not accepted. Connection 0 is skipped, with sequence 0. Messages for one connection are accepted in the order
/// given. If a message was tried and refused, the later ones for its connection are refused too: nothing may overtake
/// it.
pub(crate) fn send_batch<M>(
    find: impl Fn(ConnId) -> Result<Arc<Connection>>,
    items: impl ExactSizeIterator<Item = (ConnId, M)>,
    timeout: Timeout,
) -> Vec<Result<u64>>
where
    M: FnOnce(&mut Copies) -> Result<Message>,
{
    let begun = Instant::now();
    let mut copies = Copies::default();
    let mut results = vec![Ok(0); items.len()];
    let mut lanes: Vec<Lane> = Vec::new();
    // For each connection, what happened to its earlier messages: they wait in this lane, or one was refused.
    let mut before: HashMap<ConnId, Result<usize>> = HashMap::new();
    for (place, (id, message)) in items.enumerate() {
        if id == ConnId::NONE {
            continue;
        }
        let conn = match find(id) {
            Ok(conn) => conn,
            Err(error) => {
                results[place] = Err(error);
                continue;
            }
        };
        let before_it = before.get(&id).cloned().transpose();
        let prepared = before_it.and_then(|lane| Ok((lane, conn.prepare(|| message(&mut copies))?)));
        match prepared {
            Err(error) => results[place] = conn.conclude(Err(error)),
            Ok((Some(lane), message)) => lanes[lane].items.push_back((place, message)),
            Ok((None, mut message)) => {
                let mut passed = conn.gate.try_pass(&mut message);
                if passed.as_ref().is_some_and(|result| conn.bytes_reclaimed(result)) {
                    passed = conn.gate.try_pass(&mut message);
                }
                match passed {
                    Some(result) => {
                        if let Err(error) = &result {
                            before.insert(id, Err(error.clone()));
                        }
                        results[place] = conn.conclude(result);
                    }
                    None => {
                        before.insert(id, Ok(lanes.len()));
                        let items = VecDeque::from([(place, message)]);
                        lanes.push(Lane { conn, items, waited: Cell::new(false) });
                    }
                }
            }
        }
    }
    drop(copies);
    if !lanes.is_empty() {
        wait(lanes, begun, timeout, &mut results);
    }
    results
}

impl Connection {
    /// Makes the message, after a first check of the state.
    fn prepare(&self, message: impl FnOnce() -> Result<Message>) -> Result<Message> {
        self.check_alive()?;
        message().map_err(|error| error.about(self.id).at(&self.endpoint))
    }

    /// Counts the result of one item, as for any send.
    fn conclude(self: &Arc<Self>, result: Result<u64>) -> Result<u64> {
        self.count_failure(self.end_if_lost(result))
    }
}

/// Queues the first message of each lane, and waits for all.
fn wait(mut lanes: Vec<Lane>, begun: Instant, timeout: Timeout, results: &mut [Result<u64>]) {
    let items: Vec<_> = lanes.iter_mut().map(|lane| std::mem::take(&mut lane.items)).collect();
    let places = lanes.iter().zip(&items);
    let lane_of: HashMap<usize, &Lane> =
        places.flat_map(|(lane, items)| items.iter().map(move |(place, _)| (*place, lane))).collect();
    let pending = lanes.iter().zip(items).map(|(lane, items)| {
        let timeout = timeout.or(lane.conn.owner.send_timeout());
        let patience = move |inner: &mut ConnectionInner| {
            let patience = inner.patience(timeout, begun);
            lane.waited.set(lane.waited.get() || matches!(patience, Patience::Until(_)));
            patience
        };
        PendingSend { gate: &*lane.conn.gate, items, patience }
    });
    pending::run(pending, Arc::new(Waker::new()), |place, result, behind| {
        let Lane { conn, waited, .. } = lane_of[&place];
        if waited.take() {
            conn.owner.count_wait(begun.elapsed());
        }
        if let Err(error) = &result {
            behind.drain(..).for_each(|(place, _)| results[place] = conn.conclude(Err(error.clone())));
        }
        results[place] = conn.conclude(result);
    });
}

/// OK, or PARTIAL with the first failed item in its text.
pub fn verdict(results: &[Result<u64>]) -> Result<()> {
    let mut failed = results.iter().enumerate().filter_map(|(place, result)| Some((place, result.as_ref().err()?)));
    let Some((place, first)) = failed.next() else { return Ok(()) };
    let (count, all) = (1 + failed.count(), results.len());
    let text = format!("{count} of {all} items failed; items[{place}]: {}: {}", first.status.name(), first.message);
    Err(Error { status: Status::Partial, message: text, retry_after: None, ..first.clone() })
}
