//! Which messages the peer's kernel has: maps acknowledged bytes to sequence numbers.
//!
//! ZMTP puts a message on the wire as its frames and nothing else. The size of each frame's header follows from the
//! frame's length. So the wire position of every message's end is known when it is accepted, and TCP reports how far
//! the peer's kernel has acknowledged. Pure: it makes no system call; its inputs are the accepted messages and the
//! kernel's counters.

mod lengths;
#[cfg(test)]
mod tests;

use std::mem::offset_of;
use std::time::{Duration, Instant};

use lengths::Lengths;

/// Bytes that we send before the first message: 1 for the SYN, which TCP counts as a byte, 64 of greeting, and the
/// handshake. These are constants of libzmq's ZMTP 3 for a PUSH socket without an identity. They are not measured at
/// READY, because READY comes before our last handshake command is written.
const SENT_BEFORE_NULL: u64 = 93;
const SENT_BEFORE_CURVE: u64 = 553;
/// The most that a libzmq PULL socket sends in the handshake. Bytes beyond that at the first update may be a PING,
/// which we answered with a PONG.
const RECEIVED_BEFORE_NULL: u64 = 92;
const RECEIVED_BEFORE_CURVE: u64 = 286;

/// The body of a PING: its name and two bytes of TTL. A context may follow, which libzmq never sends. The PONG returns
/// the context's first 16 bytes.
const PING: u64 = 7;
const LONGEST_CONTEXT: u64 = 16;
/// How long, and for how many checks in a row, the same bytes must be missing before the connection counts as at rest.
/// The time is long compared with delays of libzmq's thread on a loaded machine. The count covers a process that was
/// stopped between two checks: its libzmq thread did not have that time.
const REST: Duration = Duration::from_secs(2);
const CHECKS_AT_REST: u32 = 5;

/// The size at which the list of lengths is first shortened, in bytes.
const TRIM_FIRST: usize = 64 * 1024;

/// How messages are encoded on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// Plain.
    Null,
    /// Encrypted: every frame grows and becomes the body of a command.
    Curve,
}

impl Mechanism {
    /// Bytes on the wire of a libzmq peer's PING. The PONG to it takes two bytes less.
    fn ping(self) -> u64 {
        self.frame(PING)
    }

    /// Bytes on the wire of the longest PING whose context the PONG returns whole.
    fn longest_ping(self) -> u64 {
        self.frame(PING + LONGEST_CONTEXT)
    }

    /// Bytes on the wire of our PONG to a libzmq peer.
    fn pong(self) -> u64 {
        self.ping() - 2
    }

    /// Bytes on the wire of a frame of `bytes` bytes.
    pub(crate) fn frame(self, bytes: u64) -> u64 {
        /// Command name, nonce, authenticator and flags around every encrypted frame.
        const CURVE: u64 = 33;
        let body = match self {
            Mechanism::Null => bytes,
            Mechanism::Curve => bytes + CURVE,
        };
        // One flags byte, and the length in one byte or in eight.
        body + if body <= 255 { 2 } else { 9 }
    }
}

/// What the kernel reports about a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Our bytes that the peer's kernel has acknowledged.
    pub(crate) acked: u64,
    /// The peer's bytes that our kernel has received.
    pub(crate) received: u64,
}

/// The ledger of one connection.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ledger {
    // What every message needs comes first, and is close together.
    /// Bytes on the wire of the messages accepted.
    accepted_bytes: u64,
    /// The highest position that was seen acknowledged, with PONGs subtracted.
    seen_bytes: u64,
    /// Lengths of the messages after `acked`. At most a percent of what is in flight for messages of some hundred bytes,
    /// and at most half of it for empty ones.
    lengths: Lengths,
    /// The list's size at which the kernel is asked, to shorten it.
    trim_at: usize,
    mechanism: Mechanism,
    /// So far, everything that the peer sent since then looks like libzmq's PINGs. Then our answers are known exactly.
    plain_pings: bool,
    /// Bytes that the peer had sent before it could have sent a PING.
    received_before: u64,
    /// Messages acknowledged whole, and the wire position of the end of the last one.
    acked: u64,
    acked_bytes: u64,
    /// Our kernel once had this many bytes of messages (first number), with at most this many bytes in all, PONGs
    /// included.
    written: (u64, u64),
    /// Bytes of PONGs that were subtracted although libzmq never sent them.
    never_sent: u64,
    at_rest: Option<Rest>,
}

/// A time during which nothing was accepted and at least `least` bytes were missing at every check.
#[derive(Clone, Copy, Debug)]
struct Rest {
    accepted: u64,
    /// Bytes that the kernel had been given.
    written: u64,
    least: u64,
    since: Instant,
    checks: u32,
}

impl Ledger {
    /// The bytes at its beginning that every message needs.
    pub(crate) const EVERY_MESSAGE: usize = offset_of!(Ledger, lengths) + Lengths::EVERY_MESSAGE;

    /// A ledger that begins at READY, when `received` bytes of the peer's had come.
    pub(crate) fn new(mechanism: Mechanism, received: u64) -> Ledger {
        let usual = match mechanism {
            Mechanism::Null => RECEIVED_BEFORE_NULL,
            Mechanism::Curve => RECEIVED_BEFORE_CURVE,
        };
        // They may include PINGs. If the excess is not a whole number of PINGs, it is another implementation's longer
        // handshake.
        let pings = received >= usual && (received - usual).is_multiple_of(mechanism.ping());
        Ledger {
            mechanism,
            received_before: if pings { usual } else { received },
            plain_pings: true,
            accepted_bytes: 0,
            acked: 0,
            acked_bytes: 0,
            seen_bytes: 0,
            written: (0, 0),
            never_sent: 0,
            at_rest: None,
            lengths: Lengths::default(),
            trim_at: TRIM_FIRST,
        }
    }

    /// A message was accepted that takes this many bytes on the wire. Returns whether the list of lengths has grown so
    /// long that the kernel should be asked. True once for each doubling, so the cost is negligible beside the messages.
    #[inline(always)]
    pub(crate) fn accept(&mut self, wire_bytes: u64) -> bool {
        self.accepted_bytes += wire_bytes;
        self.lengths.push(wire_bytes) && self.wants_trimming()
    }

    fn wants_trimming(&mut self) -> bool {
        let wants = self.lengths.size() >= self.trim_at;
        if wants {
            self.trim_at *= 2;
        }
        wants
    }

    /// Bytes that we sent before the first message.
    fn sent_before(&self) -> u64 {
        match self.mechanism {
            Mechanism::Null => SENT_BEFORE_NULL,
            Mechanism::Curve => SENT_BEFORE_CURVE,
        }
    }

    /// Records how many bytes our kernel was given when `received` bytes had come. If each next PING comes before the
    /// acknowledgement of the last PONG, a PONG is always in flight and would hide the last message's acknowledgement.
    /// But once our kernel has everything, later PONGs come behind the message.
    pub(crate) fn written(&mut self, written: u64, received: u64) {
        let written = written.saturating_sub(self.sent_before());
        let most = self.accepted_bytes + self.pongs(received.saturating_sub(self.received_before), written);
        if written >= most && self.written.0 < self.accepted_bytes {
            self.written = (self.accepted_bytes, most);
        }
    }

    /// Records what the kernel reports. Returns true if it has acknowledged more than before.
    pub(crate) fn observe(&mut self, counters: Counters) -> bool {
        let sent = counters.acked.saturating_sub(self.sent_before());
        let pongs = self.pongs(counters.received.saturating_sub(self.received_before), sent);
        // Our FIN counts as one more byte: limit to what was accepted.
        let mut position = sent.saturating_sub(pongs).min(self.accepted_bytes);
        if sent >= self.written.1 {
            position = position.max(self.written.0);
        }
        if position <= self.seen_bytes {
            return false;
        }
        self.seen_bytes = position;
        let (messages, bytes) = self.lengths.take(position - self.acked_bytes);
        self.acked += messages;
        self.acked_bytes += bytes;
        self.trim_at = TRIM_FIRST.max(2 * self.lengths.size());
        true
    }

    /// Whether the peer has sent anything that we may have answered.
    pub(crate) fn has_pings(&self, received: u64) -> bool {
        received > self.received_before + 1
    }

    /// Records one check of the watcher's: `written` bytes were given to the kernel. The watcher's checks are far
    /// enough apart for libzmq to hand what it has to our kernel. Returns true if missing PONGs were found. Then
    /// `written` must be recorded again.
    ///
    /// libzmq answers PINGs of different contexts with one PONG if it cannot write in between. So some PONGs that the ledger
    /// subtracts were never sent. They are found as follows: bytes are missing at every check, although everything
    /// could have been written long ago, and they are as many as a whole number of PONGs. Everything could have been
    /// written if all that the kernel had at the beginning was acknowledged since: then the kernel has signalled room
    /// to libzmq.
    pub(crate) fn check_rest(&mut self, counters: Counters, written: u64, now: Instant) -> bool {
        let written = written.saturating_sub(self.sent_before());
        let pongs = self.pongs(counters.received.saturating_sub(self.received_before), written);
        let missing = (self.accepted_bytes + pongs).saturating_sub(written);
        let begins = Rest { accepted: self.accepted_bytes, written, least: missing, since: now, checks: 0 };
        let rest = self.at_rest.get_or_insert(begins);
        // A PONG that is just being made is missing at one check and not at the next. But if less is missing, libzmq is
        // writing.
        if rest.accepted != begins.accepted || missing < rest.least {
            *rest = begins;
        }
        rest.checks += 1;
        let rest = *rest;
        let acked = counters.acked.saturating_sub(self.sent_before());
        if rest.checks < CHECKS_AT_REST || now.duration_since(rest.since) < REST || acked < rest.written {
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

    /// How many bytes of PONGs we sent as answers to `extra` bytes that the peer sent beyond its handshake, when `sent`
    /// bytes of ours have followed our handshake. The peer's FIN counts as one extra byte. Exact for libzmq's PINGs. A
    /// peer that once sent anything else is not trusted again: then the result is the upper bound, PINGs with the
    /// longest contexts.
    ///
    /// PINGs with a context look like libzmq's if they came between two updates, their bytes add up to whole libzmq
    /// PINGs, and libzmq has not written everything that was accepted. Until they are detected, less than a sixth of
    /// their bytes is taken for ours.
    fn pongs(&mut self, extra: u64, sent: u64) -> u64 {
        let (ping, pong) = (self.mechanism.ping(), self.mechanism.pong());
        let plain = (extra / ping * pong).saturating_sub(self.never_sent);
        // More than the messages and these PONGs: there were longer PONGs.
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

    /// The last message that the peer's kernel has whole, as of the last update.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acked
    }

    /// Bytes accepted and not known to be acknowledged.
    #[inline(always)]
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.accepted_bytes - self.seen_bytes
    }
}
