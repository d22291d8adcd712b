//! The ledger against simple models.

use super::*;
use proptest::prelude::*;

fn at_rest(ledger: &Ledger) -> u64 {
    SENT_BEFORE_NULL + ledger.accepted_bytes
}

#[test]
fn frames_have_headers_of_two_or_nine_bytes() {
    let null = Mechanism::Null;
    assert_eq!([0, 1, 255, 256].map(|n| null.frame(n)), [2, 3, 257, 265]);
    let curve = Mechanism::Curve;
    assert_eq!([0, 222, 223].map(|n| curve.frame(n)), [35, 257, 265]);
}

#[test]
fn a_message_is_acknowledged_only_with_its_last_byte() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(10);
    ledger.accept(300);
    let mut look = |acked| {
        ledger.observe(Counters { acked, received: RECEIVED_BEFORE_NULL });
        ledger.acknowledged()
    };
    assert_eq!([92, 93, 102, 103, 402, 403, 404, 103].map(&mut look), [0, 0, 0, 1, 1, 2, 2, 2]);
}

#[test]
fn encrypted_pongs_are_subtracted_too() {
    let mut ledger = Ledger::new(Mechanism::Curve, RECEIVED_BEFORE_CURVE);
    ledger.accept(100);
    let received = RECEIVED_BEFORE_CURVE + 7 * 42;
    ledger.observe(Counters { acked: SENT_BEFORE_CURVE + 7 * 40 + 99, received });
    assert_eq!(ledger.acknowledged(), 0);
    ledger.observe(Counters { acked: SENT_BEFORE_CURVE + 7 * 40 + 100, received });
    assert_eq!(ledger.acknowledged(), 1);
}

#[test]
fn the_peers_fin_is_not_taken_for_a_ping() {
    for mechanism in [Mechanism::Null, Mechanism::Curve] {
        let mut ledger = Ledger::new(mechanism, 0);
        ledger.accept(10);
        let sent_before = if mechanism == Mechanism::Null { SENT_BEFORE_NULL } else { SENT_BEFORE_CURVE };
        ledger.observe(Counters { acked: sent_before + 10, received: 1 });
        assert_eq!(ledger.acknowledged(), 1);
    }
}

#[test]
fn a_longer_handshake_is_not_taken_for_pings() {
    let mut ledger = Ledger::new(Mechanism::Null, 120);
    ledger.accept(10);
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 10, received: 120 });
    assert_eq!(ledger.acknowledged(), 1);
}

#[test]
fn it_asks_to_be_trimmed_once_per_doubling() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    let asked = (0..=TRIM_FIRST as u64 * 8).filter(|number| {
        // One byte of the list for each.
        ledger.accept(3 + number % 2)
    });
    assert_eq!(asked.count(), 4);
}

#[test]
fn pongs_are_subtracted() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    // Eleven PINGs came and eleven PONGs went. 23 bytes of the message are still in flight.
    let received = RECEIVED_BEFORE_NULL + 11 * 9;
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 77 + 77, received });
    assert_eq!(ledger.acknowledged(), 0);
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 77 + 100, received });
    assert_eq!(ledger.acknowledged(), 1);
}

/// Nine PINGs with the longest context take as many bytes as 25 of libzmq's, and their PONGs take more.
#[test]
fn pings_with_a_context_that_add_up_to_libzmqs_are_detected() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    let (pings, pongs) = (9 * 25, 9 * 23);
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + pongs, received: RECEIVED_BEFORE_NULL + pings });
    ledger.accept(40);
    for byte in 0..40 {
        ledger.observe(Counters { acked: SENT_BEFORE_NULL + pongs + byte, received: RECEIVED_BEFORE_NULL + pings });
        assert_eq!(ledger.acknowledged(), 0, "{byte} of its 40 bytes were acknowledged");
    }
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + pongs + 40, received: RECEIVED_BEFORE_NULL + pings });
    assert_eq!(ledger.acknowledged(), 1);
}

#[test]
fn a_pong_that_is_always_in_flight_hides_no_message() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    let mut look = |written: u64, acked: u64, pings: u64| {
        let received = RECEIVED_BEFORE_NULL + pings * 9;
        ledger.written(SENT_BEFORE_NULL + written, received);
        ledger.observe(Counters { acked: SENT_BEFORE_NULL + acked, received });
        ledger.acknowledged()
    };
    // One PING was received. Its PONG may have been written before the message.
    assert_eq!(look(7, 0, 1), 0);
    assert_eq!(look(106, 99, 1), 0);
    // Now everything is written. The second and the third PONG come behind the message.
    assert_eq!(look(107, 100, 1), 0);
    assert_eq!(look(114, 106, 2), 0);
    assert_eq!(look(121, 107, 3), 1);
}

#[test]
fn a_peer_that_once_sent_a_context_is_not_trusted_again() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    for pings in [1, 2, 9, 18] {
        let acked = SENT_BEFORE_NULL + pings * 23 + 99;
        ledger.observe(Counters { acked, received: RECEIVED_BEFORE_NULL + pings * 25 });
        assert_eq!(ledger.acknowledged(), 0, "after {pings} PINGs");
    }
}

/// Five PINGs came and two PONGs went, because libzmq could not write for a while.
fn behind_by_three_pongs() -> (Ledger, Counters) {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    let counters = Counters { acked: SENT_BEFORE_NULL + 100 + 2 * 7, received: RECEIVED_BEFORE_NULL + 5 * 9 };
    ledger.observe(counters);
    assert_eq!((ledger.acknowledged(), ledger.bytes_in_flight()), (0, 3 * 7));
    (ledger, counters)
}

/// Five checks, `apart` milliseconds apart, of a kernel that has sent everything it was given.
fn looks(ledger: &mut Ledger, counters: Counters, apart: u64) -> [bool; 5] {
    let begun = Instant::now();
    [0, 1, 2, 3, 4].map(|look| {
        let found = ledger.check_rest(counters, counters.acked, begun + Duration::from_millis(look * apart));
        ledger.written(counters.acked, counters.received);
        ledger.observe(counters);
        found
    })
}

#[test]
fn pongs_that_were_never_sent_are_detected_at_rest() {
    let (mut ledger, counters) = behind_by_three_pongs();
    assert_eq!(looks(&mut ledger, counters, 500), [false, false, false, false, true]);
    assert_eq!((ledger.acknowledged(), ledger.bytes_in_flight()), (1, 0));
    // Later PINGs are answered one by one. The next message is not taken for missing PONGs.
    ledger.accept(21);
    let counters = Counters { acked: counters.acked + 7, received: counters.received + 9 };
    ledger.observe(counters);
    assert_eq!((ledger.acknowledged(), ledger.bytes_in_flight()), (1, 21));
    ledger.observe(Counters { acked: counters.acked + 21, ..counters });
    assert_eq!(ledger.acknowledged(), 2);
}

/// PINGs keep coming. The PONG to the last one is not written yet at some checks, and not acknowledged at any.
#[test]
fn pongs_that_were_never_sent_are_detected_while_pings_go_on() {
    let (mut ledger, counters) = behind_by_three_pongs();
    let begun = Instant::now();
    for look in 1..=6 {
        let received = counters.received + look * 9;
        let written = counters.acked + (look - look % 2) * 7;
        let counters = Counters { acked: written - 7, received };
        let found = ledger.check_rest(counters, written, begun + Duration::from_millis(look * 600));
        assert_eq!(found, look == 6);
        ledger.written(written, received);
        ledger.observe(counters);
    }
    let received = counters.received + 6 * 9;
    ledger.written(counters.acked + 6 * 7, received);
    ledger.observe(Counters { acked: counters.acked + 5 * 7, received });
    assert_eq!(ledger.acknowledged(), 0, "a PONG may have come before the message's end");
    ledger.observe(Counters { acked: counters.acked + 6 * 7, received });
    assert_eq!(ledger.acknowledged(), 1);
}

/// For example when the network is cut: libzmq may hold more than the kernel has room for.
#[test]
fn waiting_for_acknowledgements_is_not_rest() {
    let (mut ledger, counters) = behind_by_three_pongs();
    ledger.accept(50);
    let begun = Instant::now();
    for look in 0..100 {
        let written = counters.acked + 22;
        assert!(!ledger.check_rest(counters, written, begun + Duration::from_millis(look * 100)));
    }
    assert_eq!(ledger.acknowledged(), 0);
}

#[test]
fn a_changing_connection_is_not_at_rest() {
    let (mut ledger, counters) = behind_by_three_pongs();
    assert_eq!(looks(&mut ledger, counters, 490), [false; 5], "not long enough");
    // One of the three PONGs is written after all.
    let counters = Counters { acked: counters.acked + 7, ..counters };
    assert_eq!(looks(&mut ledger, counters, 490), [false; 5], "not long enough");
    ledger.accept(7);
    assert_eq!(looks(&mut ledger, counters, 500), [false, false, false, false, true]);
    assert_eq!(ledger.acknowledged(), 2, "the kernel has nothing left to send");

    // More bytes are missing than all PONGs have, or not a whole number of PONGs: a message is in flight.
    for (accepted, acked) in [(136, 100), (100, 95)] {
        let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
        ledger.accept(accepted);
        let counters = Counters { acked: SENT_BEFORE_NULL + acked, received: RECEIVED_BEFORE_NULL + 5 * 9 };
        ledger.observe(counters);
        assert_eq!(looks(&mut ledger, counters, 1000), [false; 5], "{accepted} {acked}");
        assert_eq!(ledger.acknowledged(), 0);
    }
}

proptest! {
    /// A stream as libzmq and the kernel make it, with PONGs anywhere between the messages.
    #[test]
    fn recording_written_bytes_makes_no_count_too_high(
        steps in proptest::collection::vec((0u8..5, 0u64..100), 1..80),
    ) {
        let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
        // Bytes that libzmq holds, bytes that it wrote (true: of a message), and how many were acknowledged.
        let (mut pings, mut owed, mut pending, mut written, mut acked) = (0, 0, 0, Vec::new(), 0);
        let mut accepted = 0;
        let update = |ledger: &mut Ledger, pings: u64, written: &[bool], acked: usize| {
            let received = RECEIVED_BEFORE_NULL + pings * 9;
            ledger.written(SENT_BEFORE_NULL + written.len() as u64, received);
            ledger.observe(Counters { acked: SENT_BEFORE_NULL + acked as u64, received });
            written[..acked].iter().filter(|of_a_message| **of_a_message).count() as u64
        };
        for (step, bytes) in steps {
            match step {
                0 => {
                    pending += Mechanism::Null.frame(bytes);
                    ledger.accept(Mechanism::Null.frame(bytes));
                    accepted += 1;
                }
                1 => (pings, owed) = (pings + 1, owed + 1),
                2 if owed > 0 => {
                    owed -= 1;
                    written.extend([false; 7]);
                }
                3 => {
                    let some = pending.min(bytes);
                    pending -= some;
                    written.extend((0..some).map(|_| true));
                }
                _ => acked = written.len().min(acked + bytes as usize),
            }
            let of_messages = update(&mut ledger, pings, &written, acked);
            prop_assert!(ledger.seen_bytes <= of_messages);
        }
        written.extend((0..pending).map(|_| true));
        written.extend((0..owed * 7).map(|_| false));
        update(&mut ledger, pings, &written, written.len());
        prop_assert_eq!(ledger.acknowledged(), accepted);
    }

    #[test]
    fn an_untrusted_peer_makes_no_count_too_high(
        curve: bool,
        steps in proptest::collection::vec((0u64..300, 0u64..100, 0u64..9), 1..100),
    ) {
        let (mechanism, base, before) = match curve {
            false => (Mechanism::Null, SENT_BEFORE_NULL, RECEIVED_BEFORE_NULL),
            true => (Mechanism::Curve, SENT_BEFORE_CURVE, RECEIVED_BEFORE_CURVE),
        };
        let mut ledger = Ledger::new(mechanism, before);
        // A PING with a context of one byte makes the peer untrusted.
        let mut pings = mechanism.frame(PING + 1);
        let mut pongs = pings - 2;
        ledger.observe(Counters { acked: base + pongs, received: before + pings });
        let (mut sent, mut accepted) = (0, 0);
        for (context, bytes, behind) in steps {
            pings += mechanism.frame(PING + context);
            pongs += mechanism.frame(PING - 2 + context.min(LONGEST_CONTEXT));
            accepted += mechanism.frame(bytes);
            ledger.accept(mechanism.frame(bytes));
            sent = accepted.saturating_sub(behind).max(sent);
            ledger.observe(Counters { acked: base + pongs + sent, received: before + pings });
            prop_assert!(ledger.seen_bytes <= sent);
        }
    }

    #[test]
    fn it_agrees_with_a_simple_list_of_ends(
        steps in proptest::collection::vec((0u64..70_000, 0u64..=100), 1..200),
    ) {
        let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
        let mut ends = vec![];
        let mut end = 0;
        for (length, percent) in steps {
            let wire = Mechanism::Null.frame(length);
            end += wire;
            ends.push(end);
            ledger.accept(wire);
            let acked = end * percent / 100;
            ledger.observe(Counters { acked: SENT_BEFORE_NULL + acked, received: RECEIVED_BEFORE_NULL });
            let plain = ends.iter().filter(|end| **end <= ledger.seen_bytes).count() as u64;
            prop_assert_eq!(ledger.acknowledged(), plain);
            prop_assert_eq!(ledger.bytes_in_flight(), end - ledger.seen_bytes);
        }
        ledger.observe(Counters { acked: at_rest(&ledger), received: RECEIVED_BEFORE_NULL });
        prop_assert_eq!(ledger.acknowledged(), ends.len() as u64);
        prop_assert!(ledger.lengths.is_empty());
    }
}
