//! Which messages the peer's kernel has: sequence numbers against the bytes it has acknowledged.
//!
//! ZMTP puts a message on the wire as its frames and nothing else, each with a header whose size its length tells.
//! So the wire position of every message's end is known when it is accepted, and TCP tells how far the peer's kernel
//! has acknowledged. Pure: it is told what was accepted and what the kernel says.

use std::collections::VecDeque;

/// Bytes we send before the first message: 1 for the SYN, which TCP counts as a byte, 64 of greeting, and the
/// handshake. Constants of libzmq's ZMTP 3 for a PUSH socket without an identity: never measured at READY, for that
/// comes before our last handshake command is written.
const SENT_BEFORE_NULL: u64 = 93;
const SENT_BEFORE_CURVE: u64 = 553;
/// The most that a libzmq PULL socket sends in the handshake: what it has sent beyond that when we first look, it may
/// have sent as a PING, and we answered with a PONG.
const RECEIVED_BEFORE_NULL: u64 = 92;
const RECEIVED_BEFORE_CURVE: u64 = 286;

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
    /// What a libzmq peer's PING takes on the wire.
    fn ping(self) -> u64 {
        match self {
            Mechanism::Null => 9,
            Mechanism::Curve => 42,
        }
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
    /// Messages accepted, and their bytes on the wire.
    accepted: u64,
    accepted_bytes: u64,
    /// Messages acknowledged whole, and the wire position of the last one's end.
    acked: u64,
    acked_bytes: u64,
    /// How far the kernel has acknowledged, PONGs taken off: the most that was ever seen.
    seen_bytes: u64,
    /// Lengths of the messages from `acked` on, each as a varint: at most half a percent of what is on the way for
    /// messages of some hundred bytes, and at most half of it for empty ones.
    lengths: VecDeque<u8>,
    /// The list's length at which the kernel is asked, to shorten it.
    trim_at: usize,
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
            accepted: 0,
            accepted_bytes: 0,
            acked: 0,
            acked_bytes: 0,
            seen_bytes: 0,
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

    /// Takes in what the kernel says; true when it has acknowledged more than before.
    pub(crate) fn observe(&mut self, counters: Counters) -> bool {
        let sent_before = match self.mechanism {
            Mechanism::Null => SENT_BEFORE_NULL,
            Mechanism::Curve => SENT_BEFORE_CURVE,
        };
        let pongs = self.pongs(counters.received.saturating_sub(self.received_before));
        // A FIN of ours counts as one more byte: cut to what was accepted.
        let seen = counters.acked.saturating_sub(sent_before + pongs).min(self.accepted_bytes);
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

    /// How many bytes of PONG we answered to what the peer sent beyond its handshake: libzmq's PINGs, or else at the most
    /// as many, for a PONG is two bytes shorter than its PING. The peer's FIN counts as one byte more.
    fn pongs(&self, extra: u64) -> u64 {
        let ping = self.mechanism.ping();
        match extra % ping {
            0 | 1 => extra / ping * (ping - 2),
            _ => extra,
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

    proptest! {
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
