//! Signals as fast as another thread can send them, without SA_RESTART, to a thread that makes calls that do not wait
//! (field report R30).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::events::EventKind;
use kvconn::timeout::Timeout;

use crate::common::engine::{after, send};
use crate::common::{Engine, OwnProcess, Peer, ms};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_alarm(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Has the calling thread signalled from now on, by a thread that does nothing else: the kernel must meet it within the
/// few hundred nanoseconds of a system call that does not wait.
fn begin_storm() {
    let handler: extern "C" fn(libc::c_int) = on_alarm;
    // SAFETY: a sigaction of zeroes has no flags (so no SA_RESTART) and an empty mask; the handler only counts.
    let target = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        libc::gettid()
    };
    std::thread::spawn(move || {
        loop {
            // SAFETY: signals a thread of this process; a handler is there. The process ends with the test.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), target, libc::SIGALRM) };
            let next = Instant::now() + Duration::from_micros(5);
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
    });
}

#[test]
fn no_call_notices_a_storm_of_signals() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    let engine = Engine::with(&[("connect_timeout_ms", "20000"), ("handshake_timeout_ms", "20000")]);
    begin_storm();
    let (begun, mut rounds) = (Instant::now(), 0);
    while rounds < 100 || begun.elapsed() < ms(1000) {
        rounds += 1;
        let conn = engine.connect(peer.endpoint(), LONG).expect("a healthy peer");
        let conn = crate::common::engine::connection(conn);
        // Without waiting: there is room, so each is accepted.
        for _ in 0..20 {
            send(&conn, &[b"one", b"two"], Duration::ZERO).expect("there is room");
        }
        let (flushed, acknowledged) = conn.flush(0, Timeout::After(LONG));
        flushed.expect("a healthy peer");
        assert_eq!(acknowledged, 20);
        assert_eq!(engine.expect_event(EventKind::Ready, Duration::ZERO).conn, conn.id());
        conn.disconnect().expect("live");
        engine.disconnect_all(after(LONG)).expect("all is acknowledged");
        engine.events();
    }
    peer.wait_received(20 * rounds, LONG);
    let signals = SIGNALS.load(Ordering::Relaxed);
    println!("{signals} signals in {:?}, {rounds} rounds", begun.elapsed());
    assert!(signals > 1000, "only {signals} signals: this tests nothing");
}
