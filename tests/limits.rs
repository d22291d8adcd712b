//! Limits: checked before anything is made, and told by name.

mod common;

#[path = "limits/descriptors.rs"]
mod descriptors;
#[path = "limits/endpoints.rs"]
mod endpoints;
#[path = "limits/many.rs"]
mod many;
