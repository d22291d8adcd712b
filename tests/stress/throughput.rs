//! Not a test: what `Connection::send` costs beside libzmq's own send. Run by hand:
//! `cargo test --release --test stress -- --ignored --nocapture small_messages`.

use std::ffi::{CString, c_int, c_void};
use std::time::{Duration, Instant};

use crate::common::engine::{after, message};
use crate::common::{Engine, Peer, PeerOptions};

const MESSAGES: u64 = 3_000_000;
const SIZE: usize = 64;
/// Of 4.3.5's draft API.
const ZMQ_OUT_BATCH_SIZE: c_int = 102;

#[test]
#[ignore = "a measurement"]
fn small_messages_beside_raw_libzmq() {
    for _ in 0..5 {
        let (raw, ours) = (raw(), ours());
        let rate = |time: Duration| MESSAGES as f64 / time.as_secs_f64() / 1e6;
        println!("raw {:.3} M/s, kvconn {:.3} M/s: {:.2}", rate(raw), rate(ours), rate(ours) / rate(raw));
    }
}

fn peer() -> Peer {
    Peer::with(PeerOptions { log: false, rcvhwm: 0, ..PeerOptions::default() })
}

fn ours() -> Duration {
    let peer = peer();
    let engine = Engine::with(&[("send_hwm", "10000000")]);
    let conn = engine.ready(peer.endpoint());
    let frame = [7; SIZE];
    let begun = Instant::now();
    for _ in 0..MESSAGES {
        conn.send(&mut || message(&[&frame]), after(Duration::from_secs(10))).expect("room");
    }
    begun.elapsed()
}

/// One PUSH socket with the same options, used as libzmq's examples do.
fn raw() -> Duration {
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
        set(zmq_sys::ZMQ_SNDHWM as c_int, 10_000_000);
        set(zmq_sys::ZMQ_LINGER as c_int, 0);
        set(ZMQ_OUT_BATCH_SIZE, 65_536);
        assert_eq!(zmq_sys::zmq_connect(socket, endpoint.as_ptr()), 0);
        let frame = [7u8; SIZE];
        // The first one waits until there is a connection.
        assert_eq!(zmq_sys::zmq_send(socket, frame.as_ptr().cast(), SIZE, 0), SIZE as c_int);
        peer.wait_received(1, Duration::from_secs(10));
        let begun = Instant::now();
        for _ in 0..MESSAGES {
            zmq_sys::zmq_send(socket, frame.as_ptr().cast(), SIZE, 0);
        }
        let took = begun.elapsed();
        zmq_sys::zmq_close(socket);
        zmq_sys::zmq_ctx_term(context);
        took
    }
}
