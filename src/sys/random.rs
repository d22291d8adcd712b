//! Random bits from the kernel.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// 64 random bits. Cannot fail, and does not wait: a kernel that has none to give, or a sandbox in the way, leaves
/// what differs between processes and between the copies of a library in one process.
pub(crate) fn bits() -> u64 {
    let mut bits: u64 = 0;
    loop {
        // SAFETY: 8 live bytes.
        let n = unsafe { libc::getrandom(std::ptr::from_mut(&mut bits).cast(), 8, libc::GRND_NONBLOCK) };
        match n {
            8 => return bits,
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return guess(),
        }
    }
}

/// A hash of the process, the time, and where this copy of the library and the stack are.
fn guess() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    hasher.write_u32(std::process::id());
    hasher.write_i64(time.tv_sec);
    hasher.write_i64(time.tv_nsec);
    hasher.write_usize((&raw const CALLS).addr());
    hasher.write_usize((&raw const time).addr());
    hasher.write_u64(CALLS.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_same_bits_do_not_come_again() {
        for source in [bits, guess] {
            let all: HashSet<u64> = (0..1000).map(|_| source()).collect();
            assert_eq!(all.len(), 1000);
            // The high ones are random as well.
            assert!(all.iter().map(|bits| bits >> 34).collect::<HashSet<_>>().len() > 900);
        }
    }
}
