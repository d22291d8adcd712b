//! The order in which names that wait get a thread: names that answered quickly last time, then names that are new, then
//! names that kept a thread for long last time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How many names' last look-ups are remembered. When there are more, all are forgotten: then they are new again.
const REMEMBERED: usize = 4096;

/// How long the last look-up of a name took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Quick,
    Slow,
}

/// The names that no thread has taken yet.
#[derive(Default)]
pub(super) struct Lanes {
    /// Quick, new, slow.
    lanes: [VecDeque<Arc<str>>; 3],
    last: HashMap<Arc<str>, Last>,
}

impl Lanes {
    pub(super) fn push(&mut self, host: Arc<str>) {
        let lane = match self.last.get(&host) {
            Some(Last::Quick) => 0,
            None => 1,
            Some(Last::Slow) => 2,
        };
        self.lanes[lane].push_back(host);
    }

    /// Takes the next name.
    pub(super) fn pop(&mut self) -> Option<Arc<str>> {
        self.lanes.iter_mut().find_map(VecDeque::pop_front)
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn contains(&self, host: &str) -> bool {
        self.lanes.iter().flatten().any(|queued| &**queued == host)
    }

    /// Takes this name out; false if it is not there.
    pub(super) fn remove(&mut self, host: &str) -> bool {
        self.lanes.iter_mut().any(|lane| {
            let place = lane.iter().position(|queued| &**queued == host);
            place.is_some_and(|place| lane.remove(place).is_some())
        })
    }

    /// Takes out the names for which `over` says so.
    pub(super) fn take_if(&mut self, over: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        for lane in &mut self.lanes {
            lane.retain(|host| {
                let stays = !over(host);
                if !stays {
                    taken.push(Arc::clone(host));
                }
                stays
            });
        }
        taken
    }

    /// Remembers whether the look-up of a name was quick.
    pub(super) fn note(&mut self, host: &Arc<str>, quick: bool) {
        if self.last.len() >= REMEMBERED && !self.last.contains_key(host) {
            self.last.clear();
        }
        self.last.insert(Arc::clone(host), if quick { Last::Quick } else { Last::Slow });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lanes: &mut Lanes) -> Vec<String> {
        std::iter::from_fn(|| lanes.pop().map(|host| host.to_string())).collect()
    }

    #[test]
    fn quick_names_come_first_and_slow_ones_last() {
        let mut lanes = Lanes::default();
        lanes.note(&"slow".into(), false);
        lanes.note(&"quick".into(), true);
        lanes.note(&"recovered".into(), false);
        lanes.note(&"recovered".into(), true);
        for host in ["slow", "new", "quick", "other", "recovered"] {
            lanes.push(host.into());
        }
        assert!(lanes.contains("slow") && !lanes.contains("absent") && lanes.len() == 5);
        assert!(lanes.remove("other") && !lanes.remove("other"));
        assert_eq!(all(&mut lanes), ["quick", "recovered", "new", "slow"]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn names_that_are_over_are_taken_out_of_every_lane() {
        let mut lanes = Lanes::default();
        lanes.note(&"quick".into(), true);
        for host in ["over 1", "quick", "over 2"] {
            lanes.push(host.into());
        }
        assert_eq!(lanes.take_if(|host| host.starts_with("over")).len(), 2);
        assert_eq!(all(&mut lanes), ["quick"]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lanes = Lanes::default();
        for name in 0..3 * REMEMBERED {
            lanes.note(&name.to_string().into(), true);
        }
        assert!(lanes.last.len() <= REMEMBERED);
    }
}
