//! Limits: checked before anything is made, and told by name.

mod common;

#[path = "limits/bytes.rs"]
mod bytes;
#[path = "limits/descriptors.rs"]
mod descriptors;
#[path = "limits/endpoints.rs"]
mod endpoints;
#[path = "limits/idle.rs"]
mod idle;
#[path = "limits/many.rs"]
mod many;
