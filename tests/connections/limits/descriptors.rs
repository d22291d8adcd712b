//! Scenario 13: the process has no descriptor left, at every step at which one is needed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::{Error, Status};
use kvconn::ids::ManagerId;
use kvconn::process::Process;

use crate::common::engine::{after, connection, options, refused, send, status_of, wait_ended, wait_waiting};
use crate::common::load::Stopwatch;
use crate::common::raw_peer::{GREETING, READY};
use crate::common::{
    Descriptors, Engine, OwnProcess, Peer, PeerOptions, WrongPeer, ms, names, open_descriptors, own_process, soak_time,
    wait_until,
};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// Every descriptor that the process may have, but for some.
struct Hog {
    held: Vec<File>,
    source: File,
}

impl Hog {
    /// Leaves that many.
    fn leaving(free: usize) -> Hog {
        // kvconn-files holds two of them for a moment.
        wait_until("the table of descriptors is enlarged", LIMIT, || !threads_are_enlarging_the_table());
        let mut hog = Hog { held: Vec::new(), source: File::open("/dev/null").expect("a descriptor") };
        hog.take_all();
        hog.held.truncate(hog.held.len().saturating_sub(free));
        hog
    }

    fn take_all(&mut self) {
        while let Ok(another) = self.source.try_clone() {
            self.held.push(another);
        }
    }

    /// How many are free at this moment.
    fn free(&self) -> usize {
        let mut found = Vec::new();
        while let Ok(another) = self.source.try_clone() {
            found.push(another);
        }
        found.len()
    }
}

fn threads_are_enlarging_the_table() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads").flatten();
    let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.trim() == "kvconn-files")
}

#[track_caller]
fn says_what_to_raise(error: &Error) {
    assert_eq!(error.os_errno, libc::EMFILE, "{error:?}");
    assert!(error.message.contains("RLIMIT_NOFILE"), "{}", error.message);
}

/// Waits until the process holds no more than before. (Less, when something was still being closed then.)
#[track_caller]
fn given_back(before: Descriptors) {
    let begun = Instant::now();
    while open_descriptors().total() > before.total() {
        assert!(begun.elapsed() < LIMIT, "{before:?} before, {:?} now", open_descriptors());
        std::thread::sleep(ms(1));
    }
}

/// libzmq aborts the process when its first socket finds too few.
#[test]
fn the_very_first_connection_fails_without_a_trace_and_works_after_relief() {
    for free in (0..=12).chain([13, 14, 15, 16, 17, 18, 20, 24]) {
        let own = OwnProcess::new(test_name!()).descriptors(128).env("FREE_DESCRIPTORS", &free.to_string());
        if own.parent() {
            continue;
        }
        let free: usize = std::env::var("FREE_DESCRIPTORS").unwrap().parse().unwrap();
        let peer = Peer::any();
        let hog = Hog::leaving(free);
        let engine = Engine::new();
        let mut refusals = 0;
        for _ in 0..3 {
            let connected = engine.connect(peer.endpoint(), LIMIT).map(drop);
            let sent = engine.send_to(peer.endpoint(), &[b"x"], LIMIT).map(drop);
            for result in [connected, sent] {
                let Err(error) = result else { continue };
                assert_eq!(error.status, Status::Limit, "{free} free: {error:?}");
                says_what_to_raise(&error);
                refused(engine.find(peer.endpoint()), Status::NotFound);
                assert!(engine.connections().is_empty() && engine.events().is_empty());
                refusals += 1;
            }
        }
        assert!(refusals == 0 || refusals == 6, "{free} free: {refusals} of 6 refused");
        assert!(refusals == 6 || free > 12, "{free} free, and it worked?");
        if refusals > 0 {
            assert_eq!(peer.received().accepted, 0);
            wait_until("nothing is kept of it", LIMIT, || hog.free() == free);
        }
        drop(hog);
        let conn = engine.ready(peer.endpoint());
        send(&conn, &[b"after relief"], LIMIT).expect("sent");
        peer.wait_received(1 + if refusals == 0 { 3 } else { 0 }, LIMIT);
        return;
    }
}

#[test]
fn every_later_connection_fails_without_a_trace_and_works_after_relief() {
    if OwnProcess::new(test_name!()).descriptors(128).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 14, ..PeerOptions::default() });
    let engine = Engine::new();
    let first = engine.ready(peer.endpoint()); // libzmq and the watcher are there
    let base = open_descriptors();
    for (free, endpoint) in peer.endpoints()[1..].iter().enumerate() {
        let hog = Hog::leaving(free);
        let before = peer.received();
        let result = engine.connect(endpoint, LIMIT);
        match status_of(&result) {
            Status::Ok => assert!(free >= 4, "{free} free, and it works?"),
            Status::Limit => {
                assert!(free < 8, "{free} free, and it does not work?");
                says_what_to_raise(&result.unwrap_err());
                refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::Limit);
                refused(engine.find(endpoint), Status::NotFound);
                assert_eq!(peer.received().accepted, before.accepted);
                wait_until("nothing is kept of it", LIMIT, || hog.free() == free);
            }
            _ => panic!("{free} free: {result:?}"),
        }
        send(&first, &[b"x"], LIMIT).expect("a live connection needs no more");
        drop(hog);
        let (conn, _) = engine.send_to(endpoint, &[b"after relief"], LIMIT).expect("sent");
        peer.wait_received(before.messages + 2, LIMIT);
        connection(conn).disconnect().unwrap();
        given_back(base);
    }
}

/// A look-up needs some, too.
#[test]
fn a_name_is_not_half_connected_when_descriptors_are_short() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).descriptors(128).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 peer.test\n");
    let peer = Peer::any();
    let endpoint = format!("tcp://peer.test:{}", peer.port());
    let engine = Engine::with(&[("connect_timeout_ms", "1000")]);
    engine.ready(peer.endpoint());
    let base = open_descriptors();
    for free in 0..=12 {
        let hog = Hog::leaving(free);
        let result = engine.connect(&endpoint, LIMIT);
        match status_of(&result) {
            Status::Ok => assert!(free >= 4, "{free} free, and it works?"),
            Status::Limit => assert!(free < 8, "{free} free: {result:?}"),
            _ => panic!("{free} free: {result:?}"),
        }
        drop(hog);
        let (conn, _) = engine.send_to(&endpoint, &[b"after relief"], LIMIT).expect("sent");
        connection(conn).disconnect().unwrap();
        given_back(base);
    }
}

/// What `docs/limits.md` says to set. Without it some of these dials are admitted, and then fail with EMFILE.
#[test]
fn max_descriptors_leaves_room_for_the_rest_of_the_process() {
    const NOFILE: usize = 256;
    const FOR_KVCONN: usize = 32;
    if OwnProcess::new(test_name!()).descriptors(NOFILE as u64).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 70, ..PeerOptions::default() });
    let rest: Vec<File> = (0..80).map(|_| File::open("/dev/null").expect("a descriptor")).collect();
    let most = (NOFILE - open_descriptors().total() - FOR_KVCONN).to_string();
    let process = Process::current().unwrap();
    process.manager(ManagerId::NONE).unwrap().configure(&options(&[("max_descriptors", &most)])).unwrap();
    let engine = Engine::new();
    let dials: Vec<_> = peer.endpoints().iter().map(|endpoint| engine.connect(endpoint, Duration::ZERO)).collect();
    let (admitted, refusals): (Vec<_>, Vec<_>) = dials.into_iter().partition(Result::is_ok);
    assert!(admitted.len() > 30 && !refusals.is_empty(), "{} admitted, {} refused", admitted.len(), refusals.len());
    for error in refusals.into_iter().filter_map(Result::err) {
        assert!(error.status == Status::Limit && error.message.contains("max_descriptors"), "{error:?}");
    }
    for conn in admitted.into_iter().flatten() {
        send(&connection(conn), &[b"x"], LIMIT).expect("an admitted dial becomes READY");
    }
    File::open("/dev/null").expect("the rest of the process can still open files");
    drop(rest);
}

/// The last step that needs a descriptor. Without its own, kvconn cannot ask the kernel what is acknowledged.
#[test]
fn a_handshake_that_leaves_no_descriptor_is_a_failed_dial_and_no_connection_without_counts() {
    if OwnProcess::new(test_name!()).descriptors(128).parent() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let accepts = |text: &str| {
        let conn = engine.lazy(&endpoint);
        let (mut stream, _) = listener.accept().expect(text);
        // kvconn's greeting: its side is connected.
        stream.read_exact(&mut [0; 10]).expect(text);
        (conn, stream)
    };
    let (conn, mut stream) = accepts("no descriptor at the end");
    let hog = Hog::leaving(0);
    stream.write_all(&[&GREETING[..], READY].concat()).expect("the handshake");
    let ended = wait_ended(&conn, LIMIT);
    assert_eq!((ended.status, ended.os_errno), (Status::ConnectFailed, libc::EMFILE), "{}", ended.message);
    assert!(ended.message.contains("RLIMIT_NOFILE"), "{}", ended.message);
    drop(hog);
    wait_until("the backoff is over", LIMIT, || engine.connect(&endpoint, Duration::ZERO).is_ok());
    let (conn, mut stream) = accepts("after relief");
    stream.write_all(&[&GREETING[..], READY].concat()).expect("the handshake");
    wait_until("READY", LIMIT, || conn.info().state == ConnectionState::Ready);
    send(&conn, &[b"x"], LIMIT).expect("sent");
    conn.flush(0, after(LIMIT)).0.expect("it is counted");
}

/// The first address is silent; when the second's turn comes there is nothing to dial it with.
#[test]
fn the_second_address_of_a_name_finds_no_descriptor() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).descriptors(128).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 peer.test\n127.0.0.2 peer.test\n");
    let hole = WrongPeer::black_hole();
    let peer = Peer::bind(&format!("tcp://127.0.0.2:{}", hole.port()));
    let endpoint = format!("tcp://peer.test:{}", hole.port());
    let engine = Engine::with(&[("connect_timeout_ms", "2400"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let conn = engine.lazy(&endpoint);
    std::thread::sleep(ms(100)); // the first address is being dialled
    let hog = Hog::leaving(0);
    let watch = Stopwatch::start();
    let ended = wait_ended(&conn, LIMIT);
    watch.at_most(ms(1200), "the dial");
    assert_eq!((ended.status, ended.os_errno), (Status::ConnectFailed, libc::EMFILE), "{}", ended.message);
    assert!(ended.message.contains("RLIMIT_NOFILE"), "{}", ended.message);
    assert!(engine.connections().is_empty());
    drop(hog);
    std::thread::sleep(ms(5));
    engine.send_to(&endpoint, &[b"after relief"], LIMIT).expect("sent");
    peer.wait_received(1, LIMIT);
}

/// Descriptors that were there when the dial was admitted are gone when the name has been looked up: libzmq cannot
/// make its TCP socket, and once aborted the process over it.
#[test]
fn a_dial_that_loses_its_descriptors_midway_ends_at_its_deadline_at_the_latest() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().descriptors(128).parent() {
        return;
    }
    let server = names::hosts_and_server("");
    let peer = Peer::any();
    let endpoint = format!("tcp://peer.test:{}", peer.port());
    let engine = Engine::with(&[("connect_timeout_ms", "400"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let other = engine.ready(peer.endpoint());
    let mut starved = 0;
    for _ in 0..3 {
        let watch = Stopwatch::start();
        let conn = engine.lazy(&endpoint);
        wait_until("the name server is asked", LIMIT, || server.held() > 0);
        let mut hog = Hog::leaving(0);
        while conn.info().state == ConnectionState::Connecting {
            server.answer(Ipv4Addr::LOCALHOST);
            // The look-up gives its descriptors back when it is done; the first caller has them.
            hog.take_all();
            std::thread::yield_now();
        }
        watch.at_most(ms(600), "the dial");
        send(&other, &[b"x"], LIMIT).expect("a live connection goes on");
        if conn.info().state == ConnectionState::Ended {
            starved += 1;
            let info = conn.info();
            assert_eq!((info.status, info.accepted), (Status::ConnectFailed, 0));
            assert_ne!(info.os_errno, 0, "{}", info.message);
        }
        drop(hog);
        conn.disconnect().unwrap();
        std::thread::sleep(ms(5)); // a step
    }
    println!("{starved} of 3 dials found no descriptor");
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| engine.send_to(&endpoint, &[b"after relief"], LIMIT));
        while !sending.is_finished() {
            server.answer(Ipv4Addr::LOCALHOST);
            std::thread::sleep(ms(1));
        }
        sending.join().unwrap().expect("sent");
    });
    peer.wait_received(4, LIMIT);
}

#[test]
fn a_sender_that_must_wait_needs_no_descriptor_and_is_released_all_the_same() {
    if OwnProcess::new(test_name!()).descriptors(128).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { rcvbuf: 65536, rcvhwm: 1, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "10")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let accepted = engine.fill(&conn, &[0; 64 * 1024]);
    let hog = Hog::leaving(0);
    refused(engine.event_fd(), Status::Limit);
    std::thread::scope(|scope| {
        let room = scope.spawn(|| send(&conn, &[b"room"], LIMIT));
        wait_waiting(&conn, 1, LIMIT);
        peer.resume();
        room.join().unwrap().expect("sent as soon as there is room");
        peer.wait_received(accepted + 1, LIMIT);
        peer.stop();
        engine.fill(&conn, &[0; 64 * 1024]);
        let blocked: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&conn, &[b"never"], LIMIT))).collect();
        wait_waiting(&conn, 3, LIMIT);
        engine.disconnect_endpoint(peer.endpoint()).unwrap();
        let watch = Stopwatch::start();
        for send in blocked {
            refused(send.join().unwrap(), Status::Disconnected);
        }
        watch.at_most(ms(100), "the release");
    });
    drop(hog);
    engine.event_fd().expect("a descriptor for events");
}

/// Whatever another thread of the process opens and closes meanwhile: an error, never the end of the process.
#[test]
fn stress_a_process_that_keeps_running_out_of_descriptors_lives_on() {
    if OwnProcess::new(test_name!()).descriptors(96).limit(soak_time(Duration::ZERO) + 6 * LIMIT).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 8, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1"), ("connect_timeout_ms", "100")]);
    engine.ready(peer.endpoint());
    let over = AtomicBool::new(false);
    let until = Instant::now() + soak_time(ms(1500));
    let (mut sent, mut failed) = (0u64, 0u64);
    std::thread::scope(|scope| {
        let mut hog = Hog::leaving(96);
        let over = &over;
        scope.spawn(move || {
            for round in 0.. {
                hog.take_all();
                std::thread::sleep(Duration::from_micros(round * 37 % 700));
                hog.held.clear();
                std::thread::sleep(Duration::from_micros(round * 53 % 900));
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut odd = None;
        while Instant::now() < until && odd.is_none() {
            for endpoint in peer.endpoints() {
                match engine.send_to(endpoint, &[b"x"], LIMIT) {
                    Ok(_) => sent += 1,
                    Err(error) => {
                        failed += 1;
                        if !matches!(error.status, Status::Limit | Status::ConnectFailed | Status::Backoff) {
                            odd = Some(error);
                        }
                    }
                }
                if let Ok(id) = engine.find(endpoint) {
                    connection(id).disconnect().unwrap();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(odd.is_none(), "{odd:?}");
    });
    println!("{sent} sent, {failed} refused");
    assert!(failed > 0 && sent > 0, "{sent} sent, {failed} refused: nothing was put to the test");
    std::thread::sleep(ms(20));
    let before = peer.received().messages;
    for endpoint in peer.endpoints() {
        engine.send_to(endpoint, &[b"after relief"], LIMIT).expect("sent");
    }
    peer.wait_received(before + 8, LIMIT);
}

/// In a process with threads the kernel waits while it enlarges its table of descriptors, for seconds on a busy machine. The
/// watcher waited with it: no dial went on, and no loss was seen.
#[test]
fn the_kernels_table_of_descriptors_grows_before_it_is_full() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let table = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("proc");
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).expect("the table's size");
        size.trim().parse::<usize>().expect("a number")
    };
    let grown = |least: usize| wait_until(&format!("room for {least}"), LIMIT, || table() >= least);
    let peer = Peer::with(PeerOptions { endpoints: 70, ..PeerOptions::default() });
    let engine = Engine::new();
    engine.ready(peer.endpoint());
    grown(256);
    for endpoint in &peer.endpoints()[1..] {
        engine.ready(endpoint);
    }
    let open = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    assert!((129..256).contains(&open), "{open} descriptors");
    grown(512);
}
