//! The lengths of messages, oldest first, in little memory: messages in a row of one length are one entry.
//!
//! An entry takes 1 byte for a single message below 64 bytes and 2 below 8 KiB, and 1 or more bytes for the number of
//! messages in a row if there are several.

use std::collections::VecDeque;

/// Messages in a row of one length.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    length: u64,
    messages: u64,
}

/// The list. What every message needs comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Lengths {
    /// The newest messages. Not in `runs`.
    newest: Run,
    /// The oldest messages that are not taken. Not in `runs`.
    oldest: Run,
    /// The runs between them, encoded.
    runs: VecDeque<u8>,
}

impl Lengths {
    /// The bytes at its beginning that every message needs.
    pub(super) const EVERY_MESSAGE: usize = size_of::<Run>();

    /// Adds a message. Returns whether the list may take more memory than before.
    #[inline(always)]
    pub(super) fn push(&mut self, length: u64) -> bool {
        let begins = self.newest.length != length;
        if begins {
            self.begin_run(length);
        }
        self.newest.messages += 1;
        begins
    }

    #[inline(never)]
    fn begin_run(&mut self, length: u64) {
        let Run { length: before, messages } = std::mem::replace(&mut self.newest, Run { length, messages: 0 });
        if messages > 0 {
            self.encode(before << 1 | u64::from(messages > 1));
        }
        if messages > 1 {
            self.encode(messages);
        }
    }

    /// Takes the oldest messages, as many as end within `bytes`. Returns how many these are, and their bytes.
    pub(super) fn take(&mut self, mut bytes: u64) -> (u64, u64) {
        let (before, mut messages) = (bytes, 0);
        loop {
            if self.oldest.messages == 0 {
                self.oldest = match self.decode() {
                    Some(first) if first & 1 == 0 => Run { length: first >> 1, messages: 1 },
                    Some(first) => Run { length: first >> 1, messages: self.decode().unwrap_or_default() },
                    None => std::mem::take(&mut self.newest),
                };
            }
            let Run { length, messages: all } = self.oldest;
            // No message is empty on the wire.
            let taken = bytes.checked_div(length).unwrap_or_default().min(all);
            messages += taken;
            bytes -= taken * length;
            self.oldest.messages -= taken;
            if taken == 0 || taken < all {
                return (messages, before - bytes);
            }
        }
    }

    /// The memory of the encoded list, in bytes.
    #[inline(always)]
    pub(super) fn size(&self) -> usize {
        self.runs.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.oldest.messages + self.newest.messages == 0
    }

    /// As a varint: 7 bits for each byte, the lowest first.
    fn encode(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.runs.push_back(number as u8 | 0x80);
            number >>= 7;
        }
        self.runs.push_back(number as u8);
    }

    fn decode(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        while let Some(byte) = self.runs.pop_front() {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![2..5_u64, 60..70_u64, 8000..9000_u64, 1..u64::from(u32::MAX)]
    }

    proptest! {
        /// Beside a plain list.
        #[test]
        fn it_takes_what_a_plain_list_takes(
            steps in prop::collection::vec((length(), 1..6_u64, 0..40_000_u64), 1..60),
        ) {
            let (mut lengths, mut plain) = (Lengths::default(), VecDeque::new());
            for (length, messages, bytes) in steps {
                for _ in 0..messages {
                    lengths.push(length);
                    plain.push_back(length);
                }
                let (mut count, mut sum) = (0, 0);
                while plain.front().is_some_and(|first| sum + first <= bytes) {
                    sum += plain.pop_front().unwrap_or_default();
                    count += 1;
                }
                prop_assert_eq!(lengths.take(bytes), (count, sum));
                prop_assert_eq!(lengths.is_empty(), plain.is_empty());
            }
            prop_assert_eq!(lengths.take(u64::MAX), (plain.len() as u64, plain.iter().sum()));
            prop_assert!(lengths.is_empty());
        }
    }

    #[test]
    fn equal_lengths_take_no_memory_and_others_a_byte_or_two() {
        let mut lengths = Lengths::default();
        for _ in 0..1_000_000 {
            lengths.push(66);
        }
        assert_eq!(lengths.size(), 0);
        for number in 0..1000 {
            lengths.push(2 + number % 2);
        }
        assert!(lengths.size() < 1010);
        for number in 0..1000 {
            lengths.push(500 + number % 2);
        }
        assert!(lengths.size() < 3010);
    }
}
