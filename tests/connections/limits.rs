//! Limits: checked before anything is made, and told by name.

mod bytes;
mod descriptors;
mod endpoints;
mod idle;
mod many;
