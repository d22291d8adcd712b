//! What an endpoint's dials have taught about the addresses of its name: which to dial first.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};

use crate::sys::lock::Mutex;

/// One for each endpoint, kept from dial to dial.
#[derive(Default)]
pub(crate) struct AddressHistory {
    /// Leaf lock.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The address of the last connection that was READY.
    good: Option<CString>,
    /// Addresses that have failed since they were last good, the oldest failure first.
    failed: Vec<(CString, AddressFailure)>,
}

/// How an address failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressFailure {
    /// It said no, and cost little time.
    Quick,
    /// It used up its share of the time.
    Slow,
}

impl AddressHistory {
    /// The addresses in the order in which to dial them: the last good one, those that have not failed, those that
    /// failed at once, those that used up their time; otherwise in the order given.
    pub(super) fn in_order(&self, addresses: impl IntoIterator<Item = CString>) -> VecDeque<CString> {
        let mut known = self.known.lock();
        let mut addresses: Vec<CString> = addresses.into_iter().collect();
        // What the name does not resolve to any more is forgotten.
        known.failed.retain(|(failed, _)| addresses.contains(failed));
        addresses.sort_by_key(|address| known.rank(address));
        addresses.into()
    }

    pub(super) fn succeeded(&self, address: &CStr) {
        let mut known = self.known.lock();
        known.failed.retain(|(failed, _)| failed.as_c_str() != address);
        known.good = Some(address.to_owned());
    }

    pub(super) fn failed(&self, address: &CStr, how: AddressFailure) {
        let mut known = self.known.lock();
        known.failed.retain(|(failed, _)| failed.as_c_str() != address);
        known.failed.push((address.to_owned(), how));
        if known.good.as_deref() == Some(address) {
            known.good = None;
        }
    }
}

impl Known {
    /// Smaller is earlier.
    fn rank(&self, address: &CString) -> (u8, usize) {
        if self.good.as_ref() == Some(address) {
            return (0, 0);
        }
        match self.failed.iter().position(|(failed, _)| failed == address) {
            None => (1, 0),
            Some(place) if self.failed[place].1 == AddressFailure::Quick => (2, place),
            Some(place) => (3, place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(history: &AddressHistory, addresses: &[&CStr]) -> Vec<String> {
        let ordered = history.in_order(addresses.iter().map(|address| CString::from(*address)));
        ordered.iter().map(|address| address.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_last_good_address_is_first_and_the_slow_ones_are_last() {
        let (history, all) = (AddressHistory::default(), [c"a", c"b", c"c", c"d"]);
        assert_eq!(order(&history, &all), ["a", "b", "c", "d"]);
        history.failed(c"a", AddressFailure::Slow);
        history.succeeded(c"c");
        assert_eq!(order(&history, &all), ["c", "b", "d", "a"]);
        history.failed(c"c", AddressFailure::Quick);
        history.failed(c"b", AddressFailure::Quick);
        assert_eq!(order(&history, &all), ["d", "c", "b", "a"]);
        history.failed(c"c", AddressFailure::Quick);
        history.failed(c"d", AddressFailure::Slow);
        assert_eq!(order(&history, &all), ["b", "c", "a", "d"]);
        history.succeeded(c"a");
        assert_eq!(order(&history, &all), ["a", "b", "c", "d"]);
    }

    #[test]
    fn what_the_name_no_longer_means_is_forgotten() {
        let history = AddressHistory::default();
        history.failed(c"a", AddressFailure::Slow);
        assert_eq!(order(&history, &[c"b"]), ["b"]);
        assert_eq!(order(&history, &[c"a", c"b"]), ["a", "b"]);
    }
}
