//! Guarantee 5 as a property: whatever happens to a connection, its account is right to the byte, and whoever sends the
//! unacknowledged again leaves no hole.

mod common;

#[path = "ledger_property/endings.rs"]
mod endings;
#[path = "ledger_property/messages.rs"]
mod messages;
#[path = "ledger_property/stories.rs"]
mod stories;
