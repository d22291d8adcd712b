//! What the integration tests share: peers in their own processes, wrong peers, networks that drop packets, and
//! waiting with a deadline. Every helper panics with what it waited for; nothing here sleeps and hopes.
//!
//! The `main.rs` of each test crate has it as its module `common`. Peers are the same test binary started again (see
//! `process.rs`), so a peer is up in a few milliseconds, is a real process that can be stopped and killed, and needs
//! nothing installed.
#![allow(dead_code, unused_imports)] // no crate needs all of it

pub mod engine;
pub mod load;
pub mod names;
pub mod namespace;
pub mod own_process;
pub mod peer;
pub mod peer_main;
pub mod probe;
pub mod process;
pub mod random;
pub mod raw_peer;
pub mod tcp_view;
pub mod traffic;
pub mod wrong_peer;

pub use engine::Engine;
pub use namespace::Namespace;
pub use own_process::{OwnProcess, test_path};
pub use peer::{Message, Peer, PeerOptions, Received};
pub use probe::{
    Descriptors, descriptors_at_rest, held_descriptors, open_descriptors, processor_time, resident_bytes, threads,
};
pub use random::Random;
pub use raw_peer::RawPeer;
pub use tcp_view::TcpView;
pub use traffic::{TcpTraffic, tcp_traffic};
pub use wrong_peer::{ClosedPort, WrongPeer, closed_port};

use std::time::{Duration, Instant};

/// Polls every millisecond until `condition` holds; panics with `what` after `deadline`.
#[track_caller]
pub fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < deadline, "waited {deadline:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `call` and panics when it took longer than `limit`. The call is not interrupted: a call that never returns is
/// the test runner's to end.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = call();
    let took = begun.elapsed();
    assert!(took <= limit, "{what} took {took:?}, allowed are {limit:?}");
    result
}

/// How long a stress or soak test runs: `KVCONN_SOAK_SECONDS` when it is set (`make stress`), else `everyday`.
pub fn soak_time(everyday: Duration) -> Duration {
    match std::env::var("KVCONN_SOAK_SECONDS") {
        Ok(text) => match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => panic!("KVCONN_SOAK_SECONDS={text} is not a number of seconds"),
        },
        Err(_) => everyday,
    }
}

/// Shorthand for deadlines.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns from the test, printing why, when what it needs (`Result<(), String>`) is not there on this machine.
#[macro_export]
macro_rules! skip_unless {
    ($available:expr) => {
        if let Err(reason) = $available {
            println!("SKIPPED: {reason}");
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
}

/// The path of the test function it stands in, as the test runner spells it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::common::test_path(&here)
    }};
}
