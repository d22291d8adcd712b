//! Every system call that kvconn and its libzmq make fails, at each of its places in a connection's life, with each
//! errno that it may have. `sweep.c` says how.

use crate::programs::{compile, run};

/// A part of the cases, or all of them with KVCONN_SWEEP=full (many minutes): no abort, no hang, no late call, no
/// descriptor and no thread left, and everything works when nothing fails any more.
#[test]
fn no_errno_of_a_system_call_ends_the_process() {
    let extent = std::env::var("KVCONN_SWEEP").unwrap_or_else(|_| "fast".into());
    let (output, text) = run(&compile("sweep.c", "sweep"), &[&extent]);
    println!("{text}");
    assert!(output.status.success(), "{}:\n{text}", output.status);
    // It has swept: "all | | runs | reached | …".
    let all = text.lines().find(|line| line.starts_with("| all |")).expect("a table");
    let reached: u32 = all.split('|').nth(4).and_then(|cell| cell.trim().parse().ok()).expect("a number");
    assert!(reached > 300, "{all}");
}
