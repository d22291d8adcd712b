//! Ended lives of nodes: what is remembered, and the errors of calls on them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::NodeInfo;
use crate::error::{Error, Status};
use crate::ids::NodeId;

/// How many ended lives stay readable.
const REMEMBERED: usize = 4096;

/// How much of a name an error text shows, so that the rest fits into C's buffer of 256 bytes.
const SHOWN_NAME: usize = 64;

/// An ended life.
struct EndedLife {
    info: NodeInfo,
    ended: Instant,
}

/// The newest ended lives.
#[derive(Default)]
pub(super) struct NodeHistory {
    lives: HashMap<NodeId, EndedLife>,
    /// The keys of `lives`. The first is forgotten first.
    order: VecDeque<NodeId>,
}

impl NodeHistory {
    /// Remembers a life that has just ended. `info` is from before its end.
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
        self.lives.get(&node).map(|ended| &ended.info)
    }

    /// The error for calls on a life that is not live.
    pub(super) fn error(&self, node: NodeId) -> Error {
        let Some(ended) = self.lives.get(&node) else {
            let text = format!("there is no life {node} of a node, or it ended too long ago to be remembered");
            return Error::new(Status::Stale, text);
        };
        let which = format!("node \"{}\" (life {node})", one_line(&ended.info.name, SHOWN_NAME));
        let ago = ended.ended.elapsed().as_secs_f64();
        let cure = "kvconn_node_open begins a new life";
        let text = match (ended.info.status, ended.info.reason.as_str()) {
            (Status::Disconnected, _) => {
                format!("{which} was forgotten {ago:.1} s ago by kvconn_disconnect_all; {cure}")
            }
            (_, "") => format!("{which} failed {ago:.1} s ago, no reason was given; {cure}"),
            // The reason comes last: it can be the longest part, and a short buffer cuts off the end.
            (_, reason) => format!("{which} failed {ago:.1} s ago ({cure}): {reason}"),
        };
        Error::new(ended.info.status, text)
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
    fn text_is_cut_between_characters_and_is_one_line() {
        assert_eq!(one_line("a\tb\r\nc\0", 5), "a b  ");
        assert_eq!(one_line("xüü", 4), "xü");
        assert_eq!(one_line("xü", 100), "xü");
    }
}
