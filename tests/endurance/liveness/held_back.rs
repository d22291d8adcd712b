//! What libzmq holds back because the kernel has no room is not taken for heartbeats' answers that were never sent.

use std::time::Duration;

use crate::common::engine::{after, send};
use crate::common::{Engine, Namespace, OwnProcess, PeerOptions, TcpView, ms, wait_until};
use crate::{skip_unless, test_name};

const LONG: Duration = Duration::from_secs(20);

/// A peer has sent heartbeats for a while, then packets are dropped. The little that the kernel takes is sent and not
/// acknowledged; the rest, as many bytes as some answers to heartbeats would have, is with libzmq.
#[test]
fn a_message_that_libzmq_holds_is_not_acknowledged_however_long_nothing_moves() {
    skip_unless!(Namespace::available());
    // The size of the kernel's buffers is one of the network's.
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 4096 4096").expect("a network of its own");
    let network = Namespace::new();
    let peer = network.peer(PeerOptions { heartbeat: ms(2), log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "100000"), ("stall_ms", "100")]);
    let conn = engine.ready(peer.endpoint());
    let view = TcpView::of(peer.endpoint());
    wait_until("hundreds of PINGs have come", LONG, || view.received() > 600 * 9);
    // On the wire each takes as much as fifteen PONGs.
    let frame = [b'm'; 103];
    for _ in 0..5 {
        send(&conn, &[&frame], LONG).unwrap();
    }
    conn.flush(0, after(LONG)).0.unwrap();
    network.cut();
    for _ in 0..20 {
        send(&conn, &[&frame], LONG).unwrap();
        std::thread::sleep(ms(20));
    }
    std::thread::sleep(ms(4000));
    assert_eq!(conn.info().acknowledged, Some(5), "nothing has left since");
    network.restore();
    conn.flush(0, after(LONG)).0.unwrap();
    assert_eq!(peer.wait_received(25, LONG).messages, 25);
}
