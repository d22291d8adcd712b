//! A manager's connections: dial, find, send, end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flight::{Flight, WAIT_FOR_CLOSING};
use super::{Manager, Sets};
use crate::connection::message::Message;
use crate::connection::socket::open_attempt;
use crate::connection::{Aftermath, Connection, End, Transition};
use crate::error::{Error, Result, Status};
use crate::ids::ConnId;
use crate::manager::cache::{Admission, DialPolicy};
use crate::net::endpoint::{Endpoint, Target};
use crate::options::{Key, Options, Reach, Values};
use crate::timeout::Timeout;

impl Manager {
    /// The live connection to an endpoint, or a new dial. With `wait` 0 it returns at once, in whatever state the
    /// connection is. Otherwise it waits until READY or failure. On TIMEOUT the dial goes on if the error names a
    /// connection.
    pub fn connect(self: &Arc<Self>, endpoint: &str, options: Option<&Options>, wait: Timeout) -> Result<ConnId> {
        let endpoint = self.endpoint(endpoint)?;
        if let Some(options) = options {
            options.only(&[Reach::Connection, Reach::Call], "kvconn_connect").map_err(|e| e.at(&endpoint))?;
        }
        // An error that closes the manager names no endpoint. This call is about one, so it is added.
        self.connect_to(&endpoint, options, wait).map_err(|e| if e.endpoint.is_empty() { e.at(&endpoint) } else { e })
    }

    fn connect_to(self: &Arc<Self>, endpoint: &Endpoint, options: Option<&Options>, wait: Timeout) -> Result<ConnId> {
        let begun = Instant::now();
        let retry = options.is_some_and(|options| options.flag(Key::ConnectRetry));
        let mut policy = DialPolicy::Connect(options);
        let mut deadline = None;
        let one_dial = self.one_dial();
        loop {
            let known = deadline;
            // Asked for under the global lock.
            let last = || {
                let deadline = known.unwrap_or_else(|| begun + wait.or(one_dial));
                deadline.max(begun + WAIT_FOR_CLOSING)
            };
            let tried = self.obtain(endpoint, policy, &last).and_then(|conn| {
                // The default wait: as long as one dial can take.
                let values = conn.values();
                let one_dial = values.ms(Key::ConnectTimeoutMs) + values.ms(Key::HandshakeTimeoutMs);
                let wait = wait.or(one_dial + Duration::from_millis(10));
                let deadline = *deadline.get_or_insert(begun + wait);
                if !wait.is_zero() {
                    conn.wait_ready(deadline).map_err(|e| self.with_next_step(endpoint, e))?;
                }
                Ok(conn.id())
            });
            let error = match tried {
                Err(e) if retry && matches!(e.status, Status::ConnectFailed | Status::PeerLost | Status::Backoff) => e,
                result => return result,
            };
            // One dial for each backoff step. A fence that is set from here on ends the retries.
            policy = DialPolicy::Again(options, begun);
            let deadline = *deadline.get_or_insert(begun + wait.or(one_dial));
            self.wait_for_step(endpoint, policy, deadline, &error)?;
        }
    }

    /// Adds to the error of an ended connection when the next dial is allowed, if the next call would dial.
    pub(super) fn with_next_step(&self, endpoint: &Endpoint, error: Error) -> Error {
        let ended = matches!(error.status, Status::ConnectFailed | Status::PeerLost);
        match ended.then(|| self.sets().cache.next_step(endpoint)).flatten() {
            Some(wait) => error.retry_after(wait),
            None => error,
        }
    }

    fn one_dial(&self) -> Duration {
        let values = &self.sets().values;
        values.ms(Key::ConnectTimeoutMs) + values.ms(Key::HandshakeTimeoutMs)
    }

    /// Waits until the endpoint may be dialled again. An error if it must not, or if the deadline comes first.
    fn wait_for_step(
        &self,
        endpoint: &Endpoint,
        policy: DialPolicy<'_>,
        deadline: Instant,
        last: &Error,
    ) -> Result<()> {
        let mut sets = self.open_sets()?;
        loop {
            let wait = match sets.cache.admit(endpoint, policy, &sets.values) {
                Err(e) if e.status == Status::Backoff => e.retry_after.unwrap_or_default(),
                Err(e) => return Err(e),
                Ok(_) => return Ok(()),
            };
            let now = Instant::now();
            if now >= deadline {
                let text = format!("not READY within the time given; the last dial: {}", last.message);
                return Err(Error::new(Status::Timeout, text).errno(last.os_errno).at(endpoint));
            }
            let again = (now + wait + Duration::from_millis(1)).min(deadline);
            self.fenced.wait_until(&mut sets, again);
            if let Some(status) = sets.closed {
                return Err(Error::new(status, "the manager was closed").at(endpoint));
            }
        }
    }

    /// Parses an endpoint. Canonical text that is already known needs no parsing.
    pub(crate) fn endpoint(&self, text: &str) -> Result<Endpoint> {
        if let Some((known, _)) = self.sets().cache.get(text) {
            return Ok(known.clone());
        }
        Endpoint::parse(text).map_err(|e| Error::invalid(e.to_string()).at(shorten(text)))
    }

    /// The live connection, or a new one whose dial has begun.
    pub(super) fn obtain(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        policy: DialPolicy<'_>,
        deadline: &dyn Fn() -> Instant,
    ) -> Result<Arc<Connection>> {
        let obtained = self.current_or_dialled(endpoint, policy, deadline);
        obtained.inspect_err(|e| self.counts.dials_refused.add(e.status))
    }

    fn current_or_dialled(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        mut policy: DialPolicy<'_>,
        deadline: &dyn Fn() -> Instant,
    ) -> Result<Arc<Connection>> {
        let begun = Instant::now();
        loop {
            let mut sets = self.open_sets()?;
            let values = match self.admit(&mut sets, endpoint, policy)? {
                Admission::Current(conn) => {
                    sets.cache.remember(endpoint, policy);
                    return Ok(conn);
                }
                Admission::Dial(values, _) => *values,
            };
            if let Some(mut flight) = self.take_off(sets, endpoint, deadline)?
                && let Some(conn) = self.dial(endpoint, policy, values, &mut flight)?
            {
                return Ok(conn);
            }
            // After a wait, a fence that was set meanwhile ends the call.
            if let DialPolicy::Connect(options) = policy {
                policy = DialPolicy::Again(options, begun);
            }
        }
    }

    /// Makes the sockets of a new connection and has them dialled; `None` if the settings have changed meanwhile.
    fn dial(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        policy: DialPolicy<'_>,
        values: Values,
        flight: &mut Flight<'_>,
    ) -> Result<Option<Arc<Connection>>> {
        // Everything that can run out is allocated outside the lock, and before the endpoint gets an entry.
        let made = self.runtime.engine().and_then(|engine| {
            if let Target::Name { .. } = endpoint.target() {
                self.runtime.resolver().prepare().map_err(|e| {
                    let text =
                        format!("no thread to look the name up can be made: {e}; raise RLIMIT_NPROC (ulimit -u)");
                    Error::limit(text).errno(e.raw_os_error().unwrap_or(0))
                })?;
            }
            let attempt = open_attempt((&engine.context, engine.watcher.inbox()), self.runtime.descriptors(), &values)?;
            Ok((engine, attempt))
        });
        let made = made.map_err(|e| e.at(endpoint)).inspect_err(|e| flight.failure = Some(e.clone()));
        let (engine, (attempt, push, monitor)) = made?;

        let admitted = self.open_sets().and_then(|mut sets| {
            let admission = self.admit(&mut sets, endpoint, policy)?;
            Ok((sets, admission))
        });
        match admitted {
            Ok((mut sets, Admission::Dial(now, options))) if *now == values => {
                let conn = Connection::new(
                    endpoint.clone(),
                    (self.clone(), self.events.clone()),
                    Arc::new(values),
                    (attempt, push),
                    sets.cache.addresses(endpoint),
                    (engine.watcher.clone(), self.runtime.bytes().reservation()),
                    self.runtime.registry(),
                );
                sets.cache.connected(&conn, options);
                sets.past.dials += 1;
                self.runtime.registry().add(&conn);
                // Under the lock, so that any call that ends it from now on closes a socket that is watched.
                engine.watcher.watch(attempt, monitor, conn.clone());
                Ok(Some(conn))
            }
            other => {
                // The endpoint was fenced, or the settings have changed and this socket was made with the old ones.
                let refused = other.map(drop);
                engine.watcher.discard(attempt, push, monitor);
                refused.map(|()| None)
            }
        }
    }

    /// Asks the cache. If there is no room, `evict_idle` may make some.
    fn admit(&self, sets: &mut Sets, endpoint: &Endpoint, policy: DialPolicy<'_>) -> Result<Admission> {
        match sets.cache.admit(endpoint, policy, &sets.values) {
            Err(e) if e.status == Status::Limit => {
                self.make_room(sets, 1, &[]).map_err(|e| e.at(endpoint))?;
                sets.cache.admit(endpoint, policy, &sets.values)
            }
            other => other,
        }
    }

    /// Checks for room for `more` endpoints. With `evict_idle`, evicts the longest idle connections, except those to
    /// `kept`.
    pub(super) fn make_room(&self, sets: &mut Sets, more: usize, kept: &[Endpoint]) -> Result<()> {
        loop {
            let full = match sets.cache.check_room(more, &sets.values) {
                Err(full) if sets.values.get(Key::EvictIdle) != 0 => full,
                result => return result,
            };
            // A connection whose lock is held is in use, not idle.
            let idlest = |idle: fn(&Connection) -> Option<Duration>| {
                let unowned = sets.cache.evictable().filter(|conn| !kept.contains(conn.endpoint()));
                unowned.filter_map(|conn| Some((idle(conn)?, conn.clone()))).max_by_key(|(idle, _)| *idle)
            };
            // Those that are not known to be idle were used later. Asking the kernel about each takes a microsecond.
            let idlest = idlest(Connection::try_known_idle).or_else(|| idlest(Connection::try_idle));
            let Some((idle, conn)) = idlest else { return Err(full) };
            let text = format!("idle for {} ms, and max_endpoints was reached", idle.as_millis());
            self.evict(sets, &conn, text);
        }
    }

    /// No thread waits in a call on an idle connection, so waking here under the lock is short.
    fn evict(&self, sets: &mut Sets, conn: &Arc<Connection>, text: String) {
        let mut after = Aftermath::default();
        self.end_together(sets, std::slice::from_ref(conn), End::new(Transition::Evict, text), &mut after);
        after.run();
    }

    /// Evicts a connection that has been idle for `limit`. Returns when to look again, if the connection lives on.
    pub(super) fn evict_idle(&self, conn: &Arc<Connection>, limit: Duration) -> Option<Duration> {
        let mut sets = self.sets();
        let idle = conn.lock().idle().unwrap_or_default();
        if idle >= limit {
            self.evict(&mut sets, conn, format!("idle for {} ms (option idle_timeout_ms)", idle.as_millis()));
        }
        // A message may have been sent in between. Then it was not evicted.
        let still_live = sets.cache.current(conn.endpoint()).is_some_and(|current| Arc::ptr_eq(current, conn));
        still_live.then(|| limit.saturating_sub(idle).max(limit / 8).max(Duration::from_millis(1)))
    }

    /// Ends the current connection to the endpoint, if there is one, and fences the endpoint. An unknown endpoint is
    /// fenced too.
    pub fn disconnect_endpoint(&self, endpoint: &str) -> Result<()> {
        let endpoint = self.endpoint(endpoint)?;
        let end = End::new(Transition::Disconnect, "disconnected by kvconn_disconnect_endpoint");
        let mut after = Aftermath::default();
        let mut sets = self.open_sets()?;
        if let Some(conn) = sets.cache.current(&endpoint).cloned() {
            self.end_together(&mut sets, &[conn], end, &mut after);
        }
        self.fence(&mut sets, &[endpoint], "kvconn_disconnect_endpoint");
        drop(sets);
        after.run();
        Ok(())
    }

    /// The live connection to an endpoint. Never dials. NOT_FOUND.
    pub fn find(&self, endpoint: &str) -> Result<ConnId> {
        let endpoint = self.endpoint(endpoint)?;
        match self.sets().cache.current(&endpoint) {
            Some(conn) => Ok(conn.id()),
            None => Err(Error::new(Status::NotFound, "no live connection to this endpoint").at(endpoint)),
        }
    }

    /// The live connections, oldest first.
    pub fn connections(&self) -> Vec<ConnId> {
        let mut ids: Vec<_> = self.sets().cache.iter().filter_map(|(_, entry)| Some(entry.current()?.id())).collect();
        ids.sort_unstable();
        ids
    }

    /// Connects if necessary, then sends, all within the timeout.
    pub fn send_to(
        self: &Arc<Self>,
        endpoint: &str,
        message: &mut dyn FnMut() -> Result<Message>,
        timeout: Timeout,
    ) -> Result<(ConnId, u64)> {
        let endpoint = self.endpoint(endpoint)?;
        let begun = Instant::now();
        let timeout = timeout.or(self.send_timeout());
        loop {
            let conn = self.obtain(&endpoint, DialPolicy::SendTo, &|| begun + timeout.max(WAIT_FOR_CLOSING));
            let conn = conn.inspect_err(|e| self.counts.sends_refused.add(e.status))?;
            let left = timeout.saturating_sub(begun.elapsed());
            match conn.send_uncounted(message, Timeout::After(left)) {
                // Evicted between the two steps: the endpoint may be dialled again.
                Err(e) if e.status == Status::Evicted => {}
                sent => {
                    let sequence = conn.count_failure(sent).map_err(|e| self.with_next_step(&endpoint, e))?;
                    return Ok((conn.id(), sequence));
                }
            }
        }
    }
}

/// A text that is not an endpoint, for an error: cut to 64 characters, without control characters.
fn shorten(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
