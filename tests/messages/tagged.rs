//! Messages whose every frame says which message it belongs to, so that a cut or mixed one shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::connection::message::Message;
use kvconn::error::Result;

use crate::common::engine::after;

/// Which message: on which connection, by which thread, its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tag {
    pub conn: u64,
    pub thread: u64,
    pub number: u64,
}

impl Tag {
    /// The frames of this message; `size` is the length of each, at least.
    pub fn frames(self, count: u64, size: usize) -> Vec<Vec<u8>> {
        let frame = |index: u64| {
            let mut frame = Vec::with_capacity(size.max(40));
            for word in [self.conn, self.thread, self.number, index, count] {
                frame.extend(word.to_le_bytes());
            }
            let filler = (self.thread * 31 + self.number * 7 + index) as u8;
            frame.resize(size.max(40), filler);
            frame
        };
        (0..count).map(frame).collect()
    }

    /// Sends it.
    pub fn send(self, conn: &Arc<Connection>, count: u64, size: usize, timeout: Duration) -> Result<u64> {
        let frames = self.frames(count, size);
        conn.send(&mut || Message::from_frames(frames.iter().map(Vec::as_slice)), after(timeout))
    }

    /// Reads a message as it arrived; panics unless it is whole and all of one piece.
    #[track_caller]
    pub fn of(message: &[Vec<u8>]) -> Tag {
        let word = |frame: &[u8], at: usize| u64::from_le_bytes(frame[8 * at..8 * at + 8].try_into().unwrap());
        let first = message.first().expect("a message has a frame");
        let tag = Tag { conn: word(first, 0), thread: word(first, 1), number: word(first, 2) };
        assert_eq!(word(first, 4), message.len() as u64, "{tag:?} arrived with {} frames", message.len());
        assert_eq!(message, tag.frames(message.len() as u64, first.len()), "{tag:?} is mixed or altered");
        tag
    }
}

/// The tags of what arrived, each message checked; panics unless the messages of each thread on each connection are
/// in order, without a gap before the last.
#[track_caller]
pub fn check_whole_and_in_order(messages: &[Vec<Vec<u8>>]) -> Vec<Tag> {
    let mut next = BTreeMap::new();
    messages
        .iter()
        .map(|message| {
            let tag = Tag::of(message);
            let expected = next.entry((tag.conn, tag.thread)).or_insert(0);
            assert_eq!(tag.number, *expected, "{tag:?} is out of order, or one before it is missing");
            *expected += 1;
            tag
        })
        .collect()
}
