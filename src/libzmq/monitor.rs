//! What happens to sockets, as libzmq's threads report it, kept until one thread reads it.
//!
//! libzmq calls [`report`] in the thread that raises an event: an I/O thread, or its reaper after the socket was closed.
//! That thread serves every connection, so the call neither waits nor locks nor allocates. Each socket has room for all
//! the events of its life. A socket with unread events is in the list of its [`Inbox`], once, and the first one in the
//! list wakes the reader.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::sys::wake::EventFd;

/// Room for the events of one socket. It is dialled once and does not redial, so each kind comes once or a few times:
/// connected, options refused, ready or failed, disconnected, closed, stopped.
const ROOM: usize = 16;

/// How much of that is kept for the events that end a socket. They are never lost.
const ROOM_FOR_ENDS: usize = 3;

/// The sockets that have unread events.
pub(crate) struct Inbox {
    /// The latest of them. Each has a reference count of its own.
    latest: AtomicPtr<Reports>,
    wake: Arc<EventFd>,
}

// SAFETY: its pointers are reference counts of `Reports`, which are `Send` and `Sync`.
unsafe impl Send for Inbox {}
// SAFETY: as above.
unsafe impl Sync for Inbox {}

impl Inbox {
    /// An empty one. Its first entry makes the eventfd readable.
    pub(crate) fn new(wake: Arc<EventFd>) -> Inbox {
        Inbox { latest: AtomicPtr::new(ptr::null_mut()), wake }
    }

    /// Appends the names of the sockets that have had events since the last call, in the order of the first of these
    /// events. The eventfd must be cleared before.
    pub(crate) fn take(&self, names: &mut Vec<u64>) {
        let before = names.len();
        let mut next = self.latest.swap(ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: the list owned this reference count, and the list is this thread's since the swap.
            let reports = unsafe { Arc::from_raw(next) };
            next = reports.next.load(Ordering::Relaxed);
            // From here on the next event lists the socket again. An event before this is seen by the reader: the swap
            // reads the flag that its thread has set after the event was written.
            reports.listed.swap(false, Ordering::AcqRel);
            names.push(reports.name);
        }
        names[before..].reverse();
    }

    fn list(&self, reports: &Reports) {
        // SAFETY: a `Reports` is always in an `Arc`, see `EventReader::new`. The list owns the new count.
        unsafe { Arc::increment_strong_count(reports) };
        let entry = ptr::from_ref(reports).cast_mut();
        let mut latest = self.latest.load(Ordering::Relaxed);
        loop {
            reports.next.store(latest, Ordering::Relaxed);
            match self.latest.compare_exchange_weak(latest, entry, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => latest = other,
            }
        }
        if latest.is_null() || self.wake.owes_wake() {
            self.wake.wake();
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // Gives the list's reference counts back. Every socket has a reference to its inbox, so the list is empty here;
        // this does not rest on it.
        self.take(&mut Vec::new());
    }
}

/// The events of one socket.
struct Reports {
    name: u64,
    inbox: Arc<Inbox>,
    /// Each is its number and its value, in 32 bits each.
    events: [AtomicU64; ROOM],
    /// How many there are. They stay as they are once they are written.
    written: AtomicUsize,
    /// Whether it is in the inbox's list.
    listed: AtomicBool,
    /// The next one in the list. Written by the thread that has set `listed`, then it is the list's.
    next: AtomicPtr<Reports>,
}

impl Reports {
    /// Appends an event. One thread at a time, in order: libzmq calls under a lock of the socket.
    fn write(&self, event: u32, value: i32) {
        let written = self.written.load(Ordering::Relaxed);
        let kept = match event {
            zmq_sys::ZMQ_EVENT_MONITOR_STOPPED => 0,
            zmq_sys::ZMQ_EVENT_DISCONNECTED | zmq_sys::ZMQ_EVENT_CLOSED => 1,
            _ => ROOM_FOR_ENDS,
        };
        if written + kept >= ROOM {
            return; // not known to happen
        }
        if let Some(slot) = self.events.get(written) {
            slot.store(u64::from(event) << 32 | u64::from(value.cast_unsigned()), Ordering::Relaxed);
            self.written.store(written + 1, Ordering::Release);
        }
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.inbox.list(self);
        }
    }

    fn read(&self, place: usize) -> Option<(u32, i32)> {
        if place >= self.written.load(Ordering::Acquire) {
            return None;
        }
        let event = self.events.get(place)?.load(Ordering::Relaxed);
        Some(((event >> 32) as u32, (event as u32).cast_signed()))
    }
}

/// Reads the events of one socket.
pub(crate) struct EventReader {
    reports: Arc<Reports>,
    read: Cell<usize>,
}

impl EventReader {
    /// For a socket of that name, which the inbox will give.
    pub(super) fn new(inbox: &Arc<Inbox>, name: u64) -> EventReader {
        let reports = Arc::new(Reports {
            name,
            inbox: inbox.clone(),
            events: [const { AtomicU64::new(0) }; ROOM],
            written: AtomicUsize::new(0),
            listed: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        });
        EventReader { reports, read: Cell::new(0) }
    }

    /// The next event and its value. `None`: no other has come yet.
    pub(crate) fn next(&self) -> Option<(u32, i32)> {
        let place = self.read.get();
        let event = self.reports.read(place)?;
        self.read.set(place + 1);
        Some(event)
    }

    /// An argument for [`report`]: a reference count, which the last event gives back.
    pub(super) fn hint(&self) -> *mut c_void {
        Arc::into_raw(self.reports.clone()).cast_mut().cast()
    }
}

/// Gives back the argument of a monitor that libzmq did not take.
///
/// # Safety
/// `hint` comes from [`EventReader::hint`], and is not used any more.
pub(super) unsafe fn drop_hint(hint: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Arc::from_raw(hint.cast::<Reports>().cast_const()) });
}

/// What libzmq calls.
///
/// # Safety
/// `hint` comes from [`EventReader::hint`]. Calls with the same one are made one after the other. `MONITOR_STOPPED` is the
/// last one.
pub(super) unsafe extern "C" fn report(hint: *mut c_void, event: u64, value: u64) {
    // SAFETY: the count that the hint stands for is given back below, after the last call.
    let reports = unsafe { &*hint.cast::<Reports>().cast_const() };
    // Values of events of version 1 have 32 bits at most: a descriptor's number is an int. No event that is asked for has
    // a longer number. Cut, such a number could mean the end of the socket.
    if let Ok(number) = u32::try_from(event) {
        reports.write(number, (value as u32).cast_signed());
    }
    if event == u64::from(zmq_sys::ZMQ_EVENT_MONITOR_STOPPED) {
        // SAFETY: libzmq does not use it any more.
        unsafe { drop_hint(hint) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use super::*;
    use crate::sys::wake::wait_readable;

    const CONNECTED: u64 = zmq_sys::ZMQ_EVENT_CONNECTED as u64;
    const DISCONNECTED: u64 = zmq_sys::ZMQ_EVENT_DISCONNECTED as u64;
    const STOPPED: u64 = zmq_sys::ZMQ_EVENT_MONITOR_STOPPED as u64;

    fn inbox() -> (Arc<Inbox>, Arc<EventFd>) {
        let wake = Arc::new(EventFd::new().unwrap());
        (Arc::new(Inbox::new(wake.clone())), wake)
    }

    fn taken(inbox: &Inbox) -> Vec<u64> {
        let mut names = Vec::new();
        inbox.take(&mut names);
        names
    }

    fn all(monitor: &EventReader) -> Vec<(u32, i32)> {
        std::iter::from_fn(|| monitor.next()).collect()
    }

    #[test]
    fn events_are_read_in_order_and_a_socket_is_listed_once() {
        let (inbox, wake) = inbox();
        let [first, second] = [7, 8].map(|name| EventReader::new(&inbox, name));
        let hints = [first.hint(), second.hint()];
        let readable = || wait_readable(&[wake.as_raw_fd()], Instant::now());
        assert!(!readable() && taken(&inbox).is_empty() && first.next().is_none());
        // SAFETY: hints of these monitors, in one thread, not used after STOPPED.
        unsafe {
            report(hints[1], CONNECTED, 5);
            report(hints[0], CONNECTED, 6);
            report(hints[1], DISCONNECTED, u64::from((-1_i32).cast_unsigned()));
        }
        assert!(readable());
        wake.clear();
        assert_eq!(taken(&inbox), [8, 7]);
        assert!(taken(&inbox).is_empty() && !readable());
        assert_eq!(all(&second), [(CONNECTED as u32, 5), (DISCONNECTED as u32, -1)]);
        // SAFETY: as above.
        hints.into_iter().for_each(|hint| unsafe { report(hint, STOPPED, 0) });
        assert!(readable());
        assert_eq!(taken(&inbox), [7, 8]);
        assert_eq!(all(&first), [(CONNECTED as u32, 6), (STOPPED as u32, 0)]);
        assert_eq!(all(&second), [(STOPPED as u32, 0)]);
    }

    #[test]
    fn the_ends_find_room_after_any_number_of_other_events() {
        let (inbox, _wake) = inbox();
        let monitor = EventReader::new(&inbox, 1);
        let hint = monitor.hint();
        let events = [vec![CONNECTED; 100], vec![DISCONNECTED; 100], vec![STOPPED]].concat();
        // SAFETY: as above.
        events.into_iter().for_each(|event| unsafe { report(hint, event, 0) });
        let read: Vec<_> = all(&monitor).into_iter().map(|(event, _)| u64::from(event)).collect();
        assert_eq!(read.len(), ROOM);
        assert_eq!(read[ROOM - 3..], [DISCONNECTED, DISCONNECTED, STOPPED]);
        assert_eq!(taken(&inbox), [1], "or the list keeps it, and it keeps the inbox");
    }

    #[test]
    fn nothing_is_left_when_the_monitor_goes_first_or_libzmq_does() {
        for reader_first in [false, true] {
            let (inbox, _wake) = inbox();
            let monitor = EventReader::new(&inbox, 1);
            let (hint, left) = (monitor.hint(), Arc::downgrade(&monitor.reports));
            let mut monitor = Some(monitor).filter(|_| !reader_first);
            // SAFETY: as above.
            unsafe {
                report(hint, CONNECTED, 1);
                report(hint, STOPPED, 0);
            }
            assert!(left.upgrade().is_some(), "it is listed");
            assert_eq!(taken(&inbox), [1]);
            drop(monitor.take());
            assert!(left.upgrade().is_none());
            assert_eq!(Arc::strong_count(&inbox), 1);
        }
    }

    #[test]
    fn no_event_is_missed_while_threads_report_and_one_reads() {
        const SOCKETS: u64 = 2000;
        let (inbox, wake) = inbox();
        let monitors: Vec<_> = (0..SOCKETS).map(|name| EventReader::new(&inbox, name)).collect();
        let hints: Vec<_> = monitors.iter().map(|monitor| monitor.hint() as usize).collect();
        let mut stopped = 0;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let hints = &hints;
                scope.spawn(move || {
                    for hint in hints.iter().skip(thread).step_by(4) {
                        for event in [CONNECTED, DISCONNECTED, STOPPED] {
                            // SAFETY: as above; only this thread reports for this socket.
                            unsafe { report(*hint as *mut c_void, event, 1) };
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let deadline = Instant::now() + std::time::Duration::from_secs(60);
            let mut names = Vec::new();
            while stopped < SOCKETS {
                assert!(wait_readable(&[wake.as_raw_fd()], deadline), "{stopped} of {SOCKETS} have stopped");
                wake.clear();
                names.clear();
                inbox.take(&mut names);
                for name in &names {
                    let last = all(&monitors[*name as usize]).pop();
                    stopped += u64::from(last.is_some_and(|(event, _)| u64::from(event) == STOPPED));
                }
            }
        });
        assert!(taken(&inbox).is_empty());
        assert_eq!(Arc::strong_count(&inbox), 1 + monitors.len());
    }
}
