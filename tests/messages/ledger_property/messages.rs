//! Messages of random shapes, and a plain account of those that were accepted: what a ledger must come to.

use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::error::Result;

use crate::common::engine::{after, message};
use crate::common::{Random, TcpView};

/// The largest frame.
const LARGEST: usize = 8 << 20;
/// What we send before the first message: the SYN, which counts as a byte, ZMTP's greeting and READY.
const SENT_BEFORE: u64 = 1 + 64 + 28;
/// What a PULL sends before its first PING.
const RECEIVED_BEFORE: u64 = 64 + 28;
const PING: u64 = 9;
const PONG: u64 = 7;

/// How a message is handed over.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// kvconn copies it.
    Copied,
    /// Zero-copy: libzmq writes it from where it is.
    Owned,
}

/// The frames of one message, behind a first one that numbers it.
#[derive(Clone, Debug)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Mostly small ones; some around the lengths at which a header changes, some large, a few as large as any.
    pub fn random(random: &mut Random) -> Shape {
        let frames = random.below(5);
        Shape((0..frames).map(|_| Shape::size(random)).collect())
    }

    fn size(random: &mut Random) -> usize {
        match random.below(400) {
            0 => LARGEST - random.below(3) as usize,
            1..=4 => random.below(LARGEST as u64) as usize,
            5..=100 => random.one_of(&[0, 1, 254, 255, 256, 257, 8191, 8192, 65_535, 65_536]),
            rest => {
                let bound = [4, 40, 300, 3000, 70_000][rest as usize % 5];
                random.below(bound) as usize
            }
        }
    }

    /// Bytes on the wire.
    fn wire(&self) -> u64 {
        let frame = |bytes: usize| bytes as u64 + if bytes <= 255 { 2 } else { 9 };
        frame(8) + self.0.iter().map(|bytes| frame(*bytes)).sum::<u64>()
    }

    /// Hands it over as message `number`; its sequence.
    pub fn send(&self, way: Way, conn: &Arc<Connection>, number: u64, timeout: Duration) -> Result<u64> {
        static BODY: [u8; LARGEST] = [0x5a; LARGEST];
        let number = number.to_le_bytes();
        let bodies = self.0.iter().map(|bytes| &BODY[..*bytes]);
        let frames: Vec<&[u8]> = std::iter::once(&number[..]).chain(bodies).collect();
        match way {
            Way::Copied => conn.send(&mut || message(&frames), after(timeout)),
            Way::Owned => {
                // Never given back: the number is as old as the process, as is the body.
                let number: &'static [u8] = Box::leak(Box::new(number));
                let buffers: Vec<*const [u8]> =
                    std::iter::once(number).chain(frames[1..].iter().copied()).map(|frame| &raw const *frame).collect();
                // SAFETY: static bytes that are never changed.
                unsafe { conn.send_owned(&buffers, None, after(timeout)) }
            }
        }
    }
}

/// Where on the wire each accepted message ends.
#[derive(Debug, Default)]
pub struct Account {
    ends: Vec<u64>,
    shapes: Vec<Shape>,
    /// Bytes of PONG among what was sent when everything had arrived the last time.
    ponged: u64,
}

impl Account {
    /// The number of the next message, which is the sequence it must get.
    pub fn next(&self) -> u64 {
        self.accepted() + 1
    }

    pub fn accepted(&self) -> u64 {
        self.ends.len() as u64
    }

    pub fn accept(&mut self, shape: Shape) {
        let end = self.ends.last().copied().unwrap_or(0) + shape.wire();
        self.ends.push(end);
        self.shapes.push(shape);
    }

    /// The accepted message of that number.
    pub fn shape(&self, number: u64) -> &Shape {
        &self.shapes[number as usize - 1]
    }

    /// Whether the kernel has counted exactly what was accepted, and PONGs for the PINGs that came: one for each,
    /// unless libzmq could not write for a while; then it answers several with one.
    pub fn settles(&mut self, view: &TcpView) -> bool {
        let pinged = view.received() - RECEIVED_BEFORE;
        let Some(ponged) = view.acked().checked_sub(SENT_BEFORE + self.bytes()) else { return false };
        let right = ponged.is_multiple_of(PONG) && ponged / PONG <= pinged / PING;
        if right {
            self.ponged = ponged;
        }
        right
    }

    /// How many messages the kernel's counts cover whole, at the most.
    pub fn covered(&self, view: &TcpView) -> u64 {
        let acked = view.acked().saturating_sub(SENT_BEFORE + self.ponged);
        self.ends.iter().take_while(|end| **end <= acked).count() as u64
    }

    fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}
