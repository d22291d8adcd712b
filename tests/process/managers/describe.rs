//! What a person sees of the present state, and what a debugger can get of a process that hangs.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::observe::describe::dump;

use crate::common::engine::{
    LARGE, SetOnDrop, after, canonical, connection, narrow_peer, refused, send, wait_ended, waiting_senders,
};
use crate::common::load::within;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

/// The line that is about this.
#[track_caller]
fn line<'a>(text: &'a str, about: &str) -> &'a str {
    let found: Vec<&str> = text.lines().filter(|line| line.contains(about)).collect();
    let [line] = found[..] else { panic!("{} lines are about {about}:\n{text}", found.len()) };
    line
}

#[track_caller]
fn assert_has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

#[test]
fn the_description_names_states_nodes_fences_backoff_and_last_errors() {
    let (ready, stuck, lost) = (Peer::any(), narrow_peer(1), Peer::any());
    let (mute, refusing) = (WrongPeer::mute(), closed_port());
    let engine = Engine::with(&[
        ("send_hwm", "4"),
        ("stall_ms", "50"),
        ("backoff_ms", "40000"),
        ("backoff_max_ms", "40000"),
        ("max_events", "3"),
    ]);
    let node = engine.node("prefill \"0\"\n", &[ready.endpoint(), "tcp://127.0.0.1:10"]);
    for request in 0..12 {
        engine.node_track_request(node, request).expect("live");
    }
    engine.node_report_health(node, false, None).expect("live");
    let failed = engine.node("decode", &["tcp://127.0.0.1:11"]);
    let failure = engine.handle_failure(failed, Some("xid 79")).expect("live");
    engine.leave_failure(failure);

    let conn = engine.ready(ready.endpoint());
    engine.send(&conn, &[b"x"], ms(1000)).expect("sent");
    let full = engine.ready(stuck.endpoint());
    stuck.stop();
    engine.fill(&full, LARGE);
    let senders = waiting_senders(&full, 2);
    wait_until("it has stalled", LONG, || full.info().stalled);
    let dialling = engine.lazy(&mute.endpoint());
    refused(engine.connect(&refusing.endpoint(), LONG), Status::ConnectFailed);
    let gone = engine.ready(lost.endpoint());
    lost.kill();
    wait_ended(&gone, LONG);
    engine.disconnect_endpoint("tcp://127.0.0.1:12").expect("fenced");

    let whole = within(ms(100), "describing", || engine.describe());
    // The lost connection and the failed node, at the end.
    let losses = whole.find("  lost ").expect("losses");
    assert_eq!(whole[losses..].lines().filter(|line| line.starts_with("  lost ")).count(), 2, "{whole}");
    let text = &whole[..losses];
    // Connected or registered: ready, 10, stuck, mute. Known: also 11, 12, refusing, lost. Events: three,
    // two endings, which have places of their own, and an OVERFLOW before each of these.
    assert_has(line(text, "manager "), &[&format!("manager {}", engine.id()), "4 endpoints in use, 8 known"]);
    assert_has(line(text, "manager "), &["7 events wait", "were lost", "1 failure reports wait"]);
    let parts = [&format!("life {node}"), "2 endpoints", "12 requests", "1 unhealthy reports in a row"];
    assert_has(line(text, r#"prefill \"0\"\n"#), &parts.map(|part| part as &str));
    let parts = [&format!("connection {} READY for ", conn.id()), "1 accepted, 1 acknowledged, 0 threads waiting"];
    assert_has(line(text, &canonical(ready.endpoint())), &parts.map(|part| part as &str));
    let stalled = line(text, &canonical(stuck.endpoint()));
    assert_has(stalled, &["READY", "2 threads waiting", "STALLED", &format!("{} accepted", full.info().accepted)]);
    let parts = [&format!("connection {} CONNECTING for ", dialling.id()), "0 accepted"];
    assert_has(line(text, &mute.endpoint()), &parts.map(|part| part as &str));
    let failed_dial = line(text, &refusing.endpoint());
    assert_has(failed_dial, &["not connected", "1 failed dials in a row", "refused", "next one in 4"]);
    assert_has(line(text, &canonical(lost.endpoint())), &["not connected", "the peer is gone"]);
    let fence = line(text, "tcp://127.0.0.1:11:");
    assert_has(fence, &["not connected", "decode", "xid 79", "registering it in a live node lifts"]);
    assert_has(line(text, "tcp://127.0.0.1:12:"), &["not connected", "kvconn_disconnect_endpoint", "lifts it"]);
    assert_has(line(text, "tcp://127.0.0.1:10:"), &["not connected"]);
    assert!(!line(text, "tcp://127.0.0.1:10:").contains(';'), "{text}");
    let settings = text.lines().filter(|line| line.starts_with("  settings ")).count();
    assert_eq!((settings, text.lines().count()), (2, 1 + settings + 1 + 8), "{text}");
    full.disconnect().expect("ended");
    senders.return_within(LONG, Instant::now());
}

/// A file that the kernel keeps in memory.
fn memory_file() -> File {
    // SAFETY: the name ends with NUL; the descriptor is new and ours.
    unsafe {
        let fd = libc::memfd_create(c"dump".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    }
}

pub fn dumped() -> String {
    let mut file = memory_file();
    dump(file.as_raw_fd()).expect("a descriptor that can be written");
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("reading it back");
    text
}

#[test]
fn the_dump_has_all_managers() {
    let peer = Peer::any();
    let engines = [Engine::new(), Engine::new()];
    let conns = engines.each_ref().map(|engine| engine.ready(peer.endpoint()));
    engines[0].node("n-of-the-dump", &[]);
    let mut text = String::new();
    wait_until("a dump finds no lock held", LONG, || {
        text = dumped();
        !text.contains(" is held")
    });
    assert!(text.starts_with(&format!("kvconn {}: ", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains("manager 0: "), "{text}");
    for (engine, conn) in engines.iter().zip(&conns) {
        line(&text, &format!("manager {}: ", engine.id()));
        line(&text, &format!("connection {} READY", conn.id()));
    }
    line(&text, "n-of-the-dump");
}

#[test]
fn a_descriptor_that_cannot_be_written_is_invalid() {
    // SAFETY: opening a constant path for reading; the descriptor is new and ours.
    let read_only =
        unsafe { OwnedFd::from_raw_fd(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)) };
    for fd in [-1, i32::MAX, i32::MIN, read_only.as_raw_fd()] {
        let error = refused(dump(fd), Status::Invalid);
        assert_eq!(error.os_errno, libc::EBADF, "{fd}");
    }
}

fn pipe() -> (File, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are new and ours.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// Whether a pipe takes more now.
fn has_room(writer: &OwnedFd) -> bool {
    let mut item = libc::pollfd { fd: writer.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live item.
    let count = unsafe { libc::poll(&mut item, 1, 0) };
    assert!(count >= 0, "poll: {}", std::io::Error::last_os_error());
    count == 1
}

/// A dump to a pipe without a reader ends by its own deadline, and delays no other call meanwhile.
#[test]
fn a_dump_into_a_full_pipe_holds_no_lock_and_ends() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    let engine = Engine::new();
    // More than a pipe takes: 64 KiB.
    let endpoints: Vec<String> = (1..=2000).map(|port| format!("tcp://127.0.0.1:{port}")).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let node = engine.node("n", &endpoints);
    let (mut reader, writer) = pipe();
    std::thread::scope(|scope| {
        let reads = scope.spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("a text");
            text
        });
        dump(writer.as_raw_fd()).expect("somebody reads");
        drop(writer);
        assert!(reads.join().expect("a reader").contains("tcp://127.0.0.1:2000:"), "the dump is cut");
    });
    let (_reader, writer) = pipe();
    std::thread::scope(|scope| {
        let dumping = scope.spawn(|| within(ms(5000), "a dump", || dump(writer.as_raw_fd())));
        // Only then: a node that fails before the dump has come to it makes the dump short, and it fits.
        wait_until("the dump has filled the pipe", LONG, || !has_room(&writer));
        within(ms(5000), "what others do beside it", || {
            let conn = engine.ready(peer.endpoint());
            send(&conn, &[b"x"], ms(1000)).expect("sent");
            engine.describe();
            drop(engine.handle_failure(node, None).expect("live"));
        });
        refused(dumping.join().expect("a dumper"), Status::Timeout);
    });
}

/// It only tries locks: whatever other threads hold, it returns, and has what it could get.
#[test]
fn dumps_and_descriptions_return_in_time_under_load_stress() {
    if OwnProcess::new(test_name!()).network_if_possible().parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 6, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let stop = AtomicBool::new(false);
    let running = || !stop.load(Ordering::Relaxed);
    let (whole, complete) = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        scope.spawn(|| {
            while running() {
                let node = engine.node("n", &endpoints);
                endpoints.iter().for_each(|endpoint| _ = engine.connect(endpoint, ms(5)));
                drop(engine.handle_failure(node, Some("x")).expect("live"));
            }
        });
        scope.spawn(|| {
            while running() {
                for id in engine.connections() {
                    let conn = connection(id);
                    (0..20).for_each(|_| _ = send(&conn, &[b"x"], Duration::ZERO));
                    conn.disconnect().expect("no error");
                }
                engine.disconnect_endpoint(endpoints[0]).expect("no error");
            }
        });
        let dumpers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut whole, mut complete) = (0, 0);
                    while running() {
                        let text = within(Duration::from_secs(1), "a dump", dumped);
                        assert!(text.starts_with("kvconn ") && text.ends_with('\n'), "{text}");
                        whole += 1;
                        complete += u32::from(!text.contains("is held"));
                    }
                    (whole, complete)
                })
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < ms(1200) && !dumpers.iter().any(|dumper| dumper.is_finished()) {
            within(Duration::from_secs(1), "a description", || engine.describe());
        }
        drop(stopping);
        let counts = dumpers.into_iter().map(|dumper| dumper.join().expect("a dumper"));
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    });
    println!("{whole} dumps, {complete} of them with everything");
    assert!(whole >= 10 && complete >= 1, "{whole} dumps, {complete} of them with everything");
    engine.disconnect_all(after(LONG)).expect("closed");
}
