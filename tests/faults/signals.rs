//! Ten thousand signals a second, without SA_RESTART, to a thread that makes calls that do not wait (field report R30).

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

/// Has the calling thread signalled 10,000 times a second from now on.
fn begin_storm() {
    let handler: extern "C" fn(libc::c_int) = on_alarm;
    let often = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    let times = libc::itimerspec { it_interval: often, it_value: often };
    // SAFETY: a sigaction of zeroes has no flags (so no SA_RESTART) and an empty mask; the handler only counts. A sigevent of
    // zeroes is valid. The timer is this process's, which ends with the test.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        assert_eq!(libc::timer_settime(timer, 0, &times, std::ptr::null_mut()), 0);
    }
}

#[test]
fn no_call_notices_ten_thousand_signals_a_second() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    let engine = Engine::with(&[("connect_timeout_ms", "20000"), ("handshake_timeout_ms", "20000")]);
    begin_storm();
    let (begun, mut rounds) = (Instant::now(), 0);
    while rounds < 100 || begun.elapsed() < ms(2000) {
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
    assert!(signals > 2000, "only {signals} signals: this tests nothing");
}
