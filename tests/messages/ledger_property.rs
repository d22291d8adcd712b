//! Guarantee 5 as a property: whatever happens to a connection, its account is right to the byte, and whoever sends the
//! unacknowledged again leaves no hole.

mod endings;
mod messages;
mod reader;
mod stories;
