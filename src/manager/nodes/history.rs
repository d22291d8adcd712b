//! Lives that are over: what is remembered of them, and what calls on them get.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::NodeInfo;
use crate::error::{Error, Status};
use crate::ids::NodeId;

/// How many lives that are over can still be asked about.
const REMEMBERED: usize = 4096;

/// How much of a name the text of an error shows, so that the rest fits in the 256 bytes that C sees.
const SHOWN_NAME: usize = 64;

/// A life that is over.
struct EndedLife {
    info: NodeInfo,
    ended: Instant,
}

/// The newest lives that are over.
#[derive(Default)]
pub(super) struct NodeHistory {
    lives: HashMap<NodeId, EndedLife>,
    /// The keys of `lives`, the first to be forgotten first.
    order: VecDeque<NodeId>,
}

impl NodeHistory {
    /// Remembers a life that has just ended, from what was known about it until now.
    pub(super) fn add(&mut self, info: NodeInfo, status: Status, reason: String) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.lives.remove(&oldest);
        }
        let node = info.node;
        self.order.push_back(node);
        let info = NodeInfo { status, reason, endpoints: 0, requests: 0, ..info };
        self.lives.insert(node, EndedLife { info, ended: Instant::now() });
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&NodeInfo> {
        self.lives.get(&node).map(|over| &over.info)
    }

    /// Why a life that does not go on cannot be used.
    pub(super) fn error(&self, node: NodeId) -> Error {
        let Some(over) = self.lives.get(&node) else {
            let text = format!("there is no life {node} of a node, or it ended too long ago to be remembered");
            return Error::new(Status::Stale, text);
        };
        let which = format!("node \"{}\" (life {node})", one_line(&over.info.name, SHOWN_NAME));
        let ago = over.ended.elapsed().as_secs_f64();
        let cure = "kvconn_node_open begins a new life";
        let text = match (over.info.status, over.info.reason.as_str()) {
            (Status::Disconnected, _) => {
                format!("{which} was forgotten {ago:.1} s ago by kvconn_disconnect_all; {cure}")
            }
            (_, "") => format!("{which} failed {ago:.1} s ago, no reason was given; {cure}"),
            // The reason comes last: it can be the longest, and the end is what a short buffer cuts off.
            (_, reason) => format!("{which} failed {ago:.1} s ago ({cure}): {reason}"),
        };
        Error::new(over.info.status, text)
    }
}

/// A caller's text as one line of at most `limit` bytes.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    text[..text.floor_char_boundary(limit)].replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut all = NodeHistory::default();
        let lives: Vec<NodeId> = (0..REMEMBERED + 2).map(|_| NodeId::fresh()).collect();
        for node in &lives {
            let info = NodeInfo {
                node: *node,
                name: "n".into(),
                status: Status::Ok,
                endpoints: 1,
                requests: 1,
                failures_in_row: 1,
                age: Duration::ZERO,
                reason: String::new(),
            };
            all.add(info, Status::NodeFailed, "x".into());
        }
        assert_eq!(all.error(lives[1]).status, Status::Stale);
        assert_eq!(all.error(lives[2]).status, Status::NodeFailed);
        assert_eq!((all.lives.len(), all.order.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn text_is_cut_between_characters_and_stays_on_its_line() {
        assert_eq!(one_line("a\tb\r\nc\0", 5), "a b  ");
        assert_eq!(one_line("xüü", 4), "xü");
        assert_eq!(one_line("xü", 100), "xü");
    }
}
