//! Which messages the peer's kernel has: sequence numbers against the bytes it has acknowledged.
//!
//! ZMTP puts a message on the wire as its frames and nothing else, each with a header whose size its length tells.
//! So the wire position of every message's end is known when it is accepted, and TCP tells how far the peer's kernel
//! has acknowledged. Pure: it is told what was accepted and what the kernel says.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes we send before the first message: 1 for the SYN, which TCP counts as a byte, 64 of greeting, and the
/// handshake. Constants of libzmq's ZMTP 3 for a PUSH socket without an identity: never measured at READY, for that
/// comes before our last handshake command is written.
const SENT_BEFORE_NULL: u64 = 93;
const SENT_BEFORE_CURVE: u64 = 553;
/// The most that a libzmq PULL socket sends in the handshake: what it has sent beyond that when we first look, it may
/// have sent as a PING, and we answered with a PONG.
const RECEIVED_BEFORE_NULL: u64 = 92;
const RECEIVED_BEFORE_CURVE: u64 = 286;

/// A PING: its name and two bytes of TTL. A context may follow, which libzmq has none of; the PONG gives back its first
/// 16 bytes.
const PING: u64 = 7;
const LONGEST_CONTEXT: u64 = 16;
/// How long and at how many looks in a row the same must be found before it counts as rest. Long beside what libzmq's thread
/// can be late on a loaded machine; and a process that was stopped between two looks has not had that time.
const REST: Duration = Duration::from_secs(2);
const LOOKS_AT_REST: u32 = 5;

/// When the list of lengths is first shortened, in bytes.
const TRIM_FIRST: usize = 64 * 1024;

/// How messages look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Plain.
    Null,
    /// Encrypted: every frame grows, and is itself the body of a command.
    Curve,
}

impl Mechanism {
    /// What a libzmq peer's PING takes on the wire. The PONG to it takes two bytes less.
    fn ping(self) -> u64 {
        self.frame(PING)
    }

    /// What a PING takes to which our PONG is the longest.
    fn longest_ping(self) -> u64 {
        self.frame(PING + LONGEST_CONTEXT)
    }

    /// What our PONG takes.
    fn pong(self) -> u64 {
        self.ping() - 2
    }

    /// Bytes on the wire of a frame with so many bytes.
    pub(crate) fn frame(self, bytes: u64) -> u64 {
        /// Command name, nonce, authenticator and flags around every encrypted frame.
        const CURVE: u64 = 33;
        let body = match self {
            Mechanism::Null => bytes,
            Mechanism::Curve => bytes + CURVE,
        };
        // A flags byte, and the length in one byte or in eight.
        body + if body <= 255 { 2 } else { 9 }
    }
}

/// What the kernel says about a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Bytes of ours that the peer's kernel has acknowledged.
    pub(crate) acked: u64,
    /// Bytes of the peer's that ours has received.
    pub(crate) received: u64,
}

/// The account of one connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    mechanism: Mechanism,
    /// What the peer had sent before it could have sent a PING.
    received_before: u64,
    /// As far as it was seen, what it sent since are PINGs of libzmq's kind, and what they draw from us is known.
    plain_pings: bool,
    /// Messages accepted, and their bytes on the wire.
    accepted: u64,
    accepted_bytes: u64,
    /// Messages acknowledged whole, and the wire position of the last one's end.
    acked: u64,
    acked_bytes: u64,
    /// How far the kernel has acknowledged, PONGs taken off: the most that was ever seen.
    seen_bytes: u64,
    /// So many bytes of messages, and with the PONGs among them at most so many in all, were once with our kernel.
    written: (u64, u64),
    /// Bytes of PONG that were taken off and that libzmq has never sent.
    never_sent: u64,
    at_rest: Option<Rest>,
    /// Lengths of the messages from `acked` on, each as a varint: at most half a percent of what is on the way for
    /// messages of some hundred bytes, and at most half of it for empty ones.
    lengths: VecDeque<u8>,
    /// The list's length at which the kernel is asked, to shorten it.
    trim_at: usize,
}

/// Nothing was accepted since, and at least so much was missing at every look.
#[derive(Clone, Copy, Debug)]
struct Rest {
    accepted: u64,
    /// What the kernel had been given.
    written: u64,
    least: u64,
    since: Instant,
    looks: u32,
}

impl Ledger {
    /// An account that begins at READY, when the peer had sent so many bytes.
    pub(crate) fn new(mechanism: Mechanism, received: u64) -> Ledger {
        let usual = match mechanism {
            Mechanism::Null => RECEIVED_BEFORE_NULL,
            Mechanism::Curve => RECEIVED_BEFORE_CURVE,
        };
        // A PING may be among them already; what is no whole number of PINGs is another stack's longer handshake.
        let pings = received >= usual && (received - usual).is_multiple_of(mechanism.ping());
        Ledger {
            mechanism,
            received_before: if pings { usual } else { received },
            plain_pings: true,
            accepted: 0,
            accepted_bytes: 0,
            acked: 0,
            acked_bytes: 0,
            seen_bytes: 0,
            written: (0, 0),
            never_sent: 0,
            at_rest: None,
            lengths: VecDeque::new(),
            trim_at: TRIM_FIRST,
        }
    }

    /// A message was accepted, so long on the wire. Returns its sequence.
    pub(crate) fn accept(&mut self, wire_bytes: u64) -> u64 {
        let mut rest = wire_bytes;
        while rest >= 0x80 {
            self.lengths.push_back(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.lengths.push_back(rest as u8);
        self.accepted += 1;
        self.accepted_bytes += wire_bytes;
        self.accepted
    }

    /// Whether the list has grown so long that the kernel should be asked. Says so once for each doubling, so that
    /// asking costs nothing beside the messages.
    pub(crate) fn wants_trimming(&mut self) -> bool {
        let wants = self.lengths.len() >= self.trim_at;
        if wants {
            self.trim_at *= 2;
        }
        wants
    }

    /// Bytes that came before the first message.
    fn sent_before(&self) -> u64 {
        match self.mechanism {
            Mechanism::Null => SENT_BEFORE_NULL,
            Mechanism::Curve => SENT_BEFORE_CURVE,
        }
    }

    /// Takes in how much our kernel was given, when so many bytes were received. A PONG that is always on the way, because
    /// the next PING comes before its acknowledgement, hides the last message's; but once everything is with the kernel,
    /// later PONGs come behind it.
    pub(crate) fn written(&mut self, written: u64, received: u64) {
        let written = written.saturating_sub(self.sent_before());
        let most = self.accepted_bytes + self.pongs(received.saturating_sub(self.received_before), written);
        if written >= most && self.written.0 < self.accepted_bytes {
            self.written = (self.accepted_bytes, most);
        }
    }

    /// Takes in what the kernel says; true when it has acknowledged more than before.
    pub(crate) fn observe(&mut self, counters: Counters) -> bool {
        let sent = counters.acked.saturating_sub(self.sent_before());
        let pongs = self.pongs(counters.received.saturating_sub(self.received_before), sent);
        // A FIN of ours counts as one more byte: cut to what was accepted.
        let mut seen = sent.saturating_sub(pongs).min(self.accepted_bytes);
        if sent >= self.written.1 {
            seen = seen.max(self.written.0);
        }
        if seen <= self.seen_bytes {
            return false;
        }
        self.seen_bytes = seen;
        while let Some((length, size)) = self.front() {
            if self.acked_bytes + length > seen {
                break;
            }
            self.lengths.drain(..size);
            self.acked_bytes += length;
            self.acked += 1;
        }
        self.trim_at = TRIM_FIRST.max(2 * self.lengths.len());
        true
    }

    /// Whether the peer has sent anything that it may have had answers to.
    pub(crate) fn has_pings(&self, received: u64) -> bool {
        received > self.received_before + 1
    }

    /// Takes in what was found at a look, one of the watcher's, which leave libzmq time to hand our kernel what it has: so many
    /// bytes were given to the kernel. True when something is found out: what is written is to be taken in again.
    ///
    /// libzmq answers several PINGs with one PONG when it cannot write meanwhile. So where something is missing all the time
    /// when everything could have been written long ago, and as much as some PONGs, then it is these that were never sent. It
    /// could be written when all that the kernel had at the beginning was acknowledged since: then the kernel has told libzmq
    /// that there is room.
    pub(crate) fn rests(&mut self, counters: Counters, written: u64, now: Instant) -> bool {
        let written = written.saturating_sub(self.sent_before());
        let pongs = self.pongs(counters.received.saturating_sub(self.received_before), written);
        let missing = (self.accepted_bytes + pongs).saturating_sub(written);
        let begins = Rest { accepted: self.accepted_bytes, written, least: missing, since: now, looks: 0 };
        let rest = self.at_rest.get_or_insert(begins);
        // A PONG that is being made is missing at one look, and not at the next. But what becomes less is being written.
        if rest.accepted != begins.accepted || missing < rest.least {
            *rest = begins;
        }
        rest.looks += 1;
        let rest = *rest;
        let acked = counters.acked.saturating_sub(self.sent_before());
        if rest.looks < LOOKS_AT_REST || now.duration_since(rest.since) < REST || acked < rest.written {
            return false;
        }
        self.at_rest = None;
        let pong = if self.plain_pings { self.mechanism.pong() } else { 1 };
        let found = rest.least > 0 && rest.least <= pongs && rest.least.is_multiple_of(pong);
        if found {
            self.never_sent += rest.least;
        }
        found
    }

    /// How many bytes of PONG we answered to what the peer sent beyond its handshake, of which its FIN counts as one byte,
    /// when so many bytes of ours have come behind our handshake. Exact for libzmq's PINGs. A peer that was seen to send
    /// anything else is not trusted again: at the most it can have drawn as much as with the longest contexts.
    ///
    /// Nothing tells PINGs with a context from libzmq's when they came between two looks, add up to libzmq's, and libzmq has
    /// not written all that was accepted. Until they are found out, less than a sixth of their bytes is taken for ours.
    fn pongs(&mut self, extra: u64, sent: u64) -> u64 {
        let (ping, pong) = (self.mechanism.ping(), self.mechanism.pong());
        let plain = (extra / ping * pong).saturating_sub(self.never_sent);
        // More than messages and these PONGs: there were longer ones.
        if self.plain_pings && (extra % ping > 1 || sent > self.accepted_bytes + plain) {
            self.plain_pings = false;
            self.written = (0, 0);
        }
        if self.plain_pings {
            plain
        } else {
            (extra - extra / self.mechanism.longest_ping() * 2).saturating_sub(self.never_sent)
        }
    }

    /// The oldest length, and how many bytes of the ring it takes.
    fn front(&self) -> Option<(u64, usize)> {
        let (mut length, mut shift) = (0, 0);
        for (place, byte) in self.lengths.iter().enumerate() {
            length |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some((length, place + 1));
            }
        }
        None
    }

    /// The last message that the peer's kernel has whole, as far as it was looked at.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acked
    }

    /// Bytes accepted and not known to be acknowledged.
    pub(crate) fn bytes_on_the_way(&self) -> u64 {
        self.accepted_bytes - self.seen_bytes
    }
}

#[cfg(test)]
mod tests {
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
}
