//! Not a test: what `Connection::send` costs beside libzmq's own send. By hand:
//! `cargo test --release --test stress -- --ignored --nocapture small_messages`.

use std::ffi::{CString, c_int, c_void};
use std::time::{Duration, Instant};

use crate::common::engine::{after, message};
use crate::common::{Engine, Peer, PeerOptions};

const MESSAGES: u64 = 1_000_000;
const SIZE: usize = 64;
const LONG: Duration = Duration::from_secs(60);
/// Of 4.3.5's draft API.
const ZMQ_OUT_BATCH_SIZE: c_int = 102;

#[test]
#[ignore = "a measurement"]
fn small_messages_beside_raw_libzmq() {
    println!("the best of seven, a message of {SIZE} bytes:");
    // Without limit the sender only hands over; with one it goes at the pace of libzmq's I/O thread and the peer.
    for hwm in [10_000_000, 1000] {
        let mut best = [Cost::MAX; 2];
        for _ in 0..7 {
            for (best, measured) in best.iter_mut().zip([raw(hwm), ours(hwm)]) {
                best.wall = best.wall.min(measured.wall);
                best.processor = best.processor.min(measured.processor);
            }
        }
        let [raw, ours] = best;
        let each = |time: Duration| time.as_nanos() as f64 / MESSAGES as f64;
        for (name, raw, ours) in
            [("until all arrived", raw.wall, ours.wall), ("the sender's processor time", raw.processor, ours.processor)]
        {
            let (raw, ours) = (each(raw), each(ours));
            println!("HWM {hwm}, {name}: raw {raw:.0} ns, kvconn {ours:.0} ns: {:.2}", raw / ours);
        }
    }
}

/// What so many sends took.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    /// Of the sending thread alone, which other processes on the machine disturb less.
    processor: Duration,
}

impl Cost {
    const MAX: Cost = Cost { wall: Duration::MAX, processor: Duration::MAX };

    fn of(peer: &Peer, send: impl Fn()) -> Cost {
        send();
        let arrived = peer.wait_received(1, LONG).messages;
        let (begun, before) = (Instant::now(), processor());
        for _ in 0..MESSAGES {
            send();
        }
        let processor = processor() - before;
        peer.wait_received(arrived + MESSAGES, LONG);
        Cost { wall: begun.elapsed(), processor }
    }
}

/// The calling thread's processor time.
fn processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn peer() -> Peer {
    Peer::with(PeerOptions { log: false, rcvhwm: 0, ..PeerOptions::default() })
}

fn ours(hwm: i32) -> Cost {
    let peer = peer();
    let engine = Engine::with(&[("send_hwm", &hwm.to_string())]);
    let conn = engine.ready(peer.endpoint());
    let frame = [7; SIZE];
    Cost::of(&peer, || _ = conn.send(&mut || message(&[&frame]), after(LONG)).expect("room"))
}

/// One PUSH socket with the same options, used as libzmq's examples do.
fn raw(hwm: i32) -> Cost {
    let peer = peer();
    let endpoint = CString::new(peer.endpoint()).unwrap();
    // SAFETY: context and socket are this thread's own and closed before the end; every buffer lives for its call.
    unsafe {
        let context = zmq_sys::zmq_ctx_new();
        let socket = zmq_sys::zmq_socket(context, zmq_sys::ZMQ_PUSH as c_int);
        let set = |option: c_int, value: c_int| {
            let value: *const c_int = &value;
            assert_eq!(zmq_sys::zmq_setsockopt(socket, option, value.cast::<c_void>(), 4), 0);
        };
        set(zmq_sys::ZMQ_SNDHWM as c_int, hwm);
        set(zmq_sys::ZMQ_LINGER as c_int, 0);
        set(ZMQ_OUT_BATCH_SIZE, 65_536);
        assert_eq!(zmq_sys::zmq_connect(socket, endpoint.as_ptr()), 0);
        let frame = [7u8; SIZE];
        let cost = Cost::of(&peer, || {
            zmq_sys::zmq_send(socket, frame.as_ptr().cast(), SIZE, 0);
        });
        zmq_sys::zmq_close(socket);
        zmq_sys::zmq_ctx_term(context);
        cost
    }
}
