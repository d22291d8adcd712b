//! What is written down: the header, the binary interface, the documents, and what C may pass to each function.

#[path = "../common/mod.rs"]
mod common;

mod abi;
mod arguments;
mod header;
