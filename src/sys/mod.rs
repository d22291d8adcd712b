//! The operating system, without terms of kvconn's own: clocks, locks, threads, descriptors.

pub(crate) mod clock;
pub(crate) mod descriptor;
pub(crate) mod epoll;
pub(crate) mod foreign_fd;
pub(crate) mod fork;
pub(crate) mod lock;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod wake;
