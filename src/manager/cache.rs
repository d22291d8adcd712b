//! What is known about each endpoint: its connection, its remembered options, its fence, its backoff.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::connection::dial::AddressHistory;
use crate::connection::{Connection, EndReason, Finished};
use crate::delivery::Delivery;
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, NodeId};
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Options, Values};

/// Why an endpoint must not be dialled.
#[derive(Clone, Debug)]
pub(crate) enum Fence {
    /// The caller disconnected it, by this call.
    Disconnected { by: &'static str, at: Instant },
    /// The node that owned it failed.
    NodeFailed { node: NodeId, name: Arc<str>, reason: Arc<str>, at: Instant },
}

/// The backoff of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Failed dials in a row. The step doubles with each.
    failures: u32,
    /// No dial before this time.
    not_before: Option<Instant>,
    /// The reason: errno, and the outcome of the last dial.
    last: Option<(i32, Arc<str>)>,
    /// The newest node life that reset it. Each life resets it only once, so repeated registration cannot cause a dial
    /// storm.
    reset_by: NodeId,
}

/// Everything known about one endpoint.
#[derive(Default)]
pub(crate) struct Entry {
    current: Option<Arc<Connection>>,
    /// A live node owns it.
    owned: bool,
    /// The options it was connected or registered with. For each setting, the last value given.
    options: Option<Arc<Options>>,
    fence: Option<Fence>,
    backoff: Backoff,
    /// What its dials have taught about the addresses of its name.
    addresses: Arc<AddressHistory>,
    /// Connections that have ended, and whose sockets libzmq may not have closed yet.
    closing: Vec<Weak<Connection>>,
    /// The last of its connections that was lost, and its final counts.
    last_lost: Option<(ConnId, Delivery)>,
    /// Messages accepted by its earlier connections, and how many of them are known to be acknowledged.
    delivered: (u64, u64),
    /// Its place in the list of endpoints that are only remembered: whether it is fenced, and its stamp.
    remembered: Option<(bool, u64)>,
}

/// The endpoints of a manager. Guarded by the global lock.
#[derive(Default)]
pub(crate) struct Cache {
    entries: HashMap<Endpoint, Entry>,
    /// Endpoints that are connected or owned.
    in_use: usize,
    /// Endpoints that are not in use, oldest first: fenced ones, and others.
    fenced: BTreeMap<u64, Endpoint>,
    known: BTreeMap<u64, Endpoint>,
    clock: u64,
}

/// Which call asks for a connection.
#[derive(Clone, Copy)]
pub(crate) enum DialPolicy<'a> {
    /// `kvconn_connect` with these options. It lifts the fence of a disconnect.
    Connect(Option<&'a Options>),
    /// The same call again after a failed dial or a wait. It began at this time; a fence set later ends it.
    Again(Option<&'a Options>, Instant),
    /// `kvconn_send_to`.
    SendTo,
}

impl<'a> DialPolicy<'a> {
    /// The options of the call.
    fn given(self) -> Option<&'a Options> {
        match self {
            DialPolicy::Connect(options) | DialPolicy::Again(options, _) => options,
            DialPolicy::SendTo => None,
        }
    }
}

/// CONFLICT if the live connection has other options.
fn check_conflict(conn: &Connection, options: &Options) -> Result<()> {
    match conn.values().conflict(options) {
        None => Ok(()),
        Some(text) => Err(Error::new(Status::Conflict, text).about(conn.id()).at(conn.endpoint())),
    }
}

/// The answer to such a call.
pub(crate) enum Admission {
    /// The live connection.
    Current(Arc<Connection>),
    /// Permission to dial with these values, which come from these explicit options among others.
    Dial(Box<Values>, Option<Arc<Options>>),
}

impl Fence {
    /// The error for a call on the fenced endpoint.
    pub(crate) fn error(&self, endpoint: &Endpoint) -> Error {
        match self {
            Fence::Disconnected { by, at } => Error::new(
                Status::Disconnected,
                format!(
                    "fenced by {by} {:.1} s ago; kvconn_connect, or registering it in a live node, lifts it",
                    at.elapsed().as_secs_f64()
                ),
            ),
            Fence::NodeFailed { node, name, reason, at } => Error::new(
                Status::NodeFailed,
                format!(
                    "node {name:?} (life {node}) failed {:.1} s ago: {reason}; only registering it in a live node lifts the fence",
                    at.elapsed().as_secs_f64()
                ),
            ),
        }
        .at(endpoint)
    }
}

impl Backoff {
    /// The present step, without its random part.
    fn step(&self, values: &Values) -> Duration {
        let base = values.ms(Key::BackoffMs);
        base.saturating_mul(1 << self.failures.min(24)).min(values.ms(Key::BackoffMaxMs))
    }

    /// No dial for one step from `from` on, for this reason.
    fn hold(&mut self, from: Instant, values: &Values, os_errno: i32, why: String) {
        let step = self.step(values);
        self.not_before = Some(from + step + step.mul_f64(0.25 * random()));
        self.last = Some((os_errno, why.into()));
    }

    fn failed(&mut self, values: &Values, os_errno: i32, why: String) {
        self.hold(Instant::now(), values, os_errno, why);
        self.failures = self.failures.saturating_add(1);
    }

    /// A dial that began at `dialled` was ended locally before it was READY, so its outcome is unknown. It uses up its
    /// step: otherwise dialling and giving up in turn would be a dial storm. The next step does not grow.
    fn given_up(&mut self, dialled: Instant, values: &Values, text: &str) {
        self.hold(dialled, values, libc::ECANCELED, format!("the last dial was given up: {text}"));
    }

    fn reset(&mut self) {
        self.failures = 0;
        self.not_before = None;
        self.last = None;
    }

    fn refusal(&self, endpoint: &Endpoint) -> Option<Error> {
        let wait = self.not_before?.checked_duration_since(Instant::now())?;
        let (os_errno, why) = self.last.as_ref()?;
        let message = format!("not dialled again for {} ms: {why}", wait.as_millis());
        Some(Error::new(Status::Backoff, message).errno(*os_errno).retry_after(wait).at(endpoint))
    }
}

/// Between 0 and 1, so that many processes do not dial at the same time. Need not be secret.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

impl Entry {
    pub(crate) fn current(&self) -> Option<&Arc<Connection>> {
        self.current.as_ref()
    }

    pub(crate) fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    pub(crate) fn in_use(&self) -> bool {
        self.current.is_some() || self.owned
    }

    /// Messages accepted by its earlier connections, and how many of them are known to be acknowledged.
    pub(crate) fn delivered(&self) -> (u64, u64) {
        self.delivered
    }

    /// For describe: failures in a row, time left, and the outcome of the last dial.
    pub(crate) fn backoff(&self) -> Option<(u32, Duration, Arc<str>)> {
        let (_, why) = self.backoff.last.clone()?;
        let left = self.backoff.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        Some((self.backoff.failures, left, why))
    }
}

fn is_closing(conn: &Weak<Connection>) -> bool {
    conn.upgrade().is_some_and(|conn| conn.gone().is_none())
}

impl Cache {
    /// The entry of an endpoint, by its canonical text.
    pub(crate) fn get(&self, endpoint: &str) -> Option<(&Endpoint, &Entry)> {
        self.entries.get_key_value(endpoint)
    }

    /// The live connection to an endpoint.
    pub(crate) fn current(&self, endpoint: &Endpoint) -> Option<&Arc<Connection>> {
        self.entries.get(endpoint)?.current.as_ref()
    }

    /// The last connection to an endpoint that was lost, and its final counts.
    pub(crate) fn last_lost(&self, endpoint: &Endpoint) -> Option<(ConnId, Delivery)> {
        self.entries.get(endpoint)?.last_lost
    }

    /// Whether an endpoint is connected or owned.
    pub(crate) fn is_in_use(&self, endpoint: &Endpoint) -> bool {
        self.entries.get(endpoint).is_some_and(Entry::in_use)
    }

    /// How long until the endpoint may be dialled again. `None` if it may be dialled now.
    pub(crate) fn next_step(&self, endpoint: &Endpoint) -> Option<Duration> {
        self.entries.get(endpoint)?.backoff.not_before?.checked_duration_since(Instant::now())
    }

    /// All endpoints.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Endpoint, &Entry)> {
        self.entries.iter()
    }

    /// The connections whose end would make room: no live node owns their endpoints.
    pub(crate) fn evictable(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.entries.values().filter(|entry| !entry.owned).filter_map(Entry::current)
    }

    /// Endpoints that are connected or owned by a live node.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The live connection, or permission to dial. Fences, conflicts, backoff and capacity refuse. Changes nothing.
    pub(crate) fn admit(&self, endpoint: &Endpoint, policy: DialPolicy<'_>, values: &Values) -> Result<Admission> {
        let entry = self.entries.get(endpoint);
        let given = policy.given();
        if let Some(entry) = entry {
            match (&entry.fence, policy) {
                (Some(Fence::Disconnected { .. }), DialPolicy::Connect(_)) | (None, _) => {}
                (Some(Fence::Disconnected { at, .. }), DialPolicy::Again(_, begun)) if *at <= begun => {}
                (Some(fence), _) => return Err(fence.error(endpoint)),
            }
            if let Some(current) = &entry.current {
                if let Some(given) = given {
                    check_conflict(current, given)?;
                }
                return Ok(Admission::Current(current.clone()));
            }
            if let Some(error) = entry.backoff.refusal(endpoint) {
                return Err(error);
            }
        }
        if !entry.is_some_and(Entry::in_use) {
            self.check_room(1, values).map_err(|e| e.at(endpoint))?;
        }
        let remembered = entry.and_then(|entry| entry.options.as_ref());
        let options = match given {
            Some(given) => given.over(remembered),
            None => remembered.cloned(),
        };
        let values = values.of_connection(options.as_deref()).and_then(|values| {
            values.check_dial()?;
            Ok(values)
        });
        Ok(Admission::Dial(Box::new(values.map_err(|e| e.at(endpoint))?), options))
    }

    /// Whether an endpoint can be registered with these options.
    pub(crate) fn check_options(&self, endpoint: &Endpoint, options: &Options, values: &Values) -> Result<()> {
        let entry = self.entries.get(endpoint);
        if let Some(current) = entry.and_then(Entry::current) {
            check_conflict(current, options)?;
        }
        let options = options.over(entry.and_then(|entry| entry.options.as_ref()));
        values.of_connection(options.as_deref()).map(drop).map_err(|e| e.at(endpoint))
    }

    /// A call got the live connection: its options are remembered, as if it had dialled.
    pub(crate) fn remember(&mut self, endpoint: &Endpoint, policy: DialPolicy<'_>) {
        if let (Some(given), Some(entry)) = (policy.given(), self.entries.get_mut(endpoint)) {
            entry.options = given.over(entry.options.as_ref());
        }
    }

    /// Whether `more` endpoints fit into the limit.
    pub(crate) fn check_room(&self, more: usize, values: &Values) -> Result<()> {
        let limit = values.count(Key::MaxEndpoints);
        if self.in_use + more > limit {
            return Err(Error::limit(format!(
                "max_endpoints is {limit} and {} are connected or registered; {more} more do not fit",
                self.in_use
            )));
        }
        Ok(())
    }

    /// Changes an entry, and makes it if necessary. Keeps `in_use` and the lists of remembered endpoints consistent.
    fn change<T>(&mut self, endpoint: &Endpoint, change: impl FnOnce(&mut Entry) -> T) -> T {
        let entry = self.entries.entry(endpoint.clone()).or_default();
        let was_in_use = entry.in_use();
        let result = change(entry);
        self.in_use = self.in_use + usize::from(entry.in_use()) - usize::from(was_in_use);
        let place = (!entry.in_use()).then(|| entry.fence.is_some());
        if entry.remembered.map(|(fenced, _)| fenced) != place {
            if let Some((fenced, stamp)) = entry.remembered.take() {
                if fenced {
                    self.fenced.remove(&stamp)
                } else {
                    self.known.remove(&stamp)
                };
            }
            if let Some(fenced) = place {
                self.clock += 1;
                entry.remembered = Some((fenced, self.clock));
                let list = if fenced { &mut self.fenced } else { &mut self.known };
                list.insert(self.clock, endpoint.clone());
            }
        }
        result
    }

    /// Forgets the oldest endpoints that are only remembered, down to the limit.
    pub(crate) fn trim(&mut self, values: &Values) {
        let limit = values.count(Key::MaxFences);
        for list in [&mut self.fenced, &mut self.known] {
            while list.len() > limit {
                if let Some((_, endpoint)) = list.pop_first() {
                    self.entries.remove(&endpoint);
                }
            }
        }
    }

    /// A new connection is current. Lifts the fence.
    pub(crate) fn connected(&mut self, conn: &Arc<Connection>, options: Option<Arc<Options>>) {
        self.change(conn.endpoint(), |entry| {
            entry.current = Some(conn.clone());
            entry.addresses = conn.addresses().clone();
            entry.options = options;
            entry.fence = None;
        });
    }

    /// A connection has ended. Updates the backoff.
    pub(crate) fn ended(&mut self, conn: &Arc<Connection>, finished: Finished, values: &Values, text: &str) {
        let os_errno = finished.os_errno;
        self.change(conn.endpoint(), |entry| {
            if entry.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, conn)) {
                entry.current = None;
            }
            entry.closing.retain(is_closing);
            entry.closing.push(Arc::downgrade(conn));
            if finished.ending == EndReason::PeerLost {
                entry.last_lost = Some((conn.id(), finished.delivery));
            }
            entry.delivered.0 += finished.delivery.accepted;
            entry.delivered.1 += finished.delivery.acknowledged.unwrap_or(0);
            let step = entry.backoff.step(values);
            match (finished.ready_for, finished.ending) {
                // READY for longer than a step: the endpoint works, and the next dial may come at once.
                (Some(time), _) if time > step => entry.backoff.reset(),
                (_, EndReason::ConnectFailed) => {
                    entry.backoff.failed(values, os_errno, format!("the last dial failed: {text}"));
                }
                (_, EndReason::PeerLost) => {
                    entry.backoff.failed(values, os_errno, format!("the last connection was lost: {text}"));
                }
                (None, _) => entry.backoff.given_up(conn.dialled(), values, text),
                // It was READY and was ended locally: the endpoint works.
                (Some(_), _) => {}
            }
        });
    }

    /// What the dials of an endpoint have taught about the addresses of its name.
    pub(crate) fn addresses(&self, endpoint: &Endpoint) -> Arc<AddressHistory> {
        self.entries.get(endpoint).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// The connections of an endpoint that have ended, and whose sockets libzmq has not closed yet.
    pub(crate) fn closing(&self, endpoint: &Endpoint) -> Vec<Arc<Connection>> {
        let entry = self.entries.get(endpoint);
        let closing = entry.iter().flat_map(|entry| &entry.closing).filter(|conn| is_closing(conn));
        closing.filter_map(Weak::upgrade).collect()
    }

    /// Sets a fence. A fence of a failed node is not replaced by that of a disconnect.
    pub(crate) fn fence(&mut self, endpoint: &Endpoint, fence: Fence) {
        // A fence set again becomes the newest in its list.
        if let Some((fenced, stamp)) = self.entries.get_mut(endpoint).and_then(|entry| entry.remembered.take()) {
            let list = if fenced { &mut self.fenced } else { &mut self.known };
            list.remove(&stamp);
        }
        self.change(endpoint, |entry| {
            if !matches!((&entry.fence, &fence), (Some(Fence::NodeFailed { .. }), Fence::Disconnected { .. })) {
                entry.fence = Some(fence);
            }
        });
    }

    /// A live node registers it. Lifts the fence. The first registration in a life resets the backoff.
    pub(crate) fn registered(&mut self, endpoint: &Endpoint, node: NodeId, options: Option<&Arc<Options>>) {
        self.change(endpoint, |entry| {
            entry.owned = true;
            entry.fence = None;
            if let Some(options) = options {
                entry.options = match &entry.options {
                    None => Some(options.clone()),
                    old => options.over(old.as_ref()),
                };
            }
            if entry.backoff.reset_by < node {
                entry.backoff.reset_by = node;
                entry.backoff.reset();
            }
        });
    }

    /// No live node owns the endpoint any more.
    pub(crate) fn disowned(&mut self, endpoint: &Endpoint) {
        self.change(endpoint, |entry| entry.owned = false);
    }
}
