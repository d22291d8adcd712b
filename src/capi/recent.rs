//! The connections that this thread's last `kvconn_send_to` calls have used, by the text of the endpoint.
//!
//! A connection belongs to its endpoint for life, and an endpoint has at most one live connection in its manager. So if
//! the remembered connection is live, it is the one that a look-up would find. Otherwise the call looks it up.

use std::cell::RefCell;

use crate::ids::{ConnId, ManagerId};

/// How many a thread remembers: a power of two.
const PLACES: usize = 256;
/// The texts that are remembered: `tcp://1.2.3.4:5` is shorter, no address is longer.
const SHORTEST: usize = 16;
const LONGEST: usize = 63;

#[derive(Clone, Copy)]
struct Remembered {
    manager: ManagerId,
    conn: ConnId,
    length: u8,
    text: [u8; LONGEST],
}

const EMPTY: Remembered = Remembered { manager: ManagerId::NONE, conn: ConnId::NONE, length: 0, text: [0; LONGEST] };

thread_local! {
    /// Empty until the first call.
    static RECENT: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

/// Where a text is remembered. Its last bytes differ most: address and port.
#[inline(always)]
fn place(text: &[u8]) -> usize {
    let word = |back: usize| {
        let bytes = text[text.len() - back..].first_chunk::<8>();
        u64::from_ne_bytes(*bytes.unwrap_or(&[0; 8]))
    };
    let mixed = (word(8) ^ word(16).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

fn is_remembered(text: &[u8]) -> bool {
    // The number of an interface's name may change.
    (SHORTEST..=LONGEST).contains(&text.len()) && !text.contains(&b'%')
}

/// The connection that this manager's last message to this endpoint has used.
#[inline(always)]
pub(super) fn find(manager: ManagerId, text: &[u8]) -> Option<ConnId> {
    if !(SHORTEST..=LONGEST).contains(&text.len()) {
        return None;
    }
    // Thread-locals may be gone when a thread's last destructors call.
    let found = RECENT.try_with(|recent| {
        let recent = recent.try_borrow().ok()?;
        let entry = recent.get(place(text))?;
        let same = entry.manager == manager && entry.text.get(..usize::from(entry.length)) == Some(text);
        same.then_some(entry.conn)
    });
    found.ok().flatten()
}

/// A message of this manager to this endpoint has used this connection.
#[cold]
#[inline(never)]
pub(super) fn remember(manager: ManagerId, text: &[u8], conn: ConnId) {
    if !is_remembered(text) {
        return;
    }
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return };
        if recent.is_empty() {
            recent.resize(PLACES, EMPTY);
        }
        let entry = &mut recent[place(text)];
        *entry = Remembered { manager, conn, length: text.len() as u8, ..EMPTY };
        entry.text[..text.len()].copy_from_slice(text);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_connection_of_each_text_and_manager_is_found() {
        let (one, two) = (ManagerId(1), ManagerId(2));
        let texts: Vec<String> = (0..8).map(|host| format!("tcp://10.0.0.{host}:5555")).collect();
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(find(one, text.as_bytes()), None);
            remember(one, text.as_bytes(), ConnId(number as u64 + 1));
            assert_eq!(find(one, text.as_bytes()), Some(ConnId(number as u64 + 1)));
            assert_eq!(find(two, text.as_bytes()), None);
        }
        let found = texts.iter().filter(|text| find(one, text.as_bytes()).is_some()).count();
        assert!(found >= 6, "{found} of 8 hosts have places of their own");
        remember(one, texts[7].as_bytes(), ConnId(77));
        assert_eq!(find(one, texts[7].as_bytes()), Some(ConnId(77)));
    }

    #[test]
    fn a_zone_and_texts_of_unusual_length_are_not_remembered() {
        let long = format!("ipc://{}", "x".repeat(100));
        for text in ["tcp://[fe80::1%eth0]:5555", "ipc:///a", "", &long] {
            remember(ManagerId(1), text.as_bytes(), ConnId(1));
            assert_eq!(find(ManagerId(1), text.as_bytes()), None, "{text}");
        }
    }
}
