//! What a release function may do, and which calls wait for it.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::delivery::Outcome;
use kvconn::delivery::Release;
use kvconn::error::Status;
use kvconn::process::Process;

use super::buffers::{Buffers, LONG};
use crate::common::engine::{after, narrow_peer, options, refused, send, status_of, wait_ended};
use crate::common::load::within;
use crate::common::own_process::OwnProcess;
use crate::common::{Engine, Peer, ms, wait_until};
use crate::test_name;

#[test]
fn a_release_may_call_kvconn_and_is_told_when_it_would_wait_for_itself() {
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    let (tell, released) = channel();
    let buffer = vec![7; 100_000];
    let (its, manager) = (conn.clone(), engine.manager().clone());
    let endpoint = peer.endpoint().to_string();
    let release: Release = Box::new(move |_, sequence, outcome| {
        let own = its.wait_released(sequence, after(LONG));
        let earlier = its.wait_released(sequence - 1, after(LONG));
        let sent = send(&its, &[b"from a release"], LONG);
        let flushed = its.flush(0, after(LONG)).0;
        let all = manager.disconnect_all(after(LONG));
        let again = manager.connect(&endpoint, None, after(LONG));
        let statuses = [&own, &earlier, &flushed, &all].map(status_of);
        tell.send((outcome, statuses, status_of(&sent), status_of(&again))).unwrap();
    });
    send(&conn, &[b"first"], LONG).unwrap();
    // SAFETY: the buffer is there until the release was called.
    unsafe { conn.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    let (outcome, [own, earlier, flushed, all], sent, again) =
        released.recv_timeout(LONG).expect("a release that returns");
    assert_eq!((outcome, own, earlier), (Outcome::Acknowledged, Status::WouldDeadlock, Status::Ok));
    assert_eq!([flushed, all, sent, again], [Status::Ok; 4]);
    conn.wait_released(0, after(LONG)).expect("it is over");
}

#[test]
fn calls_that_end_everything_wait_for_the_buffers() {
    let process = Process::current().unwrap();
    for disconnect_all in [true, false] {
        let peer = narrow_peer(1);
        let id = process.create_manager(Some(&options(&[]))).unwrap();
        let manager = process.manager(id).unwrap();
        let conn = process.connection(manager.connect(peer.endpoint(), None, after(LONG)).unwrap()).unwrap();
        let buffers = Buffers::new();
        for _ in 0..10 {
            buffers.send(&conn, vec![vec![1; 1 << 20]], LONG).unwrap();
        }
        if disconnect_all {
            manager.disconnect_all(after(LONG)).unwrap();
        } else {
            process.destroy_manager(id, after(LONG)).unwrap();
        }
        // It is over when the call returns, not a little later.
        let released = buffers.released_so_far();
        assert_eq!(released.len(), 10);
        // The one flushes, the other drops what has not left.
        assert!(
            !disconnect_all || released.iter().all(|released| released.outcome == Outcome::Acknowledged),
            "{released:?}"
        );
    }
}

/// Sends a buffer whose release, which has begun when this returns, waits until the result is used or dropped.
fn send_with_a_release_that_waits(conn: &Arc<Connection>) -> Sender<()> {
    let (begun, has_begun) = channel();
    let (proceed, may_proceed) = channel::<()>();
    let buffer: &'static [u8] = &[7; 10_000];
    let release: Release = Box::new(move |_, _, _| {
        begun.send(()).ok();
        may_proceed.recv().ok();
    });
    // SAFETY: the buffer is never freed.
    unsafe { conn.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    has_begun.recv_timeout(LONG).expect("a release");
    proceed
}

/// A shutdown that says OK leaves no buffer behind, also none of a connection that ended before it.
#[test]
fn a_shutdown_waits_for_the_buffers_of_connections_that_ended_before() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    let proceed = send_with_a_release_that_waits(&conn);
    conn.disconnect().unwrap();
    wait_ended(&conn, LONG);
    refused(Process::current().unwrap().shutdown(after(ms(100))), Status::Timeout);
    drop(proceed);
}

/// A release that does not return delays only other releases.
#[test]
fn a_release_that_takes_long_delays_no_other_call() {
    let (engine, peer, other) = (Engine::new(), Peer::any(), Peer::any());
    let (conn, beside) = (engine.ready(peer.endpoint()), engine.ready(other.endpoint()));
    let proceed = send_with_a_release_that_waits(&conn);
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
    // The connection is still found, to wait for its buffers.
    let remembered = destroyed.connection(conn.id()).expect("it has buffers in flight");
    proceed.send(()).unwrap();
    remembered.wait_released(0, after(LONG)).unwrap();
}

/// It returns in the child, too: there the thread has no caller to come back to.
#[test]
fn a_release_that_forks_and_returns_releases_nothing_in_the_child() {
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    let buffer = vec![7; 10_000];
    let (forked, children) = channel();
    for number in 0..20 {
        let (forked, end) = (forked.clone(), ends[1]);
        let release: Release = Box::new(move |_, _, _| {
            // SAFETY: the child only writes to a pipe, and returns.
            let child = if number == 0 { unsafe { libc::fork() } } else { 1 };
            let id = std::process::id().to_ne_bytes();
            // SAFETY: four live bytes.
            unsafe { libc::write(end, id.as_ptr().cast(), 4) };
            if child > 1 {
                forked.send(child).ok();
            }
        });
        // SAFETY: the buffer is there until the last wait.
        unsafe { conn.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    }
    let child = children.recv_timeout(LONG).expect("a child");
    conn.wait_released(0, after(LONG)).unwrap();
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    let mut released = vec![0_u8; 4 * 100];
    // SAFETY: live bytes; the pipe has all that will ever come.
    let count = unsafe { libc::read(ends[0], released.as_mut_ptr().cast(), released.len()) } as usize / 4;
    let in_child = released.chunks(4).take(count).filter(|id| **id == child.to_ne_bytes()).count();
    assert_eq!((count, in_child), (21, 1), "20 in the parent, and the one that forked in the child");
}

/// Connections that are remembered for their buffers only are forgotten with them.
#[test]
fn endings_are_forgotten_when_the_last_buffer_is_released() {
    let process = Process::current().unwrap();
    let peer = narrow_peer(1);
    let (begun, has_begun) = channel();
    let (proceed, may_proceed) = channel::<()>();
    let manager = process.create_manager(Some(&options(&[]))).unwrap();
    let engine = process.manager(manager).unwrap();
    let conn = engine.connect(peer.endpoint(), None, after(LONG)).unwrap();
    let buffer = vec![7; 10_000];
    let release: Release = Box::new(move |_, _, _| {
        begun.send(()).ok();
        may_proceed.recv().ok();
    });
    let found = process.connection(conn).unwrap();
    // SAFETY: the buffer is there until the end.
    unsafe { found.send_owned(&[&raw const buffer[..]], Some(release), after(LONG)) }.unwrap();
    has_begun.recv_timeout(LONG).expect("a release");
    refused(process.destroy_manager(manager, after(ms(50))), Status::Timeout);
    process.connection(conn).expect("it has a buffer in flight");
    proceed.send(()).unwrap();
    wait_until("it is forgotten", LONG, || process.connection(conn).is_err());
}
