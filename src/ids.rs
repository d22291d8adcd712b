//! Ids: numbers that are used once and never again, in this process and in its forked children.
//!
//! Two copies of the library in one process count apart. Each starts at random high bits, so that an id of one copy
//! is STALE in the other, and not another connection.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::random;

/// One counter for all kinds of ids, so that an id of one kind is never valid as another. 0 before the first id. A
/// forked child continues the parent's count, so that the parent's ids mean nothing in it.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// How many low bits of the first id are not random. More than 2^32 ids run on into the high bits.
const COUNTED_BITS: u32 = 32;
/// How many bits above those are random. Two copies have the same ones once in a thousand million times. The rest stays
/// zero: an id is positive also where 64-bit numbers have a sign.
const RANDOM_BITS: u32 = 30;

fn next() -> u64 {
    if NEXT.load(Ordering::Relaxed) == 0 {
        // No lock: a fork could leave it locked. One thread's number is taken, whichever is first.
        let _ = NEXT.compare_exchange(0, first(random::bits()), Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The first id with these random bits: never 0, and far below 2^63.
fn first(bits: u64) -> u64 {
    let high = bits >> (u64::BITS - RANDOM_BITS);
    (high.max(1) << COUNTED_BITS) + 1
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl $name {
            /// No id.
            pub const NONE: $name = $name(0);

            /// An id that was never used before.
            pub(crate) fn fresh() -> $name {
                $name(next())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One life of one PUSH socket to one endpoint.
    ConnId
);
id!(
    /// One life of a peer instance.
    NodeId
);
id!(
    /// A manager; 0 is the process's own.
    ManagerId
);
id!(
    /// One dial attempt (socket and monitor). A dial over several addresses makes several.
    AttemptId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_is_large_and_leaves_room() {
        for bits in [0, 1, u64::MAX, 0x8000_0000_0000_0000, random::bits()] {
            let first = first(bits);
            assert!(
                first > 1 << COUNTED_BITS && first < 1 << (COUNTED_BITS + RANDOM_BITS),
                "{bits:#x} gives {first:#x}"
            );
        }
    }

    #[test]
    fn threads_that_begin_together_get_different_ids() {
        let ids: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| [(); 100].map(|()| next()))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let different: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(different.len(), ids.len());
        assert!(ids.iter().all(|id| *id > 1 << COUNTED_BITS && *id < 1 << 63));
    }
}
