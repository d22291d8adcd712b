//! Ids: numbers that are used once and never again, in this process and in its forked children.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// One counter for all kinds of ids, so that an id of one kind is never valid as another. A forked child continues the
/// parent's count, so that the parent's ids mean nothing in it.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
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
