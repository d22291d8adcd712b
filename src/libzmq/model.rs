//! What a reader must see of any sequence of events: the tests' and the fuzz target's check of `monitor.rs`.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use super::monitor::{EventReader, Inbox, report};
use crate::sys::wake::{EventFd, wait_readable};

const SOCKETS: usize = 3;
const STOPPED: u64 = zmq_sys::ZMQ_EVENT_MONITOR_STOPPED as u64;
const DISCONNECTED: u64 = zmq_sys::ZMQ_EVENT_DISCONNECTED as u64;
const CLOSED: u64 = zmq_sys::ZMQ_EVENT_CLOSED as u64;

/// What a socket reports before a reader looks: libzmq's own limit is far below.
const ROOM: usize = 16;

/// What one byte of a script stands for, more or less often. Other numbers come with eight bytes of their own.
const KNOWN: [u32; 12] = [
    zmq_sys::ZMQ_EVENT_CONNECT_DELAYED,
    zmq_sys::ZMQ_EVENT_CONNECTED,
    zmq_sys::ZMQ_EVENT_CONNECT_RETRIED,
    zmq_sys::ZMQ_EVENT_CLOSED,
    zmq_sys::ZMQ_EVENT_CLOSE_FAILED,
    zmq_sys::ZMQ_EVENT_DISCONNECTED,
    zmq_sys::ZMQ_EVENT_MONITOR_STOPPED,
    zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED,
    zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    0x8000,
];

struct Model {
    reader: Option<EventReader>,
    /// The argument of its reports, until it has stopped.
    hint: Option<*mut std::ffi::c_void>,
    /// All that there was room for.
    kept: Vec<(u32, i32)>,
    read: usize,
}

impl Model {
    fn new(inbox: &Arc<Inbox>, name: u64) -> Model {
        let reader = EventReader::new(inbox, name);
        Model { hint: Some(reader.hint()), reader: Some(reader), kept: Vec::new(), read: 0 }
    }

    /// Reports an event. True: a reader must be able to see it.
    fn report(&mut self, event: u64, value: u64) -> bool {
        let Some(hint) = self.hint else { return false };
        // SAFETY: the hint of this socket, in one thread, and not used after STOPPED.
        unsafe { report(hint, event, value) };
        if event == STOPPED {
            self.hint = None;
        }
        // The last place is for STOPPED, the two before it are for what ends a socket. No event has a number of more than
        // 32 bits.
        let room = match event {
            _ if event > u64::from(u32::MAX) => 0,
            STOPPED => ROOM,
            DISCONNECTED | CLOSED => ROOM - 1,
            _ => ROOM - 3,
        };
        let kept = self.kept.len() < room;
        if kept {
            self.kept.push((event as u32, (value as u32).cast_signed()));
        }
        kept
    }

    fn read(&mut self) -> Option<(u32, i32)> {
        let event = self.reader.as_ref()?.next();
        assert_eq!(event, self.kept.get(self.read).copied(), "event {} of {:?}", self.read, self.kept);
        self.read += usize::from(event.is_some());
        event
    }
}

/// Runs a script: sockets report, a reader looks at its inbox and reads, readers are dropped. Each event that is read is
/// given to `seen`, with the place of its socket.
pub(crate) fn run(script: &[u8], mut seen: impl FnMut(usize, u32, i32)) {
    let mut script = script.iter().copied();
    let wake = Arc::new(EventFd::new().expect("a descriptor"));
    let inbox = Arc::new(Inbox::new(wake.clone()));
    let mut sockets: Vec<_> = (0..SOCKETS).map(|name| Model::new(&inbox, name as u64)).collect();
    let mut unread: Vec<u64> = Vec::new();
    let mut take = |sockets: &mut [Model], unread: &mut Vec<u64>| {
        let readable = wait_readable(&[wake.as_raw_fd()], Instant::now());
        assert!(readable || unread.is_empty(), "{unread:?} have reported, and the reader sleeps");
        wake.clear();
        let mut names = Vec::new();
        inbox.take(&mut names);
        assert_eq!(names, *unread, "each socket that has reported, once, in the order of its first event");
        unread.clear();
        for name in names {
            let place = name as usize;
            while let Some((number, value)) = sockets[place].read() {
                seen(place, number, value);
            }
        }
    };
    while let Some(step) = script.next() {
        let place = usize::from(step >> 3) % SOCKETS;
        let mut number = |bytes: usize| (0..bytes).fold(0, |n, _| n << 8 | u64::from(script.next().unwrap_or(0)));
        match step % 8 {
            0 => take(&mut sockets, &mut unread),
            1 => drop(sockets[place].reader.take()),
            kind => {
                let event = if kind == 2 { number(8) } else { u64::from(KNOWN[number(1) as usize % KNOWN.len()]) };
                let value = if kind == 3 { number(8) } else { number(1) };
                if sockets[place].report(event, value) && !unread.contains(&(place as u64)) {
                    unread.push(place as u64);
                }
            }
        }
    }
    for (name, socket) in (0..).zip(&mut sockets) {
        if socket.report(STOPPED, 0) && !unread.contains(&name) {
            unread.push(name);
        }
    }
    take(&mut sockets, &mut unread);
    for socket in &sockets {
        assert!(socket.reader.is_none() || socket.read == socket.kept.len(), "an event was not read");
        assert_eq!(socket.kept.last().map(|(event, _)| u64::from(*event)), Some(STOPPED));
    }
    drop(sockets);
    assert_eq!(Arc::strong_count(&inbox), 1, "a report is left");
}
