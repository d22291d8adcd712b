//! Scenario 16: every status of the table is reached, each by its own cause.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use kvconn::connection::batch::verdict;
use kvconn::connection::message::Copies;
use kvconn::delivery::Release;
use kvconn::error::{Result, STATUSES, Status};
use kvconn::ids::ConnId;
use kvconn::process::Process;

use crate::common::engine::{LARGE, after, message, narrow_peer, send, status_of, wait_ended};
use crate::common::{Engine, OwnProcess, Peer, closed_port, ms};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn every_status_is_reached_by_its_own_cause() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let mut reached = BTreeSet::new();
    let mut expect = |result: Result<()>, status: Status| {
        assert_eq!(status_of(&result), status, "{result:?}");
        if let Err(error) = &result {
            assert!(!error.message.is_empty(), "{status:?} without a text");
            assert_ne!(error.os_errno, 0, "{status:?} without an errno");
        }
        reached.insert(status as i32);
    };
    let process = Process::current().unwrap();
    let settings = [("send_hwm", "4"), ("max_endpoints", "6"), ("backoff_ms", "60000"), ("backoff_max_ms", "60000")];
    let engine = Engine::with(&settings);
    let [lost, full, ended, failing] = [Peer::any(), narrow_peer(1), Peer::any(), Peer::any()];
    let closed = closed_port();

    let conn = engine.ready(lost.endpoint());
    expect(send(&conn, &[b"x"], LONG).map(drop), Status::Ok);
    expect(send(&conn, &[], LONG).map(drop), Status::Invalid);
    expect(process.connection(ConnId(u64::MAX)).map(drop), Status::Stale);
    expect(engine.node_find("nobody").map(drop), Status::NotFound);
    let other = engine.connect_with(lost.endpoint(), &[("send_hwm", "5")], LONG);
    expect(other.map(drop), Status::Conflict);
    lost.kill();
    wait_ended(&conn, LONG);
    expect(send(&conn, &[b"x"], LONG).map(drop), Status::PeerLost);

    let conn = engine.ready(full.endpoint());
    full.stop();
    engine.fill(&conn, LARGE);
    expect(send(&conn, &[LARGE], ms(0)).map(drop), Status::Timeout);
    expect(send(&conn, &[LARGE], ms(20)).map(drop), Status::Stalled);

    expect(engine.connect(&closed.endpoint(), LONG).map(drop), Status::ConnectFailed);
    expect(engine.connect(&closed.endpoint(), LONG).map(drop), Status::Backoff);

    engine.ready(ended.endpoint());
    engine.disconnect_endpoint(ended.endpoint()).unwrap();
    expect(engine.send_to(ended.endpoint(), &[b"x"], LONG).map(drop), Status::Disconnected);

    let node = engine.node("n", &[failing.endpoint()]);
    engine.handle_failure(node, Some("x")).unwrap();
    expect(engine.send_to(failing.endpoint(), &[b"x"], LONG).map(drop), Status::NodeFailed);

    let many: Vec<String> = (1..=7).map(|port| format!("tcp://127.0.0.1:{port}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let node = engine.node("m", &[]);
    expect(engine.node_add_endpoints(node, &many, None), Status::Limit);

    let path = format!("ipc:///tmp/kvconn-statuses-{}", std::process::id());
    let local = Peer::bind(&path);
    let other = Engine::new();
    let conn = other.ready(local.endpoint());
    send(&conn, &[b"x"], LONG).unwrap();
    expect(conn.flush(0, after(LONG)).0, Status::Unsupported);

    let items = [conn.id(), ConnId(u64::MAX)].map(|id| (id, |_: &mut Copies| message(&[b"x"])));
    expect(verdict(&process.send_batch(items.into_iter(), after(LONG))), Status::Partial);

    let idle = other.ready_with(ended.endpoint(), &[("idle_timeout_ms", "1")]);
    wait_ended(&idle, LONG);
    expect(send(&idle, &[b"x"], LONG).map(drop), Status::Evicted);

    let healthy = Peer::any();
    let conn = other.ready(healthy.endpoint());
    let (tell, told) = channel();
    let its = conn.clone();
    let release: Release = Box::new(move |_, sequence, _| tell.send(its.wait_released(sequence, after(LONG))).unwrap());
    // SAFETY: static bytes.
    unsafe { conn.send_owned(&[&raw const *LARGE], Some(release), after(LONG)) }.unwrap();
    expect(told.recv_timeout(LONG).unwrap(), Status::WouldDeadlock);

    process.shutdown(after(ms(0))).ok();
    expect(Process::current().map(drop), Status::Shutdown);

    // INTERNAL is for what should not happen, and nothing that a test can do makes it happen.
    let missing: Vec<_> = STATUSES.iter().filter(|row| !reached.contains(&(row.status as i32))).collect();
    assert_eq!(missing.iter().map(|row| row.status).collect::<Vec<_>>(), [Status::Internal]);
}
