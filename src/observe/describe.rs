//! The present state as text, for operators.

use std::fmt::{self, Write};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::connection::{Connection, ConnectionInfo, ConnectionState};
use crate::error::{Error, Result, Status};
use crate::events::Losses;
use crate::ids::ManagerId;
use crate::manager::cache::Entry;
use crate::manager::{Manager, Sets};
use crate::net::endpoint::Endpoint;
use crate::process::Process;
use crate::sys::foreign_fd;

/// Whether to wait for locks, or to leave out what they guard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    Wait,
    Try,
}

/// How long the reader of a dump may keep it waiting at a time.
const PATIENCE: Duration = Duration::from_secs(1);
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

    /// Releases the global lock between slices, so that describing ten thousand endpoints delays no other thread much.
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
        write_losses(out, &self.events().losses())
    }

    /// The same without waiting for a lock. Returns a text, because the reader may delay whatever writes it out, and no
    /// lock may be held during that.
    fn describe_trying(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self.try_sets() {
            Some(sets) => self.write_head(&mut text, &sets, Locks::Try).and_then(|()| {
                sets.cache.iter().try_for_each(|(endpoint, entry)| write_entry(&mut text, endpoint, entry, Locks::Try))
            }),
            None => writeln!(text, "manager {}: its lock is held, its endpoints and nodes are left out", self.id()),
        };
        let _ = match self.events().try_losses() {
            Some(losses) => write_losses(&mut text, &losses),
            None => writeln!(text, "  the last losses: the lock of the events is held"),
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
        out.write_str(&sets.values.describe(self.id() == ManagerId::NONE))?;
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

/// The last losses of connections and nodes, newest first: what the log says of them, and how long ago it was.
fn write_losses(out: &mut dyn Write, losses: &Losses) -> fmt::Result {
    losses.iter().try_for_each(|event| {
        // By the wall clock, which may have been set meanwhile.
        let ago = event.at.elapsed().unwrap_or_default();
        writeln!(out, "  lost {:.1} s ago: {event}", ago.as_secs_f64())
    })
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
    if info.waiting > 0 {
        write!(out, ", the longest for {:.1} s", info.longest_wait.as_secs_f64())?;
    }
    if info.stalled {
        write!(out, ", STALLED for {:.1} s", info.without_progress.as_secs_f64())?;
    }
    if info.rescues > 0 {
        write!(out, ", {} lost wake-ups (a defect)", info.rescues)?;
    }
    Ok(())
}

/// Writes the state of all managers to a descriptor without waiting for a lock. For a debugger, also on a process that
/// hangs in or after `kvconn_shutdown`.
pub fn dump(fd: RawFd) -> Result<()> {
    let process = Process::in_any_state()?;
    let version = env!("CARGO_PKG_VERSION");
    let shut = if process.is_shut() { ", shut down" } else { "" };
    let descriptors = process.runtime().descriptors().in_use();
    let write = |text: &str| foreign_fd::write_all(fd, text.as_bytes(), PATIENCE);
    let written = write(&format!("kvconn {version}: {descriptors} descriptors reserved{shut}\n")).and_then(|()| {
        match process.try_managers() {
            Some(managers) => managers.iter().try_for_each(|manager| write(&manager.describe_trying())),
            None => write("the lock of the table of managers is held, nothing more is known\n"),
        }
    });
    written.map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => {
            Error::new(Status::Timeout, format!("descriptor {fd} takes no data: its reader does not read"))
        }
        _ => Error::invalid(format!("descriptor {fd} cannot be written: {e}")).errno(e.raw_os_error().unwrap_or(0)),
    })
}
