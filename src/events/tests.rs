use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::sys::wake::wait_readable;

const LONG: Duration = Duration::from_secs(20);

/// An event with a number, so that the reader can identify it.
fn event(number: u64) -> Event {
    Event::new(EventKind::Ready, "").count(number)
}

fn now(events: &Events) -> Option<Event> {
    events.next(Instant::now())
}

/// All waiting events, as kinds and counts.
fn drain(events: &Events) -> Vec<(EventKind, u64)> {
    std::iter::from_fn(|| now(events)).map(|e| (e.kind, e.count)).collect()
}

fn readable(fd: RawFd) -> bool {
    wait_readable(&[fd], Instant::now())
}

#[test]
fn an_event_has_the_defaults_of_its_kind_and_the_given_values() {
    let endpoint = Endpoint::parse("tcp://10.0.0.1:1000").unwrap();
    let e = Event::new(EventKind::PeerLost, "gone").errno(104).conn(ConnId(3), &endpoint).count(7);
    assert_eq!((e.status, e.os_errno, e.conn, e.count), (Status::PeerLost, 104, ConnId(3), 7));
    assert_eq!((e.endpoint, e.node, e.node_name), (Some(endpoint), NodeId::NONE, None));
    let e = Event::new(EventKind::NodeFailed, "").node(NodeId(4), &"prefill".into()).status(Status::Ok);
    assert_eq!((e.status, e.node, e.node_name.as_deref()), (Status::Ok, NodeId(4), Some("prefill")));
}

#[test]
fn events_come_in_order_and_an_empty_queue_does_not_wait_past_the_deadline() {
    let events = Events::new(10);
    assert!(now(&events).is_none());
    for number in 1..4 {
        events.push(event(number));
    }
    assert_eq!(events.len(), 3);
    assert_eq!(drain(&events), [1, 2, 3].map(|n| (EventKind::Ready, n)));
    let begun = Instant::now();
    assert!(events.next(begun + Duration::from_millis(50)).is_none());
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[test]
fn stalls_are_counted_even_if_they_are_lost() {
    let events = Events::new(2);
    for kind in [EventKind::Stalled, EventKind::Recovered, EventKind::Stalled, EventKind::Stalled] {
        events.push(Event::new(kind, ""));
    }
    assert_eq!((events.stalls(), events.dropped_total()), (3, 2));
}

#[test]
fn an_overflow_takes_the_place_of_the_loss_and_counts_it() {
    use EventKind::{Overflow, Ready};
    let events = Events::new(2);
    let before = SystemTime::now();
    for number in 1..=5 {
        events.push(event(number)); // 3, 4, 5 are lost
    }
    let after = SystemTime::now();
    assert_eq!((events.len(), events.dropped_total()), (3, 3));
    assert_eq!(now(&events).unwrap().count, 1);
    events.push(event(6));
    events.push(event(7)); // lost
    assert_eq!((events.len(), events.dropped_total()), (4, 4));
    assert_eq!(now(&events).unwrap().count, 2);
    let overflow = now(&events).unwrap();
    assert_eq!((overflow.kind, overflow.count, overflow.status), (Overflow, 3, Status::Ok));
    assert!((before..=after).contains(&overflow.at), "the time of an overflow is the time of the loss");
    assert_eq!(drain(&events), [(Ready, 6), (Overflow, 1)]);
    events.push(event(8));
    assert_eq!(drain(&events), [(Ready, 8)]);
    assert_eq!((events.len(), events.dropped_total()), (0, 4));
}

/// An event of a connection.
fn of(kind: EventKind, conn: u64) -> Event {
    Event::new(kind, "").conn(ConnId(conn), &Endpoint::parse("tcp://10.0.0.1:1000").unwrap()).count(conn)
}

#[test]
fn endings_are_not_crowded_out_by_other_events() {
    use EventKind::{ConnectFailed, Disconnected, Evicted, NodeFailed, Overflow, PeerLost, Ready, Stalled};
    let events = Events::new(2);
    let endings = [ConnectFailed, PeerLost, Disconnected, Evicted, NodeFailed];
    (1..=5).for_each(|conn| events.expect_ending(ConnId(conn)));
    (1..=5).for_each(|conn| events.push(of(Ready, conn)));
    (1..=5).for_each(|conn| events.push(of(Stalled, conn)));
    (1..=5).zip(endings).for_each(|(conn, kind)| events.push(of(kind, conn)));
    events.push(of(Ready, 6)); // lost: the endings' places are their own
    assert_eq!((events.len(), events.dropped_total()), (2 + 1 + 5 + 1, 9));
    let first = [(Ready, 1), (Ready, 2), (Overflow, 8)];
    let last = [(ConnectFailed, 1), (PeerLost, 2), (Disconnected, 3), (Evicted, 4), (NodeFailed, 5), (Overflow, 1)];
    assert_eq!(drain(&events), [&first[..], &last[..]].concat());
    // The places are free again.
    (1..=9).for_each(|conn| events.push(of(PeerLost, conn)));
    (1..=3).for_each(|conn| events.push(of(Ready, conn)));
    assert_eq!(drain(&events).len(), 9 + 2 + 1);
}

#[test]
fn endings_that_nobody_reads_are_bounded_and_those_of_older_connections_are_kept() {
    use EventKind::{Disconnected, Overflow};
    let events = Events::new(3);
    let old: Vec<u64> = (1..=10).collect();
    old.iter().for_each(|conn| events.expect_ending(ConnId(*conn)));
    // Connections come and go, and nobody reads.
    for conn in 11..1000 {
        events.expect_ending(ConnId(conn));
        events.push(of(Disconnected, conn));
    }
    assert_eq!(events.len(), 3 + 3 + 1, "three in places of their own, three in those for all, one OVERFLOW");
    old.iter().for_each(|conn| events.push(of(Disconnected, *conn)));
    let read = drain(&events);
    let expected: Vec<_> = (11..17).map(|conn| (Disconnected, conn)).chain([(Overflow, 1000 - 17)]).collect();
    assert_eq!(read[..7], expected);
    assert_eq!(read[7..], old.iter().map(|conn| (Disconnected, *conn)).collect::<Vec<_>>());
    assert!(events.queue.lock().without_place.is_empty());
}

#[test]
fn a_smaller_bound_keeps_waiting_events() {
    use EventKind::{Overflow, Ready};
    let events = Events::new(5);
    (1..=4).for_each(|n| events.push(event(n)));
    events.set_bound(2);
    events.push(event(5));
    assert_eq!(drain(&events), [(Ready, 1), (Ready, 2), (Ready, 3), (Ready, 4), (Overflow, 1)]);
    events.set_bound(3);
    (1..=4).for_each(|n| events.push(event(n)));
    assert_eq!(drain(&events), [(Ready, 1), (Ready, 2), (Ready, 3), (Overflow, 1)]);
}

#[test]
fn the_descriptor_is_readable_exactly_while_an_event_waits() {
    let events = Events::new(2);
    events.push(event(1));
    let fd = events.fd().unwrap();
    assert_eq!(events.fd().unwrap(), fd);
    // SAFETY: a query on a live descriptor.
    let flags = unsafe { (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL)) };
    assert!(flags.0 & libc::FD_CLOEXEC != 0 && flags.1 & libc::O_NONBLOCK != 0, "{flags:?}");
    assert!(readable(fd), "made after the first event");
    assert!(readable(fd), "level-triggered");
    (2..5).for_each(|n| events.push(event(n))); // 3 and 4 are lost
    for _ in 0..3 {
        assert!(readable(fd), "an event or an OVERFLOW waits");
        now(&events).unwrap();
    }
    assert!(!readable(fd));
    assert!(now(&events).is_none());
    assert!(!readable(fd));

    // One wake-up for any number of events: the system is called only for the first and the last.
    (0..100).for_each(|n| events.push(event(n)));
    let mut wakeups = 0_u64;
    // SAFETY: 8 live bytes.
    assert_eq!(unsafe { libc::read(fd, std::ptr::from_mut(&mut wakeups).cast(), 8) }, 8);
    assert_eq!(wakeups, 1);
}

#[test]
fn the_descriptor_is_closed_with_the_queue() {
    // Other tests open and close descriptors at the same time, so the test needs many to find a leak.
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..500 {
        let events = Events::new(2);
        events.fd().unwrap();
    }
    assert!(open() < before + 250);
}

#[test]
fn closing_wakes_every_waiter_and_keeps_queued_events() {
    let events = Events::new(2);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| events.next(Instant::now() + LONG).is_none())).collect();
        thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        events.close();
        for waiter in waiters {
            assert!(waiter.join().unwrap());
        }
        assert!(begun.elapsed() < LONG / 2);
    });
    (1..=3).for_each(|n| events.push(event(n)));
    let begun = Instant::now();
    assert_eq!(events.next(begun + LONG).unwrap().count, 1);
    assert_eq!(events.next(begun + LONG).unwrap().count, 2);
    assert_eq!(events.next(begun + LONG).unwrap().kind, EventKind::Overflow);
    assert!(events.next(begun + LONG).is_none());
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn each_event_wakes_a_waiter_and_so_does_an_overflow() {
    let events = Events::new(1);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..2).map(|_| scope.spawn(|| events.next(Instant::now() + LONG))).collect();
        thread::sleep(Duration::from_millis(30));
        // Both pushes under one lock, so that no waiter runs in between: the second event is lost.
        let mut queue = events.queue.lock();
        let more = [queue.push(event(1)), queue.push(event(2)), queue.push(event(3))];
        drop(queue);
        assert_eq!(more, [true, true, false]);
        more.iter().filter(|m| **m).for_each(|_| {
            events.more.notify_one();
        });
        let mut kinds: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap().unwrap().kind as i32).collect();
        kinds.sort();
        assert_eq!(kinds, [EventKind::Ready as i32, EventKind::Overflow as i32]);
    });
}

#[test]
fn concurrent_threads_lose_nothing_and_the_descriptor_agrees() {
    const PRODUCERS: u64 = 4;
    const EACH: u64 = 20_000;
    let events = Events::new(64);
    let fd = events.fd().unwrap();
    let (read, lost, producing) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(PRODUCERS as usize));
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (events, producing) = (&events, &producing);
            scope.spawn(move || {
                for number in 1..=EACH {
                    events.push(event(number).errno(producer as i32));
                }
                producing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                // The events of one producer reach one reader in order.
                let mut last = [0; PRODUCERS as usize];
                while let Some(e) = events.next(Instant::now() + LONG) {
                    if e.kind == EventKind::Overflow {
                        lost.fetch_add(e.count, Ordering::Relaxed);
                        continue;
                    }
                    read.fetch_add(1, Ordering::Relaxed);
                    let last = &mut last[e.os_errno as usize];
                    assert!(e.count > *last, "{} after {last}", e.count);
                    *last = e.count;
                }
            });
        }
        while producing.load(Ordering::Relaxed) > 0 {
            let queue = events.queue.lock();
            assert_eq!(readable(fd), queue.len() > 0);
        }
        while !events.is_empty() {
            thread::yield_now();
        }
        events.close();
    });
    assert!(!readable(fd));
    assert_eq!(read.load(Ordering::Relaxed) + lost.load(Ordering::Relaxed), PRODUCERS * EACH);
    assert_eq!(events.dropped_total(), lost.load(Ordering::Relaxed));
}

#[test]
fn an_unread_queue_stays_small() {
    let events = Events::new(1000);
    let long = "é".repeat(400);
    events.push(Event::new(EventKind::Ready, long.as_str()));
    assert_eq!(now(&events).unwrap().message, "é".repeat(127));
    let (mut read, mut lost) = (0, 0);
    for number in 0..1_000_000 {
        let mut event = event(number);
        if number < 1000 {
            event.message.push_str(&long);
        }
        events.push(event);
        // Sometimes one is read, so that losses are at many places.
        if number % 1000 == 500 {
            match now(&events).unwrap() {
                Event { kind: EventKind::Overflow, count, .. } => lost += count,
                _ => read += 1,
            }
        }
    }
    let queue = events.queue.lock();
    let room = queue.events.capacity();
    assert!(room <= 2048, "room for {room} events");
    assert!(queue.events.iter().all(|queued| queued.event.message.capacity() <= MAX_MESSAGE));
    assert_eq!(queue.overflows, queue.events.iter().filter(|queued| queued.loss.count > 0).count() + 1);
    lost += queue.loss.count + queue.events.iter().map(|queued| queued.loss.count).sum::<u64>();
    assert_eq!(lost, queue.dropped);
    assert_eq!(read + lost + queue.events.len() as u64, 1_000_000);
}
