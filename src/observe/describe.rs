//! The present state as text, for a person at 3 a.m.

use std::fmt::{self, Write};
use std::io;
use std::os::fd::RawFd;

use crate::connection::{Connection, ConnectionInfo, ConnectionState};
use crate::error::{Error, Result, Status};
use crate::manager::cache::Entry;
use crate::manager::{Manager, Sets};
use crate::net::endpoint::Endpoint;
use crate::process::Process;

/// Whether to wait for locks, or to leave out what is behind them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    Wait,
    Try,
}

/// How many endpoints are described under one hold of the global lock.
const AT_ONCE: usize = 64;

impl Manager {
    /// The state of this manager.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.describe_waiting(&mut text);
        text
    }

    /// Gives the lock back between slices, so that describing ten thousand endpoints holds nobody up.
    fn describe_waiting(&self, out: &mut dyn Write) -> fmt::Result {
        let mut endpoints = {
            let sets = self.sets();
            self.write_head(out, &sets, Locks::Wait)?;
            sets.cache.iter().map(|(endpoint, _)| endpoint.clone()).collect::<Vec<_>>()
        };
        endpoints.sort_unstable();
        for some in endpoints.chunks(AT_ONCE) {
            let sets = self.sets();
            for endpoint in some {
                if let Some((endpoint, entry)) = sets.cache.get(endpoint.as_str()) {
                    write_entry(out, endpoint, entry, Locks::Wait)?;
                }
            }
        }
        Ok(())
    }

    /// The same without waiting for a lock. A text, because whoever writes it out may be kept waiting by the reader,
    /// and must not hold the lock meanwhile.
    fn describe_trying(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self.try_sets() {
            Some(sets) => self.write_head(&mut text, &sets, Locks::Try).and_then(|()| {
                sets.cache.iter().try_for_each(|(endpoint, entry)| write_entry(&mut text, endpoint, entry, Locks::Try))
            }),
            None => writeln!(text, "manager {}: its lock is held, nothing more can be told", self.id()),
        };
        text
    }

    fn write_head(&self, out: &mut dyn Write, sets: &Sets, locks: Locks) -> fmt::Result {
        write!(
            out,
            "manager {}: {} endpoints in use, {} known; ",
            self.id(),
            sets.cache.in_use(),
            sets.cache.iter().count(),
        )?;
        let events = match locks {
            Locks::Wait => Some(self.events().counts()),
            Locks::Try => self.events().try_counts(),
        };
        match events {
            Some((wait, lost)) => write!(out, "{wait} events wait, {lost} were lost; ")?,
            None => write!(out, "the lock of its events is held; ")?,
        }
        writeln!(out, "{} failure reports wait", sets.nodes.untaken_failures())?;
        for node in sets.nodes.live() {
            writeln!(
                out,
                "  node {:?}: life {}, open for {:.1} s, {} endpoints, {} requests, {} unhealthy reports in a row",
                node.name,
                node.node,
                node.age.as_secs_f64(),
                node.endpoints,
                node.requests,
                node.failures_in_row
            )?;
        }
        Ok(())
    }
}

fn write_entry(out: &mut dyn Write, endpoint: &Endpoint, entry: &Entry, locks: Locks) -> fmt::Result {
    write!(out, "  {endpoint}:")?;
    if let Some(conn) = entry.current() {
        let info = match locks {
            Locks::Wait => Some(conn.info()),
            Locks::Try => conn.try_info(),
        };
        write_connection(out, conn, info.as_ref())?;
    } else {
        write!(out, " not connected")?;
    }
    if let Some(fence) = entry.fence() {
        write!(out, "; {}", fence.error(endpoint).message)?;
    }
    if let Some((failures, left, text)) = entry.backoff() {
        write!(out, "; {failures} failed dials in a row, next one in {} ms at the soonest: {text}", left.as_millis())?;
    }
    writeln!(out)
}

fn write_connection(out: &mut dyn Write, conn: &Connection, info: Option<&ConnectionInfo>) -> fmt::Result {
    write!(out, " connection {}", conn.id())?;
    let Some(info) = info else { return write!(out, ", its lock is held") };
    match info.state {
        ConnectionState::Connecting => write!(out, " CONNECTING for {:.1} s", info.age.as_secs_f64())?,
        ConnectionState::Ready => write!(out, " READY for {:.1} s", info.ready_for.as_secs_f64())?,
        ConnectionState::Ended => write!(out, " {}: {}", info.status.name(), info.message)?,
    }
    write!(out, ", {} accepted", info.accepted)?;
    match info.acknowledged {
        Some(acknowledged) => write!(out, ", {acknowledged} acknowledged")?,
        None => write!(out, ", acknowledged: unknown")?,
    }
    write!(out, ", {} threads waiting", info.waiting)?;
    if info.stalled {
        write!(out, ", STALLED")?;
    }
    if info.rescues > 0 {
        write!(out, ", {} lost wake-ups (a defect)", info.rescues)?;
    }
    Ok(())
}

/// Writes the state of all managers to a descriptor, waiting for no lock: for a debugger, also on a process that hangs in
/// or after `kvconn_shutdown`.
pub fn dump(fd: RawFd) -> Result<()> {
    let process = Process::in_any_state()?;
    let mut out = FdWriter { fd, failure: None };
    let version = env!("CARGO_PKG_VERSION");
    let shut = if process.is_shut() { ", shut down" } else { "" };
    let written =
        writeln!(out, "kvconn {version}: {} descriptors set aside{shut}", process.runtime().descriptors().in_use())
            .and_then(|()| match process.try_managers() {
                Some(managers) => managers.iter().try_for_each(|manager| out.write_str(&manager.describe_trying())),
                None => writeln!(out, "the table of managers is held, nothing more can be told"),
            });
    match (written, out.failure) {
        (Ok(()), _) => Ok(()),
        (Err(_), failure) => {
            let e = failure.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO));
            if e.kind() == io::ErrorKind::TimedOut {
                return Err(Error::new(Status::Timeout, format!("descriptor {fd} takes nothing: nobody reads")));
            }
            Err(Error::invalid(format!("descriptor {fd} cannot be written: {e}")).errno(e.raw_os_error().unwrap_or(0)))
        }
    }
}

/// Writes straight to a descriptor that is not ours.
struct FdWriter {
    fd: RawFd,
    failure: Option<io::Error>,
}

impl Write for FdWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        /// What a pipe takes without waiting once poll says that it takes any.
        const AT_ONCE: usize = libc::PIPE_BUF;
        /// How long a reader may let us wait.
        const PATIENCE_MS: i32 = 1000;
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let mut polled = libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one live element; any number is allowed as a descriptor.
            if self.fd >= 0 && unsafe { libc::poll(&mut polled, 1, PATIENCE_MS) } == 0 {
                self.failure = Some(io::ErrorKind::TimedOut.into());
                return Err(fmt::Error);
            }
            // SAFETY: the bytes live for the call; any number is allowed as a descriptor.
            let n = unsafe { libc::write(self.fd, left.as_ptr().cast(), left.len().min(AT_ONCE)) };
            match usize::try_from(n) {
                Ok(n) => left = &left[n..],
                Err(_) => {
                    let e = io::Error::last_os_error();
                    if e.kind() != io::ErrorKind::Interrupted {
                        self.failure = Some(e);
                        return Err(fmt::Error);
                    }
                }
            }
        }
        Ok(())
    }
}
