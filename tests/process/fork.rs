//! A forked child starts empty, and its parent does not notice. Each test needs a process of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::ManagerId;
use kvconn::process::Process;

use crate::common::engine::{SetOnDrop, after, connection, send, status_of, text};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, threads};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

/// How a child ends.
#[derive(Clone, Copy)]
enum Exit {
    /// `_exit`: nothing runs.
    AtOnce,
    /// `exit`: exit handlers and static destructors run, libzmq's among them.
    InOrder,
    /// Another program takes its place.
    Exec,
}

/// LeakSanitizer does not look for leaks: in a child, what the parent's other threads held would look like one.
fn own_process(test: String) -> OwnProcess {
    OwnProcess::new(test).env("LSAN_OPTIONS", "detect_leaks=0")
}

/// Runs `work` in a forked child and waits until that has ended well.
#[track_caller]
fn in_child(exit: Exit, work: impl FnOnce()) {
    // SAFETY: the child has this thread only. It takes no lock that another thread may hold, but those of kvconn,
    // which is what is tested, and of the allocator, which the C library takes care of.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let worked = catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: none of these returns, or the last one ends the child.
        unsafe {
            match exit {
                Exit::InOrder if worked => libc::exit(0),
                Exit::Exec if worked => {
                    let arguments = [c"true".as_ptr(), std::ptr::null()];
                    libc::execvp(arguments[0], arguments.as_ptr());
                }
                _ => {}
            }
            libc::_exit(i32::from(!(worked && matches!(exit, Exit::AtOnce))));
        }
    }
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: writes to a live int.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > LONG {
            // SAFETY: the child is ours and not yet waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(ms(1));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with status {status:#x}");
}

/// Scenario 28.
#[test]
fn the_parents_ids_are_stale_in_a_child_whose_own_connections_work() {
    if own_process(test_name!()).parent() {
        return;
    }
    let (steady, others) = (Peer::any(), Peer::any());
    let engine = Engine::new();
    let node = engine.node("n", &[steady.endpoint()]);
    let stream = engine.ready(steady.endpoint());
    let ended = engine.ready(others.endpoint());
    ended.disconnect().expect("ended");
    let fd = engine.event_fd().expect("a descriptor");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let streaming = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let number = send(&stream, &[format!("{}", sent + 1).as_bytes()], ms(2000)).expect("undisturbed");
                sent += 1;
                assert_eq!(number, sent);
                std::thread::sleep(Duration::from_micros(200));
            }
            sent
        });
        for (round, exit) in [Exit::AtOnce, Exit::InOrder, Exit::Exec, Exit::InOrder, Exit::AtOnce].iter().enumerate() {
            in_child(*exit, || {
                let process = Process::current().expect("a process of the child's own");
                for conn in [stream.id(), ended.id()] {
                    assert_eq!(status_of(&process.connection(conn)), Status::Stale);
                }
                assert_eq!(status_of(&process.manager(engine.id())), Status::Stale);
                assert_eq!(status_of(&process.node(node)), Status::Stale);
                assert_eq!(status_of(&process.destroy_manager(engine.id(), after(LONG))), Status::Stale);
                let default = process.manager(ManagerId::NONE).expect("always there");
                assert_eq!(default.connections(), []);
                assert!(!threads().iter().any(|name| name == "kvconn-watcher"), "nothing runs before it is needed");

                let own = Engine::new();
                assert_ne!(own.id(), engine.id());
                let node = own.node("n", &[others.endpoint()]);
                let conn = own.ready(others.endpoint());
                assert!(conn.id() > ended.id(), "ids of the parent are not given out again");
                send(&conn, &[format!("child {round}").as_bytes()], ms(2000)).expect("sent");
                own.disconnect_all(after(ms(5000))).expect("flushed");
                assert_eq!(own.events_of(EventKind::Disconnected).len(), 1);
                assert_eq!(own.node_info(node).expect("remembered").status, Status::Disconnected);
                drop(own);
            });
        }
        drop(stopping);
        streaming.join().expect("the stream")
    });
    steady.wait_received(sent, LONG);
    assert!(steady.messages().iter().map(|message| text(message)).eq((1..=sent).map(|n| n.to_string())));
    let texts: Vec<String> = others.messages().iter().map(|message| text(message)).collect();
    assert_eq!(texts, (0..5).map(|round| format!("child {round}")).collect::<Vec<_>>());
    assert_eq!((steady.received().accepted, steady.received().disconnected), (1, 0));
    assert_eq!(engine.event_fd().expect("the same"), fd);
    let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Ready, EventKind::Ready, EventKind::Disconnected]);
    assert_eq!(engine.connections(), [stream.id()]);
    engine.node_track_request(node, 1).expect("the parent's node lives");
}

/// Whatever the parent's threads are doing at that moment, and whatever locks they hold.
#[test]
fn forking_a_busy_process_harms_neither_stress() {
    if own_process(test_name!()).network_if_possible().parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 4, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let stream = engine.ready(endpoints[0]);
    let stop = AtomicBool::new(false);
    let running = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while running() {
                    send(&stream, &[b"x"], ms(5000)).expect("undisturbed");
                }
            });
        }
        scope.spawn(|| {
            while running() {
                let node = engine.node("n", &endpoints[1..]);
                endpoints[1..].iter().for_each(|endpoint| _ = engine.connect(endpoint, ms(5)));
                drop(engine.handle_failure(node, Some("x")).expect("live"));
            }
        });
        scope.spawn(|| {
            while running() {
                engine.describe();
                engine.metrics_text().expect("a text");
                engine.connections().into_iter().for_each(|conn| _ = connection(conn).info());
            }
        });
        for round in 0..15 {
            let exit = if round % 2 == 0 { Exit::AtOnce } else { Exit::InOrder };
            in_child(exit, || {
                let own = Engine::new();
                let node = own.node("n", &endpoints[..2]);
                let conn = own.ready(endpoints[1]);
                send(&conn, &[b"child"], ms(5000)).expect("sent");
                own.describe();
                // Its numbers are its own: the parent's dials are not among them.
                let text = own.metrics_text().expect("a text");
                assert!(text.contains(&format!("kvconn_dials_total{{manager=\"{}\"}} 1\n", own.id())), "{text}");
                assert!(text.ends_with("# EOF\n"));
                drop(own.handle_failure(node, Some("x")).expect("live"));
            });
        }
    });
    let accepted = stream.info().accepted;
    assert_eq!(stream.info().rescues, 0);
    engine.disconnect_all(after(LONG)).expect("flushed");
    peer.wait_received(accepted, LONG);
}

#[test]
fn children_of_children_and_of_unused_or_closed_processes_start_empty_too() {
    if own_process(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let use_it = || {
        let engine = Engine::new();
        let conn = engine.ready(peer.endpoint());
        send(&conn, &[b"x"], ms(5000)).expect("sent");
        engine.disconnect_all(after(ms(5000))).expect("flushed");
        conn.id()
    };
    // Before the first use.
    in_child(Exit::AtOnce, || _ = use_it());
    // A child of a child, each with ids of its own.
    let first = use_it();
    in_child(Exit::InOrder, || {
        let second = use_it();
        in_child(Exit::InOrder, || {
            let process = Process::current().expect("a process of its own");
            for conn in [first, second] {
                assert_eq!(status_of(&process.connection(conn)), Status::Stale);
            }
            use_it();
        });
        assert_eq!(status_of(&Process::current().and_then(|process| process.connection(first))), Status::Stale);
        use_it();
    });
    use_it();
    // SHUTDOWN is for ever in this process, not in its children.
    Process::current().expect("a process").shutdown(after(ms(1000))).expect("nothing left");
    in_child(Exit::AtOnce, || _ = use_it());
    assert_eq!(status_of(&Process::current()), Status::Shutdown);
    peer.wait_received(7, LONG);
}
