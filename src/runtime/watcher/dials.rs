//! Dials: the look-up of a name, one address after the other, and what comes of a dial.

use std::cmp::Reverse;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use super::{Command, DialAttempt, ResolvedRoutes, Timer, Watch, queue};
use crate::connection::dial::{Dial, DialFailure, Verdict};
use crate::connection::socket::{Monitor, open_attempt};
use crate::connection::{Connection, End, Transition};
use crate::ids::AttemptId;
use crate::log::{self, Level};
use crate::net::endpoint::Target;
use crate::net::route::Route;
use crate::runtime::resolve::ResolveError;
use crate::sys::descriptor;

impl Watch {
    /// Watches and dials a new connection.
    pub(super) fn begin(&mut self, attempt: AttemptId, monitor: Monitor, conn: Arc<Connection>) {
        let now = Instant::now();
        let values = conn.values();
        let mut dial = Dial::new(now, values, conn.addresses().clone());
        let route = Route::new(values.source_address(), values.interface().cloned());
        match conn.endpoint().target() {
            Target::Address(address) => dial.addresses([route.to(*address).map_err(DialFailure::from)]),
            Target::Ipc { path } => dial.addresses([Ok(c_text(format!("ipc://{path}")))]),
            Target::Name { .. } => {} // the look-up brings them
        }
        let due = dial.due();
        self.insert(attempt, monitor, Some(conn.clone()), Some(dial));
        match conn.endpoint().target() {
            Target::Name { host, port } => {
                self.timers.push(Reverse((due, Timer::Dial(attempt))));
                self.look_up(attempt, host, *port, route, due);
            }
            _ => self.dial_next(attempt),
        }
    }

    fn look_up(&mut self, attempt: AttemptId, host: &str, port: u16, route: Route, until: Instant) {
        let (commands, wake) = (self.commands.clone(), self.wake.clone());
        let done = move |found: std::result::Result<Vec<_>, ResolveError>| {
            let found = match found {
                Ok(addresses) => Ok(addresses.into_iter().map(|to| route.to(to).map_err(DialFailure::from)).collect()),
                Err(e) => Err((e.os_errno, e.to_string())),
            };
            queue(&commands, &wake, [Command::Resolved { attempt, found }]);
        };
        if let Err(e) = self.resolver.resolve(host, port, until, Box::new(done)) {
            let text = format!("no thread to look the name up: {e}");
            self.resolved(attempt, Err((e.raw_os_error().unwrap_or(0), text)));
        }
    }

    pub(super) fn resolved(&mut self, attempt: AttemptId, found: ResolvedRoutes) {
        let Some(dial) = self.attempts.get_mut(&attempt).and_then(|attempt| attempt.dial.as_mut()) else { return };
        match found {
            Ok(addresses) => {
                dial.addresses(addresses);
                self.dial_next(attempt);
            }
            Err((os_errno, text)) => {
                let verdict = dial.failed(Instant::now(), os_errno, &text);
                self.follow(attempt, verdict);
            }
        }
    }

    /// Dials the next address on this dial attempt's new socket, when it is its turn.
    fn dial_next(&mut self, id: AttemptId) {
        let Some(DialAttempt { conn: Some(conn), .. }) = self.attempts.get(&id) else { return };
        let hurried = conn.lock().is_hurried();
        self.pacing.queue(id, hurried, Instant::now());
    }

    /// It is this dial attempt's turn. It has waited since then.
    pub(super) fn dial(&mut self, id: AttemptId, since: Instant) {
        let now = Instant::now();
        let Some(DialAttempt { conn: Some(conn), dial: Some(dial), .. }) = self.attempts.get_mut(&id) else { return };
        dial.waited(now.saturating_duration_since(since));
        let Some(address) = dial.next_address(now) else {
            let verdict = dial.failed(now, libc::EADDRNOTAVAIL, "the name has no address");
            return self.follow(id, verdict);
        };
        let inner = conn.lock();
        if !inner.has_attempt(id) {
            return; // it has ended, and the command to close is queued
        }
        let dialled = inner.socket().map_or(Ok(()), |push| push.dial(&address));
        drop(inner);
        log::log(Level::Debug, || format!("connection {} dials {}", conn.id(), address.to_string_lossy()));
        match dialled {
            Ok(()) => {
                self.timers.push(Reverse((dial.due(), Timer::Dial(id))));
                self.pacing.dialled(id);
            }
            Err(e) => {
                let text = format!("libzmq does not dial {}: {e}", address.to_string_lossy());
                let verdict = dial.failed(now, e.raw_os_error().unwrap_or(0), &text);
                self.follow(id, verdict);
            }
        }
    }

    /// A descriptor of our own for the dial attempt's TCP connection. `None` if it needs none, or is over. An error if no
    /// descriptor is left.
    pub(super) fn own_descriptor(&self, id: AttemptId) -> io::Result<Option<OwnedFd>> {
        let wanted = |attempt: &&DialAttempt| attempt.conn.as_ref().is_some_and(|conn| conn.values().acknowledgement());
        let Some(fd) = self.attempts.get(&id).filter(wanted).and_then(|attempt| attempt.tcp) else { return Ok(None) };
        // The number may mean another file by now; the caller checks that.
        match descriptor::duplicate(fd) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Err(e),
            own => Ok(own.ok()),
        }
    }

    /// Fails a dial after its handshake. kvconn needs a descriptor of its own to count what is acknowledged, and to notice every
    /// loss.
    pub(super) fn fail_without_descriptor(&mut self, id: AttemptId, error: &io::Error) {
        let Some(DialAttempt { dial: Some(dial), closing: false, .. }) = self.attempts.get_mut(&id) else { return };
        let text = format!("no descriptor is left to watch the connection: {error}; raise RLIMIT_NOFILE (ulimit -n)");
        let verdict = dial.failed(Instant::now(), error.raw_os_error().unwrap_or(libc::EMFILE), &text);
        self.follow(id, verdict);
    }

    pub(super) fn dial_due(&mut self, attempt: AttemptId, now: Instant) {
        if self.pacing.is_queued(attempt) {
            return; // its time begins with its turn
        }
        let Some(DialAttempt { conn: Some(conn), dial: Some(dial), .. }) = self.attempts.get_mut(&attempt) else {
            return;
        };
        let verdict = dial.on_time(now, || match conn.endpoint().target() {
            Target::Name { host, .. } => self.resolver.waits_behind(host),
            _ => None,
        });
        if verdict == Verdict::Wait {
            // The dial has entered another phase since the timer was set.
            self.timers.push(Reverse((dial.due(), Timer::Dial(attempt))));
        }
        self.follow(attempt, verdict);
    }

    /// Acts on the verdict of a dial.
    pub(super) fn follow(&mut self, id: AttemptId, verdict: Verdict) {
        let Some(DialAttempt { conn: Some(conn), dial, .. }) = self.attempts.get_mut(&id) else { return };
        let conn = conn.clone();
        match verdict {
            Verdict::Wait => {}
            Verdict::Failed(failure) => {
                *dial = None;
                let end = End::new(Transition::DialFailed, failure.message).errno(failure.os_errno);
                conn.owner().end(&conn, end);
            }
            Verdict::TryNext => {
                if let Some(dial) = dial.take() {
                    self.dial_on_new_socket(&conn, dial);
                }
            }
        }
    }

    /// Goes on to the next address, with a new socket: a libzmq socket is dialled only once.
    fn dial_on_new_socket(&mut self, conn: &Arc<Connection>, dial: Dial) {
        let made = open_attempt((&self.context, &self.inbox), &self.descriptors, conn.values());
        let (id, push, monitor) = match made {
            Ok(attempt) => attempt,
            Err(e) => {
                let end = End::new(Transition::DialFailed, e.message).errno(e.os_errno);
                conn.owner().end(conn, end);
                return;
            }
        };
        conn.attempt_opened();
        self.insert(id, monitor, Some(conn.clone()), Some(dial));
        match conn.lock().replace_attempt(id, push) {
            Ok((old, push)) => self.close(old, push),
            Err(push) => return self.close(id, push), // it has ended
        }
        self.dial_next(id);
    }
}

/// Converts to a C text. The texts come from parsed endpoints and contain no NUL.
fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}
