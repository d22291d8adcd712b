//! Guarantee 5 as a property: whatever happens to a connection, its account is right to the byte, and sending the
//! unacknowledged messages again leaves no hole.

mod endings;
mod messages;
mod random_runs;
mod reader;
