//! The account against plain ones.

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
fn nothing_is_acknowledged_before_its_last_byte() {
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
fn encrypted_pongs_are_taken_off_as_well() {
    let mut ledger = Ledger::new(Mechanism::Curve, RECEIVED_BEFORE_CURVE);
    ledger.accept(100);
    let received = RECEIVED_BEFORE_CURVE + 7 * 42;
    ledger.observe(Counters { acked: SENT_BEFORE_CURVE + 7 * 40 + 99, received });
    assert_eq!(ledger.acknowledged(), 0);
    ledger.observe(Counters { acked: SENT_BEFORE_CURVE + 7 * 40 + 100, received });
    assert_eq!(ledger.acknowledged(), 1);
}

#[test]
fn the_peers_fin_is_no_ping() {
    for mechanism in [Mechanism::Null, Mechanism::Curve] {
        let mut ledger = Ledger::new(mechanism, 0);
        ledger.accept(10);
        let sent_before = if mechanism == Mechanism::Null { SENT_BEFORE_NULL } else { SENT_BEFORE_CURVE };
        ledger.observe(Counters { acked: sent_before + 10, received: 1 });
        assert_eq!(ledger.acknowledged(), 1);
    }
}

#[test]
fn a_longer_handshake_of_another_stack_is_not_taken_for_pings() {
    let mut ledger = Ledger::new(Mechanism::Null, 120);
    ledger.accept(10);
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 10, received: 120 });
    assert_eq!(ledger.acknowledged(), 1);
}

#[test]
fn it_asks_to_be_trimmed_at_every_doubling() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    let asked = (0..TRIM_FIRST * 8).filter(|_| {
        ledger.accept(3);
        ledger.wants_trimming()
    });
    assert_eq!(asked.count(), 4);
}

#[test]
fn pongs_are_taken_off() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    // Eleven PINGs came and eleven PONGs went, and 23 bytes of the message are still on the way.
    let received = RECEIVED_BEFORE_NULL + 11 * 9;
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 77 + 77, received });
    assert_eq!(ledger.acknowledged(), 0);
    ledger.observe(Counters { acked: SENT_BEFORE_NULL + 77 + 100, received });
    assert_eq!(ledger.acknowledged(), 1);
}

/// Nine PINGs with the longest context take as many bytes as 25 of libzmq's, and draw more.
#[test]
fn pings_with_a_context_that_add_up_to_libzmqs_are_found_out_at_rest() {
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
fn a_pong_that_is_always_on_the_way_hides_no_message() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    let mut look = |written: u64, acked: u64, pings: u64| {
        let received = RECEIVED_BEFORE_NULL + pings * 9;
        ledger.written(SENT_BEFORE_NULL + written, received);
        ledger.observe(Counters { acked: SENT_BEFORE_NULL + acked, received });
        ledger.acknowledged()
    };
    // One PING was received, and its PONG may have been written before the message was.
    assert_eq!(look(7, 0, 1), 0);
    assert_eq!(look(106, 99, 1), 0);
    // Now all is written. The second PONG comes behind it, the third too.
    assert_eq!(look(107, 100, 1), 0);
    assert_eq!(look(114, 106, 2), 0);
    assert_eq!(look(121, 107, 3), 1);
}

#[test]
fn a_peer_whose_pings_were_seen_to_have_contexts_is_not_trusted_again() {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    for pings in [1, 2, 9, 18] {
        let acked = SENT_BEFORE_NULL + pings * 23 + 99;
        ledger.observe(Counters { acked, received: RECEIVED_BEFORE_NULL + pings * 25 });
        assert_eq!(ledger.acknowledged(), 0, "after {pings} PINGs");
    }
}

/// Five PINGs came, and two PONGs went: libzmq could not write for a while.
fn behind_by_three_pongs() -> (Ledger, Counters) {
    let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
    ledger.accept(100);
    let counters = Counters { acked: SENT_BEFORE_NULL + 100 + 2 * 7, received: RECEIVED_BEFORE_NULL + 5 * 9 };
    ledger.observe(counters);
    assert_eq!((ledger.acknowledged(), ledger.bytes_on_the_way()), (0, 3 * 7));
    (ledger, counters)
}

/// Five looks, so many milliseconds apart, at a kernel that has sent what it was given.
fn looks(ledger: &mut Ledger, counters: Counters, apart: u64) -> [bool; 5] {
    let begun = Instant::now();
    [0, 1, 2, 3, 4].map(|look| {
        let found = ledger.rests(counters, counters.acked, begun + Duration::from_millis(look * apart));
        ledger.written(counters.acked, counters.received);
        ledger.observe(counters);
        found
    })
}

#[test]
fn pongs_that_were_never_sent_are_found_out_at_rest() {
    let (mut ledger, counters) = behind_by_three_pongs();
    assert_eq!(looks(&mut ledger, counters, 500), [false, false, false, false, true]);
    assert_eq!((ledger.acknowledged(), ledger.bytes_on_the_way()), (1, 0));
    // The next are answered each, and the next message is not taken for what is missing.
    ledger.accept(21);
    let counters = Counters { acked: counters.acked + 7, received: counters.received + 9 };
    ledger.observe(counters);
    assert_eq!((ledger.acknowledged(), ledger.bytes_on_the_way()), (1, 21));
    ledger.observe(Counters { acked: counters.acked + 21, ..counters });
    assert_eq!(ledger.acknowledged(), 2);
}

/// PINGs go on meanwhile; a PONG to the last is not written yet at some looks, nor acknowledged at any.
#[test]
fn pongs_that_were_never_sent_are_found_out_beside_others() {
    let (mut ledger, counters) = behind_by_three_pongs();
    let begun = Instant::now();
    for look in 1..=6 {
        let received = counters.received + look * 9;
        let written = counters.acked + (look - look % 2) * 7;
        let counters = Counters { acked: written - 7, received };
        let found = ledger.rests(counters, written, begun + Duration::from_millis(look * 600));
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

/// A network that is cut, say: libzmq may hold more, which the kernel has no room for.
#[test]
fn it_is_no_rest_while_the_kernel_waits_for_acknowledgements() {
    let (mut ledger, counters) = behind_by_three_pongs();
    ledger.accept(50);
    let begun = Instant::now();
    for look in 0..100 {
        let written = counters.acked + 22;
        assert!(!ledger.rests(counters, written, begun + Duration::from_millis(look * 100)));
    }
    assert_eq!(ledger.acknowledged(), 0);
}

#[test]
fn it_is_no_rest_while_anything_changes() {
    let (mut ledger, counters) = behind_by_three_pongs();
    assert_eq!(looks(&mut ledger, counters, 490), [false; 5], "not long enough");
    // One of the three PONGs is written after all.
    let counters = Counters { acked: counters.acked + 7, ..counters };
    assert_eq!(looks(&mut ledger, counters, 490), [false; 5], "not long enough");
    ledger.accept(7);
    assert_eq!(looks(&mut ledger, counters, 500), [false, false, false, false, true]);
    assert_eq!(ledger.acknowledged(), 2, "the kernel has nothing left to send");

    // More is missing than all PONGs, or no whole number of them: a message is on its way.
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
    /// A stream as libzmq and the kernel make it, PONGs anywhere between the messages.
    #[test]
    fn what_is_known_of_what_was_written_makes_no_count_too_high(
        steps in proptest::collection::vec((0u8..5, 0u64..100), 1..80),
    ) {
        let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
        // What libzmq holds, what it wrote (is it of a message?), and how far that was acknowledged.
        let (mut pings, mut owed, mut pending, mut written, mut acked) = (0, 0, 0, Vec::new(), 0);
        let look = |ledger: &mut Ledger, pings: u64, written: &[bool], acked: usize| {
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
            let of_messages = look(&mut ledger, pings, &written, acked);
            prop_assert!(ledger.seen_bytes <= of_messages);
        }
        written.extend((0..pending).map(|_| true));
        written.extend((0..owed * 7).map(|_| false));
        look(&mut ledger, pings, &written, written.len());
        prop_assert_eq!(ledger.acknowledged(), ledger.accepted);
    }

    #[test]
    fn a_peer_that_is_not_trusted_makes_no_count_too_high(
        curve: bool,
        steps in proptest::collection::vec((0u64..300, 0u64..100, 0u64..9), 1..100),
    ) {
        let (mechanism, base, before) = match curve {
            false => (Mechanism::Null, SENT_BEFORE_NULL, RECEIVED_BEFORE_NULL),
            true => (Mechanism::Curve, SENT_BEFORE_CURVE, RECEIVED_BEFORE_CURVE),
        };
        let mut ledger = Ledger::new(mechanism, before);
        // A context of one byte gives it away.
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
    fn it_agrees_with_the_plain_account(
        steps in proptest::collection::vec((0u64..70_000, 0u64..=100), 1..200),
    ) {
        let mut ledger = Ledger::new(Mechanism::Null, RECEIVED_BEFORE_NULL);
        let mut ends = vec![];
        let mut end = 0;
        for (length, percent) in steps {
            let wire = Mechanism::Null.frame(length);
            end += wire;
            ends.push(end);
            prop_assert_eq!(ledger.accept(wire), ends.len() as u64);
            let acked = end * percent / 100;
            ledger.observe(Counters { acked: SENT_BEFORE_NULL + acked, received: RECEIVED_BEFORE_NULL });
            let plain = ends.iter().filter(|end| **end <= ledger.seen_bytes).count() as u64;
            prop_assert_eq!(ledger.acknowledged(), plain);
            prop_assert_eq!(ledger.bytes_on_the_way(), end - ledger.seen_bytes);
        }
        ledger.observe(Counters { acked: at_rest(&ledger), received: RECEIVED_BEFORE_NULL });
        prop_assert_eq!(ledger.acknowledged(), ledger.accepted);
        prop_assert!(ledger.lengths.is_empty());
    }
}
