//! The tests of the tests: peers are real, processes and networks are of a test's own, and the map is true.

#[path = "../common/mod.rs"]
mod common;

mod map;
mod tools;
