//! A connection that is closed while its peer dies under load: libzmq 4.3.5 as released aborts the process there.

use std::time::{Duration, Instant};

use crate::common::engine::{Engine, after};
use crate::common::{OwnProcess, Peer, PeerOptions};
use crate::test_name;
use kvconn::connection::message::Message;

/// Scenario 2, and its whole kind: the queue holds messages of several frames, one of which has gone out in part, when
/// the peer is killed and the connection is closed at the same moment.
#[test]
fn closing_beside_a_dying_peer_does_not_abort_the_process() {
    let process = OwnProcess::new(test_name!()).limit(Duration::from_secs(60));
    if process.parent() {
        return;
    }
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1"), ("send_hwm", "50")]);
    let mut peer = Peer::with(PeerOptions { log: false, rcvhwm: 10, rcvbuf: 65_536, ..PeerOptions::default() });
    for round in 0..160 {
        let conn = engine.ready(peer.endpoint());
        peer.stop();
        let frame = vec![0; 3000];
        let mut message = || Message::from_frames((0..12).map(|_| &frame[..]));
        while conn.send(&mut message, after(Duration::ZERO)).is_ok() {}
        // The kernel takes a moment to take the process down; close at every point of that time.
        let pid = i32::try_from(peer.pid()).unwrap();
        // SAFETY: only sends a signal, to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let killed = Instant::now();
        while killed.elapsed() < Duration::from_micros(round * 25) {
            std::hint::spin_loop();
        }
        conn.disconnect().unwrap();
        peer.restart();
    }
}
