//! Peers that send what no libzmq sends. The process does not abort, no call is late, memory and descriptors stay
//! bounded, and a stream to a healthy peer goes on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::Status;

use crate::common::engine::{connection, send, status_of, wait_ended};
use crate::common::load::{Stopwatch, ThreadHistory};
use crate::common::raw_peer::{GREETING, READY};
use crate::common::{
    Engine, OwnProcess, Peer, PeerOptions, Random, descriptors_at_rest, ms, resident_bytes, soak_time,
};
use crate::test_name;

const LONG: Duration = Duration::from_secs(60);
/// What all hostile peers together may make this process keep.
const MEMORY: u64 = 64 << 20;
const HANDSHAKE: Duration = ms(300);
/// What a hostile peer does with its visitor. It ends when it likes, at the latest when writing fails.
type Attack = fn(&mut TcpStream, &mut Random) -> std::io::Result<()>;

/// The attacks by name. Those of the second list shake hands first.
const BEFORE_READY: &[(&str, Attack)] = &[
    ("garbage", |to, random| to.write_all(&bytes(random, 2000))),
    ("a greeting cut short", |to, random| to.write_all(&GREETING[..random.below(64) as usize])),
    ("a greeting with wrong bytes", |to, random| {
        let mut all = [&GREETING[..], READY].concat();
        for _ in 0..=random.below(4) {
            let at = random.below(all.len() as u64) as usize;
            all[at] = random.below(256) as u8;
        }
        to.write_all(&all)
    }),
    ("another version", |to, random| {
        let mut greeting = GREETING;
        greeting[10] = random.below(256) as u8;
        to.write_all(&[&greeting[..], READY].concat())
    }),
    ("ZMTP 1", |to, _| to.write_all(b"\x01\x00")),
    ("ZMTP 2", |to, _| to.write_all(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x07\x00\x00")),
    ("another mechanism", |to, random| {
        let mut greeting = GREETING;
        let name = random.one_of(&["PLAIN", "CURVE", "GSSAPI", "NULLNULLNULLNULLNULL", ""]);
        greeting[12..32].fill(0);
        greeting[12..12 + name.len()].copy_from_slice(name.as_bytes());
        to.write_all(&[&greeting[..], READY].concat())
    }),
    ("a length beyond all memory", |to, random| {
        let length = random.one_of(&[u64::MAX, i64::MAX as u64, 1 << 40, (i32::MAX as u64) + 1, 4097]);
        to.write_all(&GREETING)?;
        to.write_all(&[&[random.one_of(&[2, 3, 6, 7])], &length.to_be_bytes()[..]].concat())?;
        flood(to, &bytes(random, 4000), ms(200))
    }),
    ("a READY of lies", |to, random| {
        let mut ready = b"\x05READY".to_vec();
        for _ in 0..random.below(20) {
            ready.push(random.below(256) as u8);
            ready.extend(bytes(random, 12));
            ready.extend((random.below(1 << 33) as u32).to_be_bytes());
            ready.extend(bytes(random, 12));
        }
        to.write_all(&GREETING)?;
        command(to, &ready)
    }),
    ("another socket type", |to, random| {
        let kind = random.one_of(&["PUSH", "PUB", "REP", "DEALER", "SERVER", "", "PULLPULL"]);
        to.write_all(&GREETING)?;
        let head = b"\x05READY\x0bSocket-Type";
        command(to, &[&head[..], &(kind.len() as u32).to_be_bytes(), kind.as_bytes()].concat())
    }),
    ("an ERROR", |to, random| {
        to.write_all(&GREETING)?;
        let claimed = random.below(256) as u8;
        command(to, &[b"\x05ERROR", &[claimed][..], &bytes(random, 40)].concat())
    }),
    ("a command again and again", |to, random| {
        to.write_all(&GREETING)?;
        let name = random.one_of(&[&b"\x04PING\0\0"[..], b"\x05HELLO", b"\x09SUBSCRIBE", b"\xff", b""]);
        (0..1000).try_for_each(|_| command(to, name))
    }),
    ("a byte at a time", |to, _| {
        for byte in [&GREETING[..], READY].concat() {
            to.write_all(&[byte])?;
            std::thread::sleep(ms(20));
        }
        Ok(())
    }),
    ("nothing", |to, _| to.read(&mut [0; 200]).map(|_| ())),
    ("a half-closed stream", |to, random| {
        to.write_all(&GREETING[..random.below(65) as usize])?;
        to.shutdown(Shutdown::Write)
    }),
];
const AFTER_READY: &[(&str, Attack)] = &[
    ("garbage after the handshake", |to, random| to.write_all(&bytes(random, 20_000))),
    ("a message beyond all memory", |to, random| {
        let length = random.one_of(&[u64::MAX, i64::MAX as u64, 1 << 40, 1 << 20, 4097]);
        to.write_all(&[&[random.one_of(&[2, 3])], &length.to_be_bytes()[..]].concat())?;
        flood(to, &[7; 60_000], ms(300))
    }),
    ("a flood of messages", |to, random| {
        let message = [&[random.below(2) as u8, 200][..], &[7; 200]].concat();
        flood(to, &message.repeat(300), ms(300))
    }),
    ("a flood of PING, and no PONG is read", |to, random| {
        let context = random.below(17) as u8;
        let ping = [&[4, 7 + context][..], b"\x04PING", &[0, 0], &vec![7; context.into()]].concat();
        flood(to, &ping.repeat(2000), ms(300))
    }),
    ("PINGs of any size and time to live", |to, random| {
        (0..200).try_for_each(|_| command(to, &[&b"\x04PING"[..], &bytes(random, 250)].concat()))
    }),
    ("PONG, READY, SUBSCRIBE, unknown commands", |to, random| {
        let names = [&b"\x04PONG"[..], b"\x05READY", b"\x09SUBSCRIBE", b"\x06CANCEL", b"\x01X", b"\xff", b""];
        (0..200).try_for_each(|_| command(to, &[random.one_of(&names), &bytes(random, 100)].concat()))
    }),
    ("frames without end", |to, random| {
        flood(to, &[&[1, 1, 7][..]].concat().repeat(1 + random.below(5000) as usize), ms(300))
    }),
    ("urgent data, then a half-closed stream", |to, random| {
        use std::os::fd::AsRawFd;
        // SAFETY: one byte is read; the descriptor is open.
        unsafe { libc::send(to.as_raw_fd(), [7_u8].as_ptr().cast(), 1, libc::MSG_OOB | libc::MSG_NOSIGNAL) };
        to.write_all(&bytes(random, 20))?;
        to.shutdown(Shutdown::Write)
    }),
];

fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most + 1)).map(|_| random.below(256) as u8).collect()
}

fn command(to: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    to.write_all(&[&[6], &(body.len() as u64).to_be_bytes()[..], body].concat())
}

/// Writes this again and again, for so long.
fn flood(to: &mut TcpStream, what: &[u8], time: Duration) -> std::io::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        to.write_all(what)?;
    }
    Ok(())
}

/// A listener that does the same to each visitor.
struct Hostile {
    endpoint: String,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    fn new(attack: Attack, shakes_hands: bool, seed: u64) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
        listener.set_nonblocking(true).expect("non-blocking");
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        let thread = std::thread::spawn(move || {
            let mut random = Random::new(seed | 1);
            while !stop.load(Ordering::SeqCst) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(ms(1));
                    continue;
                };
                stream.set_nonblocking(false).expect("blocking");
                for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
                    set(&stream, Some(ms(500))).expect("a timeout");
                }
                // Closing with its bytes unread would reset the stream before the visitor has read the attack.
                let mut hands = || {
                    stream.write_all(&[&GREETING[..], READY].concat())?;
                    stream.read_exact(&mut [0; 64 + 28])
                };
                if !shakes_hands || hands().is_ok() {
                    // What comes of it is seen at the other end.
                    attack(&mut stream, &mut random).ok();
                }
                // Some hang up at once, some say so first, some stay until they are left.
                match random.below(3) {
                    0 => {}
                    1 => drop(stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0; 200]))),
                    _ => drop(std::io::copy(&mut stream, &mut std::io::sink())),
                }
            }
        });
        Hostile { endpoint, stopped, thread: Some(thread) }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a hostile peer");
        }
    }
}

/// One visit: connects, sends if it may, and leaves. Every call is in time.
fn visit(engine: &Engine, hostile: &Hostile, name: &str) -> (Status, bool) {
    let watch = Stopwatch::start();
    let connected = engine.connect(&hostile.endpoint, LONG);
    watch.at_most(HANDSHAKE + ms(1000), name);
    let status = status_of(&connected);
    let Ok(id) = connected else {
        assert!(matches!(status, Status::ConnectFailed | Status::PeerLost | Status::Backoff), "{name}: {status:?}");
        return (status, false);
    };
    let conn = connection(id);
    let watch = Stopwatch::start();
    let mut sent = 0;
    for _ in 0..20 {
        sent += u32::from(send(&conn, &[b"for a rank", &[7; 1000]], ms(20)).is_ok());
    }
    watch.at_most(ms(20 * 20 + 500), name);
    let watch = Stopwatch::start();
    engine.disconnect_endpoint(&hostile.endpoint).ok();
    watch.at_most(ms(200), name);
    (status, sent > 0)
}

#[test]
fn hostile_peers_harm_nobody_else_soak() {
    let time = soak_time(ms(4000));
    if OwnProcess::new(test_name!()).network_if_possible().limit(time + LONG).parent() {
        return;
    }
    let text = HANDSHAKE.as_millis().to_string();
    let engine = Engine::with(&[("handshake_timeout_ms", &text), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let healthy = Engine::new();
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let bystander = healthy.ready(peer.endpoint());
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    // What the threads did when a call was late. All dials were late at once while the watcher waited for the kernel, which
    // enlarged its table of descriptors.
    let threads = ThreadHistory::begin();
    // KVCONN_HOSTILE chooses the attacks whose name contains it.
    let chosen = std::env::var("KVCONN_HOSTILE").unwrap_or_default();
    let all: Vec<_> = BEFORE_READY.iter().map(|a| (a, false)).chain(AFTER_READY.iter().map(|a| (a, true))).collect();
    let all: Vec<_> = all.into_iter().filter(|((name, _), _)| name.contains(&chosen)).collect();
    let (before, memory) = (descriptors_at_rest(), resident_bytes());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let watch = Stopwatch::start();
                send(&bystander, &[b"all is well"], LONG).expect("a healthy peer");
                watch.at_most(ms(500), "a send to a healthy peer");
                if sent.fetch_add(1, Ordering::SeqCst) % 4000 == 3999 {
                    println!("after {:?}: {} KiB resident", begun.elapsed(), resident_bytes() >> 10);
                }
                std::thread::sleep(ms(1));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                drop(engine.events());
                std::thread::sleep(ms(10));
            }
        });
        let workers: Vec<_> = all
            .iter()
            .map(|((name, attack), shakes_hands)| {
                let engine = &engine;
                scope.spawn(move || {
                    let hostile = Hostile::new(*attack, *shakes_hands, name.len() as u64 * 7919);
                    let (mut visits, mut ready, mut served) = (0, 0, 0);
                    let mut statuses = std::collections::BTreeMap::new();
                    while begun.elapsed() < time || visits < 3 {
                        let (status, sent) = visit(engine, &hostile, name);
                        visits += 1;
                        *statuses.entry(format!("{status:?}")).or_insert(0) += 1;
                        ready += u32::from(status == Status::Ok);
                        served += u32::from(sent);
                        // Backoff between visits.
                        std::thread::sleep(ms(2));
                    }
                    println!("{name}: {visits} visits, READY {ready} times, sent in {served} {statuses:?}");
                    // An attack after the handshake must have got that far.
                    assert!(!shakes_hands || ready > 0, "{name}: never READY");
                })
            })
            .collect();
        let harmed: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().err()).collect();
        stop.store(true, Ordering::SeqCst);
        if !harmed.is_empty() {
            threads.print();
        }
        assert!(harmed.is_empty(), "{} attacks did harm", harmed.len());
    });
    assert_eq!(bystander.info().state, ConnectionState::Ready);
    bystander.flush(0, kvconn::timeout::Timeout::After(LONG)).0.expect("a healthy peer");
    let sent = sent.load(Ordering::SeqCst);
    peer.wait_received(sent, LONG);
    assert_eq!(peer.received().accepted, 1, "one connection, all the time");
    let (after, grown) = (descriptors_at_rest(), resident_bytes().saturating_sub(memory));
    println!("{sent} messages to the healthy peer; {} KiB more resident", grown >> 10);
    assert_eq!(after, before, "descriptors are left");
    assert!(grown < MEMORY, "{grown} bytes more than before");
}

/// A handshake that goes on and on ends with its timeout, not with its last byte.
#[test]
fn a_handshake_that_trickles_ends_with_its_timeout() {
    let engine = Engine::with(&[("handshake_timeout_ms", "300")]);
    let hostile = Hostile::new(BEFORE_READY.iter().find(|(name, _)| *name == "a byte at a time").unwrap().1, false, 5);
    let watch = Stopwatch::start();
    let error = engine.connect(&hostile.endpoint, LONG).expect_err("92 bytes take two seconds");
    assert_eq!(error.status, Status::ConnectFailed, "{error:?}");
    watch.between(ms(290), ms(900), "a handshake timeout of 300 ms");
}

/// libzmq counts messages, not frames: a message whose frames never end went into memory without a limit.
#[test]
fn a_message_without_an_end_ends_the_connection_and_is_not_kept() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let endless: Attack = |to, _| flood(to, &[&[1, 200][..], &[7; 200]].concat().repeat(300), ms(2000));
    let hostile = Hostile::new(endless, true, 7);
    let engine = Engine::new();
    let before = resident_bytes();
    let conn = engine.lazy(&hostile.endpoint);
    let info = wait_ended(&conn, LONG);
    assert_eq!(info.status, Status::PeerLost, "{info:?}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{} KiB more resident", grown >> 10);
}
