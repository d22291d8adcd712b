//! What a small message costs: kvconn with the ledger and without, beside libzmq used as its examples do. `make bench`.
//!
//! One thread sends to one PULL peer in its own process, over TCP on this host. Every round measures every form once,
//! in another order than the round before: what else the machine does meets all of them alike. Printed are medians.

use std::ffi::{CString, c_int, c_void};
use std::time::{Duration, Instant};

use common::engine::{after, message};
use common::{Engine, Peer, PeerOptions};

#[path = "../tests/common/mod.rs"]
mod common;

const MESSAGES: u64 = 400_000;
const SIZE: usize = 64;
const ROUNDS: usize = 41;
const LONG: Duration = Duration::from_secs(60);
/// Of 4.3.5's draft API; kvconn sets it as well.
const ZMQ_OUT_BATCH_SIZE: c_int = 102;

/// Who sends.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    /// The options of kvconn's connection; none: it is libzmq alone.
    settings: Option<&'static [(&'static str, &'static str)]>,
}

/// The first is what the others are compared with. A form whose option this build does not know is left out.
const FORMS: [Form; 3] = [
    Form { name: "libzmq alone", settings: None },
    Form { name: "kvconn, no ledger", settings: Some(&[("acknowledgement", "off")]) },
    Form { name: "kvconn", settings: Some(&[]) },
];

impl Form {
    fn is_known(&self) -> bool {
        let mut options = kvconn::options::Options::default();
        self.settings.unwrap_or_default().iter().all(|(name, value)| options.set(name, value).is_ok())
    }

    fn measure(&self, hwm: i32) -> Cost {
        match self.settings {
            Some(settings) => kvconn(hwm, settings),
            None => libzmq(hwm),
        }
    }
}

fn main() {
    if let Ok(role) = std::env::var(common::process::ROLE) {
        common::peer_main::play(&role);
    }
    let (known, unknown): (Vec<Form>, Vec<Form>) = FORMS.into_iter().partition(Form::is_known);
    for form in unknown {
        println!("left out, its option is not known: {}", form.name);
    }
    println!("one thread, {SIZE} bytes, {MESSAGES} messages, medians of {ROUNDS} rounds:");
    // Without limit the sender only hands over; with one it goes at the pace of libzmq's I/O thread and the peer.
    for (hwm, pace) in [(10_000_000, "the queue is never full"), (1000, "the queue of 1000 is often full")] {
        let costs = rounds(&known, hwm);
        println!("\n{pace:31}   until all arrived       sender's processor");
        for (form, costs) in known.iter().zip(&costs) {
            print!("{:31}", form.name);
            for (place, of) in [(0, Cost::wall as fn(&Cost) -> f64), (1, Cost::processor)] {
                let each = median(costs.iter().map(of));
                print!("{}{each:6.0} ns", if place == 0 { "   " } else { "      " });
                if place == 0 {
                    print!(" {:5.2} M/s", 1000.0 / each);
                }
            }
            println!();
        }
        for (first, one) in (0..known.len()).flat_map(|one| (0..one).map(move |first| (first, one))) {
            // The ratio within each round: what the machine did then, it did to both.
            let ratio = |of: fn(&Cost) -> f64| {
                median(costs[first].iter().zip(&costs[one]).map(|(first, one)| of(first) / of(one)))
            };
            let [wall, processor] = [ratio(Cost::wall), ratio(Cost::processor)];
            let names = format!("{} / {}", known[one].name, known[first].name);
            println!("{names:43} throughput {wall:.3}, of the processor {processor:.3}");
        }
    }
}

/// The costs of each form, round by round.
fn rounds(forms: &[Form], hwm: i32) -> Vec<Vec<Cost>> {
    let mut costs = vec![Vec::new(); forms.len()];
    for round in 0..ROUNDS {
        for place in 0..forms.len() {
            let form = (place + round) % forms.len();
            costs[form].push(forms[form].measure(hwm));
        }
    }
    costs
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What so many sends took.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    /// Of the sending thread alone, which other processes on the machine disturb less.
    processor: Duration,
}

impl Cost {
    fn of(peer: &Peer, send: impl Fn()) -> Cost {
        for _ in 0..1000 {
            send();
        }
        let arrived = peer.wait_received(1000, LONG).messages;
        let (begun, before) = (Instant::now(), processor());
        for _ in 0..MESSAGES {
            send();
        }
        let processor = processor() - before;
        peer.wait_received(arrived + MESSAGES, LONG);
        Cost { wall: begun.elapsed(), processor }
    }

    /// Nanoseconds for each message.
    fn wall(&self) -> f64 {
        self.wall.as_nanos() as f64 / MESSAGES as f64
    }

    fn processor(&self) -> f64 {
        self.processor.as_nanos() as f64 / MESSAGES as f64
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

fn kvconn(hwm: i32, settings: &[(&str, &str)]) -> Cost {
    let peer = peer();
    let engine = Engine::with(&[&[("send_hwm", hwm.to_string().as_str())], settings].concat());
    let conn = engine.ready(peer.endpoint());
    let frame = [7; SIZE];
    Cost::of(&peer, || _ = conn.send(&mut || message(&[&frame]), after(LONG)).expect("room"))
}

/// One PUSH socket with the same options.
fn libzmq(hwm: i32) -> Cost {
    let peer = peer();
    let endpoint = CString::new(peer.endpoint()).expect("no NUL");
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
            assert_eq!(zmq_sys::zmq_send(socket, frame.as_ptr().cast(), SIZE, 0), SIZE as c_int);
        });
        zmq_sys::zmq_close(socket);
        zmq_sys::zmq_ctx_term(context);
        cost
    }
}
