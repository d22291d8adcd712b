//! Kernels whose TCP_INFO says nothing (field report R6).

use std::time::Duration;

use kvconn::error::Status;

use crate::common::engine::{refused, send};
use crate::common::{Engine, OwnProcess, Peer, ms};
use crate::refusing_kernel::{Rule, available, refuse};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// The answer has its full length, and every number in it is 0.
#[test]
fn byte_counters_that_stay_zero_are_noticed_at_ready() {
    skip_unless!(available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    refuse(&[Rule {
        call: libc::SYS_getsockopt,
        arguments: &[(1, libc::IPPROTO_TCP as u32), (2, libc::TCP_INFO as u32)],
        errno: 0,
    }]);
    let engine = Engine::with(&[("max_queued_bytes", "100000"), ("stall_ms", "100")]);
    let conn = engine.ready(peer.endpoint());
    // Four times what may be queued: what libzmq has given to the kernel does not stay on the account.
    for _ in 0..40 {
        send(&conn, &[&[b'x'; 10_000]], LIMIT).expect("room");
    }
    peer.wait_received(40, LIMIT);
    let (flushed, acknowledged) = conn.flush(0, kvconn::timeout::Timeout::After(LIMIT));
    refused(flushed, Status::Unsupported);
    assert_eq!(acknowledged, 0);
    std::thread::sleep(ms(300));
    let info = conn.info();
    assert_eq!((info.accepted, info.acknowledged, info.stalled), (40, None, false));
}
