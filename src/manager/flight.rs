//! Single flight: of the threads that want to dial one endpoint at the same time, one makes the sockets. The others
//! wait for its result, so that an endpoint costs the descriptors of one dial, however many threads ask.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Manager, Sets};
use crate::connection::Connection;
use crate::error::{Error, Result, Status};
use crate::net::endpoint::Endpoint;
use crate::sys::lock::MutexGuard;

/// How many connections to one endpoint may be closing when another one is made.
const MAX_CLOSING: usize = 16;
/// How long a call may wait for closing sockets, also one that has no time to wait.
pub(super) const WAIT_FOR_CLOSING: Duration = Duration::from_millis(8);
/// A flight takes some hundred microseconds of work. This long after the deadline its thread must be starved or
/// stopped.
const STARVED: Duration = Duration::from_millis(500);
/// How long a thread waits for closing sockets before it asks again whether the endpoint may be dialled at all.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The endpoints for which sockets are being made, and what became of it: the error if it failed.
#[derive(Default)]
pub(super) struct Flights(HashMap<Endpoint, Arc<OnceLock<Option<Error>>>>);

/// Leave to make the sockets of an endpoint. Dropping it wakes the threads that wait for the result, and takes the
/// global lock for that: the lock must not be held.
pub(super) struct Flight<'a> {
    manager: &'a Manager,
    endpoint: &'a Endpoint,
    /// What the waiting threads get as their own result.
    pub(super) failure: Option<Error>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(result) = self.manager.sets().flights.0.remove(self.endpoint) {
            // Only this flight sets it.
            let _ = result.set(self.failure.take());
        }
        self.manager.landed.notify_all();
    }
}

impl Manager {
    /// Leave to make the sockets of an endpoint that may be dialled. `None`: the caller has waited for another thread's
    /// flight, or for sockets that are closing, and must look again. An error: that flight failed, or the wait was not
    /// over at the deadline. A flight takes a few system calls, as one of the caller's own would. `deadline` takes no
    /// lock.
    pub(super) fn take_off<'a>(
        &'a self,
        mut sets: MutexGuard<'_, Sets>,
        endpoint: &'a Endpoint,
        deadline: &dyn Fn() -> Instant,
    ) -> Result<Option<Flight<'a>>> {
        if let Some(result) = sets.flights.0.get(endpoint).cloned() {
            let until = deadline() + STARVED;
            // A fence and the end of the manager end this wait as well: the caller looks again, and finds them.
            let timed_out = result.get().is_none() && self.landed.wait_until(&mut sets, until).timed_out();
            return match result.get() {
                Some(failure) => failure.clone().map_or(Ok(None), Err),
                None if timed_out => {
                    let text = "another thread is still making the sockets of this endpoint; try again";
                    Err(Error::new(Status::Timeout, text).errno(libc::EAGAIN).at(endpoint))
                }
                None => Ok(None),
            };
        }
        let closing = sets.cache.closing(endpoint);
        if closing.len() >= MAX_CLOSING {
            drop(sets);
            return self.wait_for_closing(&closing, deadline()).map_err(|e| e.at(endpoint)).map(|()| None);
        }
        sets.flights.0.insert(endpoint.clone(), Arc::default());
        Ok(Some(Flight { manager: self, endpoint, failure: None }))
    }

    /// Waits a moment for some of these sockets to be closed. TIMEOUT after the deadline.
    fn wait_for_closing(&self, closing: &[Arc<Connection>], deadline: Instant) -> Result<()> {
        let left = || closing.iter().filter(|conn| conn.gone().is_none()).count();
        let mut pulse = self.closed_signal.0.lock();
        let now = Instant::now();
        if left() >= MAX_CLOSING && now < deadline {
            self.closed_signal.1.wait_until(&mut pulse, deadline.min(now + ASK_AGAIN));
        } else if left() >= MAX_CLOSING {
            // Not LIMIT: the threads that close them are late. There is nothing that the caller could raise.
            let text = format!(
                "not dialled within the time given: {} connections to this endpoint are still being closed; try again",
                left()
            );
            return Err(Error::new(Status::Timeout, text).errno(libc::EAGAIN));
        }
        Ok(())
    }
}
