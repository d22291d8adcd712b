//! What a release function may do, and who waits for it.

use std::sync::mpsc::channel;
use std::time::Duration;

use kvconn::connection::loans::Fate;
use kvconn::error::Status;
use kvconn::process::Process;
use kvconn::release::Release;

use super::lending::{LONG, Lender};
use crate::common::engine::{after, narrow_peer, options, refused, send, status_of, wait_ended};
use crate::common::load::within;
use crate::common::{Engine, Peer, ms};

#[test]
fn a_release_may_call_kvconn_and_is_told_when_it_would_wait_for_itself() {
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    let (tell, told) = channel();
    let buffer = vec![7; 100_000];
    let (its, manager) = (conn.clone(), engine.manager().clone());
    let endpoint = peer.endpoint().to_string();
    let release: Release = Box::new(move |_, sequence, fate| {
        let own = its.wait_released(sequence, after(LONG));
        let earlier = its.wait_released(sequence - 1, after(LONG));
        let sent = send(&its, &[b"from a release"], LONG);
        let flushed = its.flush(0, after(LONG)).0;
        let all = manager.disconnect_all(after(LONG));
        let again = manager.connect(&endpoint, None, after(LONG));
        let statuses = [&own, &earlier, &flushed, &all].map(status_of);
        tell.send((fate, statuses, status_of(&sent), status_of(&again))).unwrap();
    });
    send(&conn, &[b"first"], LONG).unwrap();
    // SAFETY: the buffer is there until the release was called.
    unsafe { conn.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    let (fate, [own, earlier, flushed, all], sent, again) = told.recv_timeout(LONG).expect("a release that returns");
    assert_eq!((fate, own, earlier), (Fate::Acknowledged, Status::WouldDeadlock, Status::Ok));
    assert_eq!([flushed, all, sent, again], [Status::Ok; 4]);
    conn.wait_released(0, after(LONG)).expect("it is over");
}

#[test]
fn whoever_ends_everything_waits_for_the_buffers() {
    let process = Process::current().unwrap();
    for disconnect_all in [true, false] {
        let peer = narrow_peer(1);
        let id = process.create_manager(Some(&options(&[]))).unwrap();
        let manager = process.manager(id).unwrap();
        let conn = process.connection(manager.connect(peer.endpoint(), None, after(LONG)).unwrap()).unwrap();
        let lender = Lender::new();
        for _ in 0..10 {
            lender.send(&conn, vec![vec![1; 1 << 20]], LONG).unwrap();
        }
        if disconnect_all {
            manager.disconnect_all(after(LONG)).unwrap();
        } else {
            process.destroy_manager(id, after(LONG)).unwrap();
        }
        // It is over when the call returns, not a little later.
        assert_eq!(lender.told_so_far().len(), 10);
        let expected = if disconnect_all { Fate::Acknowledged } else { Fate::Unacknowledged };
        drop((peer, expected));
    }
}

/// A release that does not return keeps nobody but other releases.
#[test]
fn a_release_that_takes_long_holds_up_nobody_else() {
    let (engine, peer, other) = (Engine::new(), Peer::any(), Peer::any());
    let (conn, beside) = (engine.ready(peer.endpoint()), engine.ready(other.endpoint()));
    let (begun, has_begun) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let buffer = vec![7; 10_000];
    let release: Release = Box::new(move |_, _, _| {
        begun.send(()).ok();
        may_go_on.recv().ok();
    });
    // SAFETY: the buffer is there until the last wait.
    unsafe { conn.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    has_begun.recv_timeout(LONG).expect("a release");
    within(ms(1000), "calls beside it", || {
        for conn in [&conn, &beside] {
            for _ in 0..100 {
                send(conn, &[b"x"], LONG).unwrap();
            }
            conn.flush(0, after(LONG)).0.unwrap();
        }
        conn.disconnect().unwrap();
    });
    wait_ended(&conn, Duration::from_millis(100));
    refused(conn.wait_released(0, after(ms(50))), Status::Timeout);
    let (destroyed, manager) = (Process::current().unwrap(), engine.id());
    refused(destroyed.destroy_manager(manager, after(ms(50))), Status::Timeout);
    // Whoever waits for the buffers finds the connection also now.
    let remembered = destroyed.connection(conn.id()).expect("it has lent buffers");
    go_on.send(()).unwrap();
    remembered.wait_released(0, after(LONG)).unwrap();
}
