//! Sending to many connections with one thread, under one deadline.
//!
//! First, each short message is tried the shortest way. Then each of the others is copied and tried once. Then the first
//! message that must wait at each connection queues, and one wait serves all of them ([`pending`]). So this thread
//! copies nothing while it holds a place in a queue in which other senders wait too.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::gate::Patience;
use super::gate::pending::{self, PendingSend};
use super::{Connection, ConnectionGate, ConnectionInner, send_short};
use crate::connection::message::{Copies, Message, ShortMessage};
use crate::error::{Error, Result};
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

/// What makes one message of a batch.
pub trait BatchMessage {
    /// Copies the frames. Returns false if there are too many or too large ones for a short message, or anything is
    /// unusual: then [`copy`](BatchMessage::copy) follows.
    fn copy_short(&self, message: &mut ShortMessage) -> bool;
    /// Copies the frames, or shares copies of equal ones.
    fn copy(self, copies: &mut Copies) -> Result<Message>;
}

/// The frames of one message of a batch.
pub struct BatchFrames<'a>(pub &'a [&'a [u8]]);

impl BatchMessage for BatchFrames<'_> {
    fn copy_short(&self, message: &mut ShortMessage) -> bool {
        !self.0.is_empty() && self.0.iter().all(|frame| frame.len() <= Copies::ALWAYS_COPIED && message.push(frame))
    }

    fn copy(self, copies: &mut Copies) -> Result<Message> {
        Message::copied(self.0.iter().copied(), Some(copies))
    }
}

impl<F: FnOnce(&mut Copies) -> Result<Message>> BatchMessage for F {
    fn copy_short(&self, _: &mut ShortMessage) -> bool {
        false
    }

    fn copy(self, copies: &mut Copies) -> Result<Message> {
        self(copies)
    }
}

/// Sends each message on its connection, which `gate` and `find` look up by its id. Calls `done` for each item, in any
/// order of connections, with its sequence, or why it was not accepted. Connection 0 is skipped, with sequence 0.
/// Messages for one connection are accepted in the order given. If a message was tried and refused, the later ones for
/// its connection are refused too: nothing may overtake it.
pub(crate) fn send_batch<'g, M: BatchMessage>(
    gate: impl Fn(ConnId) -> Option<&'g ConnectionGate>,
    find: impl Fn(ConnId) -> Result<Arc<Connection>>,
    items: impl ExactSizeIterator<Item = (ConnId, M)>,
    timeout: Timeout,
    mut done: impl FnMut(usize, Result<u64>),
) {
    let begun = Instant::now();
    // The items that do not pass the shortest way, and their connections: nothing may overtake them.
    let (mut late, mut late_conns) = (Vec::new(), HashSet::new());
    for (place, (id, item)) in items.enumerate() {
        if id == ConnId::NONE {
            done(place, Ok(0));
            continue;
        }
        let may_pass = late.is_empty() || !late_conns.contains(&id);
        let passed = gate(id).filter(|_| may_pass).and_then(|gate| {
            let mut message = ShortMessage::new();
            if item.copy_short(&mut message) { send_short(gate, id, &mut message) } else { None }
        });
        match passed {
            Some(sequence) => done(place, Ok(sequence)),
            None => {
                late_conns.insert(id);
                late.push((place, id, item));
            }
        }
    }
    if !late.is_empty() {
        let places: Vec<usize> = late.iter().map(|(place, ..)| *place).collect();
        let results = send_late(find, late.into_iter().map(|(_, id, item)| (id, item)), begun, timeout);
        places.into_iter().zip(results).for_each(|(place, result)| done(place, result));
    }
}

/// Sends the items that did not pass the shortest way. Returns the result of each.
fn send_late<M: BatchMessage>(
    find: impl Fn(ConnId) -> Result<Arc<Connection>>,
    items: impl ExactSizeIterator<Item = (ConnId, M)>,
    begun: Instant,
    timeout: Timeout,
) -> Vec<Result<u64>> {
    let mut copies = Copies::default();
    let mut results = vec![Ok(0); items.len()];
    let mut lanes: Vec<Lane> = Vec::new();
    // For each connection, what happened to its earlier messages: they wait in this lane, or one was refused.
    let mut before: HashMap<ConnId, Result<usize>> = HashMap::new();
    for (place, (id, message)) in items.enumerate() {
        let conn = match find(id) {
            Ok(conn) => conn,
            Err(error) => {
                results[place] = Err(error);
                continue;
            }
        };
        let before_it = before.get(&id).cloned().transpose();
        let prepared = before_it.and_then(|lane| Ok((lane, conn.prepare(|| message.copy(&mut copies))?)));
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

/// The result of a whole batch.
#[derive(Default)]
pub(crate) struct BatchVerdict {
    items: usize,
    failed: usize,
    /// The failed one with the lowest index.
    first: Option<(usize, Error)>,
}

impl BatchVerdict {
    /// Notes the result of one item.
    #[inline(always)]
    pub(crate) fn note(&mut self, place: usize, result: &Result<u64>) {
        self.items += 1;
        if let Err(error) = result {
            self.note_failed(place, error);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_failed(&mut self, place: usize, error: &Error) {
        self.failed += 1;
        if self.first.as_ref().is_none_or(|(first, _)| place < *first) {
            self.first = Some((place, error.clone()));
        }
    }

    /// OK, or PARTIAL with the first failed item in its text.
    pub(crate) fn result(self) -> Result<()> {
        let BatchVerdict { items, failed, first } = self;
        let Some((place, first)) = first else { return Ok(()) };
        Err(Error::partial_of("items", failed, items, place, first))
    }
}

/// OK, or PARTIAL with the first failed item in its text.
pub fn verdict(results: &[Result<u64>]) -> Result<()> {
    Error::partial("items", results)
}
