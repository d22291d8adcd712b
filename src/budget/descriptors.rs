//! How many descriptors kvconn's connections may hold. Checked before anything is made, so that a later step rarely runs
//! out of them. It still can: what the rest of the process has open is not counted, and may grow between the check and
//! libzmq's TCP socket. `docs/limits.md` says how to set `max_descriptors` so that it cannot.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::sys::descriptor;
use crate::sys::thread::spawn_quiet;

/// The process's budget. A closing connection counts until libzmq has closed its descriptors.
pub(crate) struct DescriptorBudget {
    in_use: AtomicUsize,
    /// Option `max_descriptors`. 0: no limit besides the process's RLIMIT_NOFILE.
    limit: AtomicUsize,
    /// How large the kernel's table of descriptors has been made.
    table: AtomicUsize,
}

/// Reserved descriptors. Returned when dropped.
pub(crate) struct Lease {
    budget: Arc<DescriptorBudget>,
    count: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.in_use.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// The size of the kernel's table of descriptors that is asked for at first.
const FIRST_TABLE: usize = 256;
/// Descriptors below the limit that are left to the rest of the process while the table grows.
const LEFT_TO_OTHERS: usize = 64;

/// Free descriptors required beyond those needed, for what other threads of the process open in the meantime.
const MARGIN: usize = 2;

impl DescriptorBudget {
    pub(crate) const fn new() -> DescriptorBudget {
        DescriptorBudget { in_use: AtomicUsize::new(0), limit: AtomicUsize::new(0), table: AtomicUsize::new(0) }
    }

    /// Sets `max_descriptors`.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// How many are reserved now.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// How many there may be: `max_descriptors`, or the process's limit.
    pub(crate) fn limit(&self) -> u64 {
        match self.limit.load(Ordering::Relaxed) {
            0 => nofile().0,
            limit => limit as u64,
        }
    }

    /// Has the kernel's table of descriptors grow before it is full. `number` is a descriptor that was just made.
    ///
    /// In a process with threads the kernel waits while it makes the table larger: some milliseconds, and seconds on a
    /// machine whose processors are all busy. Every thread that needs the larger table waits too. Here nobody does: the
    /// table grows on a thread of its own. A failure only means that it grows later.
    pub(crate) fn keep_table_ahead(&self, number: RawFd) {
        let used = usize::try_from(number).unwrap_or_default() + 1;
        let table = self.table.load(Ordering::Relaxed);
        if 2 * used <= table || (used + LEFT_TO_OTHERS) as u64 > nofile().0 {
            return;
        }
        let larger = (4 * used).next_power_of_two().max(FIRST_TABLE);
        if self.table.compare_exchange(table, larger, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let highest = larger.min(usize::try_from(nofile().0).unwrap_or(larger)) - 1;
            let _ = spawn_quiet("kvconn-files", move || descriptor::make_room(highest as RawFd));
        }
    }

    /// Reserves `count` descriptors. The error names the limit that is reached.
    pub(crate) fn lease(self: &Arc<Self>, count: usize) -> Result<Lease> {
        let limit = self.limit.load(Ordering::Relaxed);
        let before = self.in_use.fetch_add(count, Ordering::Relaxed);
        let lease = Lease { budget: self.clone(), count };
        if limit != 0 && before + count > limit {
            return Err(Error::limit(format!(
                "max_descriptors is {limit}, {before} are in use, {count} more are needed; raise max_descriptors"
            )));
        }
        check_free(count + MARGIN)?;
        Ok(lease)
    }
}

/// Whether `count` descriptors can be opened now. The system gives the lowest free number. If the highest ones that the
/// limit allows are free, so many can be opened. Otherwise it is checked by opening them.
pub(crate) fn check_free(count: usize) -> Result<()> {
    let end = i32::try_from(nofile().0).unwrap_or(i32::MAX);
    let highest = end.saturating_sub(i32::try_from(count).unwrap_or(i32::MAX)).max(0)..end;
    if highest.len() == count && highest.into_iter().all(descriptor::is_free) {
        return Ok(());
    }
    check_by_opening(count)
}

fn check_by_opening(count: usize) -> Result<()> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        // SAFETY: takes no pointers.
        let made = descriptor::own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
        // Closed with the list.
        held.push(made.map_err(|e| {
            let (soft, _) = nofile();
            Error::limit(format!(
                "{count} free descriptors are needed, {} are left of RLIMIT_NOFILE {soft}; raise it (ulimit -n) or close some ({e})",
                held.len()
            ))
            .errno(e.raw_os_error().unwrap_or(0))
        })?);
    }
    Ok(())
}

/// The soft and the hard limit of open descriptors.
pub(crate) fn nofile() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live struct; cannot fail for this resource.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn free_descriptors_are_found_also_beside_one_with_the_highest_number() {
        let (soft, _) = nofile();
        check_free(4).expect("the limit is far");
        // SAFETY: no pointers; a copy at the highest number that is allowed.
        let highest = descriptor::own(unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, soft as libc::c_int - 1) });
        let highest = highest.expect("the highest number is free");
        assert_eq!(highest.as_raw_fd() as u64, soft - 1);
        check_free(4).expect("lower ones are free");
    }
}
