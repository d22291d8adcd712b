//! Messages of very many frames beside other calls (field report R33).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;

use crate::common::engine::{SetOnDrop, after, connection, message, send, wait_ended};
use crate::common::load::{Starved, Stopwatch};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);
const FRAMES: usize = 65_536;
/// Guarantee 1: how long a call takes that does not wait.
const BOUND: Duration = ms(10);

/// Frames for a send without a copy.
struct Buffers(Vec<*const [u8]>);

// SAFETY: they point to static bytes.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn list(&self) -> &[*const [u8]] {
        &self.0
    }
}

/// How long a call took, what the machine's load excuses, and for how long threads that hardly ran were ready to run.
type Time = (Duration, Duration, Duration);

/// How long calls took.
#[derive(Default)]
struct Times(Vec<Time>);

impl Times {
    fn take<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let starved = Starved::begin();
        let watch = Stopwatch::of_this_thread();
        let result = call();
        let (took, excused) = (watch.elapsed(), watch.excused());
        let starved = if took > BOUND { starved.since(BOUND) } else { Duration::ZERO };
        self.0.push((took, excused, starved));
        result
    }

    /// Half of them within the bound whatever else the machine does, and nearly all but for its load. The rest found a lock
    /// whose holder the load kept from running.
    #[track_caller]
    fn check(mut self, what: &str) {
        self.0.sort_unstable();
        let (count, median) = (self.0.len(), self.0[self.0.len() / 2].0);
        let late: Vec<_> = self.0.iter().filter(|(took, excused, _)| *took > BOUND + *excused).collect();
        println!(
            "{what}: {count} times, median {median:?}, longest (took, excused, others ready to run) {:?}; late: {late:?}",
            self.0[count - 1]
        );
        assert!(median <= BOUND, "{what}: half of {count} take {median:?} or longer");
        assert!(late.len() <= 2 + count / 20, "{what}: of {count}, these take too long: {late:?}");
        for (took, excused, starved) in late {
            assert!(
                *took <= BOUND + *excused + *starved,
                "{what} took {took:?}, allowed are {BOUND:?}, {excused:?} for the load and {starved:?} of other threads"
            );
        }
    }
}

#[test]
fn messages_of_65536_frames_delay_no_other_call() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let busy = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let other = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let calm = engine.ready(other.endpoint());
    let frames: Vec<&[u8]> = vec![b"x"; FRAMES];
    let (over, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
    let [mut disconnects, mut failures, mut sends] = [(); 3].map(|()| Times::default());
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for _ in 0..6 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match engine.send_to(busy.endpoint(), &frames, ms(2000)) {
                        Ok(_) => _ = accepted.fetch_add(1, Ordering::Relaxed),
                        Err(_) => std::thread::sleep(ms(1)),
                    }
                }
            });
        }
        // At nearly every moment a message is being handed over.
        for round in 0..20 {
            let node = engine.node("busy", &[busy.endpoint()]);
            let before = accepted.load(Ordering::Relaxed);
            let flows = || accepted.load(Ordering::Relaxed) > before + 6;
            wait_until("the six threads get through", LONG, flows);
            for _ in 0..10 {
                sends.take(|| send(&calm, &[b"x"], Duration::ZERO)).expect("there is room");
                sends.take(|| engine.send_to(other.endpoint(), &[b"x"], Duration::ZERO)).expect("there is room");
                std::thread::sleep(ms(1));
            }
            if round % 2 == 0 {
                failures.take(|| engine.handle_failure(node, None)).expect("it lives");
            } else if let Ok(conn) = engine.find(busy.endpoint()) {
                let conn = connection(conn);
                disconnects.take(|| conn.disconnect()).expect("no error");
            }
        }
    });
    disconnects.check("disconnect");
    failures.check("handle_failure");
    sends.check("a send without waiting to another endpoint");
}

/// What a sender in the middle of its message gets when the connection ends, and that the peer gets whole messages
/// only.
#[test]
fn a_long_message_is_accepted_whole_or_not_at_all() {
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::new();
    let frames: Vec<&[u8]> = vec![b"x"; FRAMES];
    let buffers = Buffers(frames.iter().map(|frame| &raw const **frame).collect());
    let (mut whole, mut refused, mut longest) = (0, 0, [Duration::ZERO; 2]);
    for round in 0..40_u64 {
        let conn = engine.ready(peer.endpoint());
        let mut copied = Some(message(&frames).expect("memory"));
        let starts = Barrier::new(2);
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                starts.wait();
                if round % 2 == 0 {
                    conn.send(&mut || Ok(copied.take().expect("asked once")), after(LONG))
                } else {
                    // SAFETY: the bytes are static.
                    unsafe { conn.send_owned(buffers.list(), None, after(LONG)) }
                }
            });
            starts.wait();
            let at = Instant::now() + Duration::from_micros(100 * round);
            while Instant::now() < at {
                std::hint::spin_loop();
            }
            conn.disconnect().expect("no error");
            let watch = Stopwatch::start();
            let sent = sender.join().expect("a sender");
            // It makes and drops 65,536 frames, which takes its share of a busy machine. If it waited in vain for
            // libzmq to give back zero-copy frames, it would take 10 s.
            watch.at_most(ms(5000), "a send whose connection has ended");
            longest[(round % 2) as usize] = longest[(round % 2) as usize].max(watch.elapsed());
            sent
        });
        let end = wait_ended(&conn, LONG);
        match sent {
            Ok(sequence) => {
                assert_eq!((sequence, end.accepted), (1, 1));
                whole += 1;
            }
            Err(error) => {
                assert_eq!((error.status, end.accepted), (Status::Disconnected, 0), "{error:?}");
                refused += 1;
            }
        }
        wait_until("the socket is closed", LONG, || conn.gone().is_some());
    }
    println!(
        "{whole} accepted, {refused} refused; a send returned after {longest:?} (copied, without a copy) at the latest"
    );
    // On one that lives, they arrive whole, and between them those of other threads.
    let before = peer.received();
    let conn = engine.ready(peer.endpoint());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..5).for_each(|_| _ = send(&conn, &frames, LONG).expect("a healthy peer")));
            scope.spawn(|| (0..200).for_each(|_| _ = send(&conn, &[b"y", b"z"], LONG).expect("a healthy peer")));
        }
    });
    assert_eq!(conn.info().rescues, 0);
    let messages = before.messages + 15 + 600;
    peer.wait_received(messages, LONG);
    let received = peer.received();
    assert_eq!((received.messages, received.frames), (messages, before.frames + 15 * FRAMES as u64 + 1200));
}
