//! A stream to a healthy peer, that what happens at other endpoints must not disturb.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::send;
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, PeerOptions, ms};

const LIMIT: Duration = Duration::from_secs(10);

/// Streams while `meanwhile` runs; panics when a send takes long, or when what was sent has not arrived a moment
/// later. The queue is short, so that a pause of libzmq's I/O thread is a pause of the stream. Returns what `meanwhile`
/// does.
pub fn undisturbed<T>(engine: &Engine, meanwhile: impl FnOnce() -> T) -> T {
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "50")]);
    let over = AtomicBool::new(false);
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut latencies = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                send(&conn, &[&[0; 200]], LIMIT).expect("the healthy peer takes it");
                latencies.push(begun.elapsed());
                std::thread::sleep(Duration::from_micros(500));
            }
            latencies
        });
        // Lets the end of `meanwhile`, a panic too, be the stream's end.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let result = {
            let _over = Over(&over);
            meanwhile()
        };
        let mut latencies = stream.join().expect("the stream");
        peer.wait_received(latencies.len() as u64, ms(1000));
        latencies.sort();
        let p99 = latencies[latencies.len() * 99 / 100];
        assert!(latencies.len() > 100, "only {} messages: that is no stream", latencies.len());
        // A send takes microseconds; the rest is for a loaded machine. What would stop the stream takes a second.
        let (longest, excused) = (latencies[latencies.len() - 1], watch.excused());
        assert!(
            p99 < ms(20) + excused / 10,
            "99 of 100 sends took up to {p99:?}; for the load {excused:?} are excused"
        );
        assert!(longest < ms(200) + excused, "a send took {longest:?}; for the load {excused:?} are excused");
        result
    })
}
