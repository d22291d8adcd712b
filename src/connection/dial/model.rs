//! Any events that libzmq could report, from its thread's call to what a dial makes of them: for the tests, and for the
//! fuzz target `monitor`.

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Dial, DialFailure, Verdict};
use crate::connection::socket::{MonitorEvent, event, is_self_connected};
use crate::libzmq;
use crate::options::Values;

/// Runs a script in which sockets report. Each has a dial over two addresses.
pub fn monitor_events(script: &[u8]) {
    let mut now = Instant::now();
    let values = Values::defaults();
    let mut dials = [false, true, false].map(|curve| {
        let mut dial = Dial::new(now, &values, Arc::default());
        dial.curve = curve;
        dial.addresses([c"tcp://127.0.0.1:1", c"tcp://127.0.0.2:1"].map(|text| Ok(CString::from(text))));
        assert!(dial.next_address(now).is_some());
        Some(dial)
    });
    libzmq::model::run(script, |place, number, value| {
        now += Duration::from_millis(200);
        // A number that no descriptor has: those below it are open files of other tests.
        let value = if number == zmq_sys::ZMQ_EVENT_CONNECTED { value | 1 << 30 } else { value };
        let Some(event) = event(number, value) else { return };
        if let MonitorEvent::Connected(fd) = event {
            assert!(!is_self_connected(fd));
        }
        let Some(dial) = &mut dials[place] else { return };
        match dial.on_seen(event, now) {
            Verdict::Wait => {}
            Verdict::TryNext => assert!(dial.next_address(now).is_some(), "no address is left"),
            Verdict::Failed(DialFailure { os_errno, message }) => {
                assert!(os_errno != 0 && !message.is_empty() && !message.contains('\n'), "{os_errno}: {message:?}");
                dials[place] = None;
            }
        }
    });
}
