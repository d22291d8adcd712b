//! A peer that is stopped, as a debugger or a long garbage collection stops it, is not dead.

use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{after, status_of};
use crate::common::load::Stopwatch;
use crate::common::tcp_view::Progress;
use crate::common::{Engine, Peer, PeerOptions, TcpView, ms, soak_time};

const LONG: Duration = Duration::from_secs(20);
const STALL: Duration = ms(1000);

/// With the default options. The minute of `make soak` lies between any stall and the user timeout of two minutes.
#[test]
fn a_peer_stopped_with_data_in_flight_is_stalled_and_recovers_and_is_not_lost_soak() {
    let stopped_for = soak_time(ms(5000)).min(ms(60_000));
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let view = TcpView::of(peer.endpoint());
    engine.events();
    peer.stop();
    let stopped = Instant::now();
    let watch = Stopwatch::start();

    // Sends on until STALLED is raised, and notes in between when the peer's kernel last took something.
    let mut progress = Progress::of(&view);
    let mut accepted = 0;
    let late = loop {
        while status_of(&engine.send(&conn, &[&[7; 20_000]], Duration::ZERO)) == Status::Ok {
            accepted += 1;
        }
        std::thread::sleep(ms(1));
        let idle = progress.idle();
        let events = engine.events();
        if let [event] = &events[..] {
            assert_eq!(event.kind, EventKind::Stalled, "{event:?}");
            break idle;
        }
        assert!(events.is_empty() && stopped.elapsed() < LONG, "{events:?} after {:?}", stopped.elapsed());
    };
    println!("stall_ms {}: STALLED {late:?} after the last byte was acknowledged", STALL.as_millis());
    let excused = watch.excused();
    assert!(late >= STALL, "STALLED too soon: {late:?}");
    assert!(late <= STALL + ms(200) + excused, "STALLED after {late:?}, and {excused:?} for the load");

    std::thread::sleep(stopped_for.saturating_sub(stopped.elapsed()));
    assert_eq!(conn.info().state, ConnectionState::Ready);
    assert_eq!(engine.events_of(EventKind::PeerLost).len(), 0);
    assert!(conn.info().stalled, "nothing has moved");

    peer.resume();
    let watch = Stopwatch::start();
    engine.expect_event(EventKind::Recovered, LONG);
    println!("RECOVERED {:?} after SIGCONT", watch.elapsed());
    watch.at_most(ms(500), "RECOVERED after SIGCONT");
    let (flushed, acknowledged) = conn.flush(0, after(LONG));
    flushed.expect("it reads again");
    assert_eq!((acknowledged, conn.info().accepted), (accepted, accepted));
    assert_eq!(peer.wait_received(accepted, LONG).messages, accepted);
}
