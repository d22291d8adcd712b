//! Which messages the peer's kernel has: sequence numbers against the bytes it has acknowledged.
//!
//! ZMTP puts a message on the wire as its frames and nothing else, each with a header whose size its length tells.
//! So the wire position of every message's end is known when it is accepted, and TCP tells how far the peer's kernel
//! has acknowledged. Pure: it is told what was accepted and what the kernel says.

#[cfg(test)]
mod tests;

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
        let mut event = sent.saturating_sub(pongs).min(self.accepted_bytes);
        if sent >= self.written.1 {
            event = event.max(self.written.0);
        }
        if event <= self.seen_bytes {
            return false;
        }
        self.seen_bytes = event;
        while let Some((length, size)) = self.front() {
            if self.acked_bytes + length > event {
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
