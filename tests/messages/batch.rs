//! Batches: one deadline for many ranks, a result for each.

mod bounds;
mod interface;
mod order;
mod packed;
mod shared;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use crate::common::engine::after;
use kvconn::connection::Connection;
use kvconn::connection::batch::BatchFrames;
use kvconn::error::Result;
use kvconn::process::Process;

/// Sends one frame on each connection, in one batch.
fn send_frames(items: &[(&Arc<Connection>, &[u8])], timeout: Duration) -> Vec<Result<u64>> {
    let messages: Vec<_> = items.iter().map(|(conn, frame)| (*conn, vec![*frame])).collect();
    send_messages(&messages, timeout)
}

/// Sends one message on each connection, in one batch.
fn send_messages(items: &[(&Arc<Connection>, Vec<&[u8]>)], timeout: Duration) -> Vec<Result<u64>> {
    let items = items.iter().map(|(conn, frames)| (conn.id(), BatchFrames(frames)));
    Process::current().expect("a process").send_batch(items, after(timeout))
}
