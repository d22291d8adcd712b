//! What is written down: the header, the binary interface, the documents, and what C may pass to each function.
// Each of the modules includes the header's generator and parser for itself.
#![allow(clippy::duplicate_mod)]

#[path = "../common/mod.rs"]
mod common;

mod abi;
mod arguments;
mod header;
