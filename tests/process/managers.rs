//! Managers: independent of each other, destroyed, emptied, described; the end of the process's own, and fork.

mod describe;
mod destroy;
mod disconnect_all;
mod independence;
mod shutdown;
