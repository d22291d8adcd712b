//! The one table of settings: name, scope, unit, range, default and text.
//!
//! A value is found in this order: the options of the call (remembered for its endpoint), what
//! `kvconn_configure` set for the manager, the environment variable `KVCONN_<NAME>`, the default.
//! `docs/options.md` is made from the table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::error::{Error, Result};

/// Where a setting acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The whole process; can be set on manager 0 before the first connection only.
    Process,
    /// One manager.
    Manager,
    /// One connection; remembered with its endpoint, used by every dial to it.
    Connection,
    /// The one call it is given to.
    Call,
}

impl Reach {
    fn name(self) -> &'static str {
        match self {
            Reach::Process => "process",
            Reach::Manager => "manager",
            Reach::Connection => "connection",
            Reach::Call => "call",
        }
    }
}

/// What values a setting takes. All are kept as an `i64`.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range, counted in a unit ("ms", "s", "" for a plain count).
    #[allow(missing_docs)]
    Number { min: i64, max: i64, unit: &'static str },
    /// 0 or 1; also `false` and `true`.
    Flag,
    /// One of these words; the value is its place.
    Word(&'static [&'static str]),
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Its key, which is also its place in the table.
    pub key: Key,
    /// Its name for `kvconn_options_set`.
    pub name: &'static str,
    /// Where it acts.
    pub reach: Reach,
    /// What it takes.
    pub kind: Kind,
    /// The default.
    pub default: i64,
    /// What it does and where the default comes from.
    pub text: &'static str,
}

/// A setting's place in [`SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the table documents each
pub enum Key {
    SendTimeoutMs,
    ConnectTimeoutMs,
    HandshakeTimeoutMs,
    ConnectRetry,
    KeepaliveIdleS,
    KeepaliveIntervalS,
    KeepaliveCount,
    UserTimeoutMs,
    SendHwm,
    StallMs,
    BackoffMs,
    BackoffMaxMs,
    MaxEndpoints,
    MaxNodes,
    MaxRequests,
    MaxFences,
    MaxEvents,
    MaxFailures,
    NodeLoss,
    MaxDescriptors,
    IoThreads,
}

const fn number(
    key: Key,
    name: &'static str,
    reach: Reach,
    (min, max, unit): (i64, i64, &'static str),
    default: i64,
    text: &'static str,
) -> Setting {
    Setting { key, name, reach, kind: Kind::Number { min, max, unit }, default, text }
}

/// The longest time a setting takes: a day. Longer waits are loops of the caller's.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// Every setting there is.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    number(Key::SendTimeoutMs, "send_timeout_ms", Reach::Manager, (0, DAY_MS, "ms"), 1000,
        "What KVCONN_DEFAULT_TIMEOUT means for a send. A scheduler thread waits here, so it is short."),
    number(Key::ConnectTimeoutMs, "connect_timeout_ms", Reach::Connection, (1, DAY_MS, "ms"), 3000,
        "How long one dial may take until TCP is connected: name resolution and every address the name has, in order, together."),
    number(Key::HandshakeTimeoutMs, "handshake_timeout_ms", Reach::Connection, (1, DAY_MS, "ms"), 3000,
        "How long the peer may take for the ZMTP handshake once TCP is connected; a peer that is no ZeroMQ socket fails here."),
    Setting { key: Key::ConnectRetry, name: "connect_retry", reach: Reach::Call, kind: Kind::Flag, default: 0,
        text: "kvconn_connect dials once for each backoff step until the peer is READY or wait_ms is over, instead of failing with the first dial. For start-up." },
    number(Key::KeepaliveIdleS, "keepalive_idle_s", Reach::Connection, (0, 32767, "s"), 30,
        "TCP_KEEPIDLE: how long a connection is idle before the kernel probes the peer. 0 turns keepalive off. An idle peer that vanished is found after idle + interval × count (55 s by default)."),
    number(Key::KeepaliveIntervalS, "keepalive_interval_s", Reach::Connection, (1, 32767, "s"), 5,
        "TCP_KEEPINTVL: time between two probes."),
    number(Key::KeepaliveCount, "keepalive_count", Reach::Connection, (1, 127, ""), 3,
        "TCP_KEEPCNT: how many probes go unanswered before the peer is lost."),
    number(Key::UserTimeoutMs, "user_timeout_ms", Reach::Connection, (0, DAY_MS, "ms"), 120_000,
        "TCP_USER_TIMEOUT: how long sent data may stay unacknowledged before the peer is lost. Keepalive does not run while data is in flight, so without it a black hole takes 940 s. It also counts a live peer's zero window: keep it longer than the longest stall you tolerate. 0 leaves it to the kernel."),
    number(Key::SendHwm, "send_hwm", Reach::Connection, (1, 10_000_000, "messages"), 1000,
        "How many messages libzmq queues for one connection. Once full, the queue opens again when half of it has left."),
    number(Key::StallMs, "stall_ms", Reach::Connection, (1, DAY_MS, "ms"), 1000,
        "A full connection that makes no progress for this long raises the event STALLED."),
    number(Key::BackoffMs, "backoff_ms", Reach::Manager, (1, DAY_MS, "ms"), 100,
        "The first backoff step after a failed dial. Each further failure doubles it, up to backoff_max_ms; up to a quarter is added at random, so that many callers do not dial in step."),
    number(Key::BackoffMaxMs, "backoff_max_ms", Reach::Manager, (1, DAY_MS, "ms"), 2000,
        "The longest backoff step."),
    number(Key::MaxEndpoints, "max_endpoints", Reach::Manager, (1, 1_000_000, ""), 4096,
        "How many endpoints may be connected or registered with a node at once. Each connected one costs 4 descriptors."),
    number(Key::MaxNodes, "max_nodes", Reach::Manager, (1, 1_000_000, ""), 4096,
        "How many nodes may be live, plus failure reports that nobody took."),
    number(Key::MaxRequests, "max_requests", Reach::Manager, (1, 100_000_000, ""), 1_000_000,
        "How many requests may be tracked, plus those in failure reports that nobody took. 8 bytes and some each."),
    number(Key::MaxFences, "max_fences", Reach::Manager, (1, 1_000_000, ""), 16_384,
        "How many endpoints that are neither connected nor registered are remembered, fenced ones and others each; the oldest are forgotten."),
    number(Key::MaxEvents, "max_events", Reach::Manager, (2, 1_000_000, ""), 4096,
        "How many events wait for kvconn_next_event; more are counted and reported by OVERFLOW. About 1 KiB each at the most."),
    number(Key::MaxFailures, "max_failures", Reach::Manager, (1, 1_000_000, ""), 2,
        "How many unhealthy reports in a row fail a node."),
    Setting { key: Key::NodeLoss, name: "node_loss", reach: Reach::Manager, kind: Kind::Word(&["report", "any", "all"]), default: 0,
        text: "What the loss of a node's endpoints does: `report` only raises PEER_LOST; `any` fails the node with the first endpoint lost; `all` when every endpoint that was READY in this life is lost." },
    number(Key::MaxDescriptors, "max_descriptors", Reach::Process, (0, 100_000_000, ""), 0,
        "How many file descriptors kvconn may hold, closing ones included. 0: as many as the process's RLIMIT_NOFILE leaves."),
    number(Key::IoThreads, "io_threads", Reach::Process, (1, 16, ""), 1,
        "libzmq's I/O threads, shared by all connections. One carries about a million small messages a second."),
];

const COUNT: usize = SETTINGS.len();

/// A value for every setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values([i64; COUNT]);

/// Some settings that were given explicitly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options([Option<i64>; COUNT]);

/// What the loss of endpoints does to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLoss {
    /// Nothing but events.
    Report,
    /// The first loss fails the node.
    Any,
    /// The loss of every endpoint that was READY fails the node.
    All,
}

impl Setting {
    /// Reads a value of this setting.
    fn parse(&self, value: &str) -> Result<i64> {
        let bad = |expected: String| Err(Error::invalid(format!("option {}: {value:?} is not {expected}", self.name)));
        match self.kind {
            Kind::Number { min, max, unit } => match value.parse::<i64>() {
                // Only plain digits, so that one value has one text.
                Ok(n) if (min..=max).contains(&n) && value.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
                _ => bad(format!("a whole number from {min} to {max} {unit}").trim_end().to_string()),
            },
            Kind::Flag => match value {
                "0" | "false" => Ok(0),
                "1" | "true" => Ok(1),
                _ => bad("0, 1, false or true".into()),
            },
            Kind::Word(words) => match words.iter().position(|w| *w == value) {
                Some(place) => Ok(place as i64),
                None => bad(format!("one of {}", words.join(", "))),
            },
        }
    }

    /// The environment variable that gives its default.
    pub fn variable(&self) -> String {
        format!("KVCONN_{}", self.name.to_ascii_uppercase())
    }
}

impl Options {
    /// Sets one option from text; nothing changes on an error.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
            return Err(Error::invalid(format!("there is no option {name:?}; docs/options.md lists them")));
        };
        self.0[setting.key as usize] = Some(setting.parse(value)?);
        Ok(())
    }

    /// Whether the option was given and is not 0.
    pub fn flag(&self, key: Key) -> bool {
        self.0[key as usize].is_some_and(|v| v != 0)
    }

    /// The settings given that act elsewhere than in `allowed`, as an error that names the first.
    pub fn only(&self, allowed: &[Reach], call: &str) -> Result<()> {
        match self.given().find(|(s, _)| !allowed.contains(&s.reach)) {
            None => Ok(()),
            Some((s, _)) => Err(Error::invalid(format!(
                "option {} is one of a {}; {call} does not take it",
                s.name,
                s.reach.name()
            ))),
        }
    }

    /// Whether any setting that acts there was given.
    pub fn has_any_of(&self, reach: Reach) -> bool {
        self.given().any(|(setting, _)| setting.reach == reach)
    }

    /// The settings that were given, with their values.
    pub fn given(&self) -> impl Iterator<Item = (&'static Setting, i64)> + '_ {
        SETTINGS.iter().zip(&self.0).filter_map(|(s, v)| v.map(|v| (s, v)))
    }
}

impl Values {
    /// The defaults.
    pub fn defaults() -> Values {
        let mut values = [0; COUNT];
        for setting in SETTINGS {
            values[setting.key as usize] = setting.default;
        }
        Values(values)
    }

    /// The defaults, with what the environment says. `lookup` is `std::env::var` outside tests. A variable that
    /// cannot be used is an error: a typing mistake in a deployment must not pass silently.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Values> {
        let mut values = Values::defaults();
        for setting in SETTINGS {
            let variable = setting.variable();
            if let Some(text) = lookup(&variable) {
                values.0[setting.key as usize] = setting
                    .parse(&text)
                    .map_err(|e| Error::invalid(format!("environment variable {variable}: {}", e.message)))?;
            }
        }
        values.check()?;
        Ok(values)
    }

    /// These values with some replaced.
    pub fn with(&self, options: &Options) -> Result<Values> {
        let mut values = self.clone();
        for (setting, value) in options.given() {
            values.0[setting.key as usize] = value;
        }
        values.check()?;
        Ok(values)
    }

    /// What no single setting's range can say.
    fn check(&self) -> Result<()> {
        if self.get(Key::BackoffMs) > self.get(Key::BackoffMaxMs) {
            return Err(Error::invalid("backoff_ms is greater than backoff_max_ms"));
        }
        Ok(())
    }

    /// The setting that `options` wants other than it is here, among those of a connection.
    pub fn conflict(&self, options: &Options) -> Option<&'static Setting> {
        options.given().find(|(s, v)| s.reach == Reach::Connection && self.get(s.key) != *v).map(|(s, _)| s)
    }

    /// The plain number.
    pub fn get(&self, key: Key) -> i64 {
        self.0[key as usize]
    }

    /// A count, as a size.
    pub fn count(&self, key: Key) -> usize {
        usize::try_from(self.get(key)).unwrap_or(usize::MAX)
    }

    /// A time in milliseconds, as a duration.
    pub fn ms(&self, key: Key) -> Duration {
        Duration::from_millis(self.get(key).unsigned_abs())
    }

    /// The policy `node_loss`.
    pub fn node_loss(&self) -> NodeLoss {
        match self.get(Key::NodeLoss) {
            1 => NodeLoss::Any,
            2 => NodeLoss::All,
            _ => NodeLoss::Report,
        }
    }
}

/// `docs/options.md`.
pub fn document() -> String {
    let mut out = String::from(
        "# Options\n\nMade from the table in `src/options.rs`; `make bless` renews it. Every value is text, given by\n\
         `kvconn_options_set(options, name, value)`. A setting is looked for in the options of the call (remembered for\n\
         its endpoint), then in `kvconn_configure`, then in the environment variable `KVCONN_<NAME>`, then here.\n\n\
         * **connection**: taken by `kvconn_connect` and `kvconn_node_add_endpoints`, and by `kvconn_configure` for all dials to come.\n\
         * **manager**: taken by `kvconn_configure` and `kvconn_manager_create`.\n\
         * **process**: taken by `kvconn_configure` on manager 0 before the first connection.\n\
         * **call**: taken by `kvconn_connect`.\n\n\
         | name | acts on | values | default | |\n| --- | --- | --- | --- | --- |\n",
    );
    for s in SETTINGS {
        let (values, default) = match s.kind {
            Kind::Number { min, max, unit } => {
                let space = if unit.is_empty() { "" } else { " " };
                (format!("{min} – {max}{space}{unit}"), s.default.to_string())
            }
            Kind::Flag => ("0, 1".into(), s.default.to_string()),
            Kind::Word(words) => (words.join(", "), words[s.default as usize].into()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{}` | {} | {values} | {default} | {} |", s.name, s.reach.name(), s.text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    fn options(pairs: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (name, value) in pairs {
            options.set(name, value).unwrap();
        }
        options
    }

    #[test]
    fn every_setting_stands_at_its_key_and_its_default_is_in_range() {
        for (place, s) in SETTINGS.iter().enumerate() {
            assert_eq!(s.key as usize, place, "{}", s.name);
            let text = match s.kind {
                Kind::Word(words) => words[s.default as usize].to_string(),
                _ => s.default.to_string(),
            };
            assert_eq!(s.parse(&text).unwrap(), s.default, "{}", s.name);
        }
    }

    #[test]
    fn bad_names_and_values_are_refused_and_change_nothing() {
        let mut o = options(&[("send_hwm", "7")]);
        for (name, value) in [
            ("send_hwm", "0"),
            ("send_hwm", "x"),
            ("send_hwm", "+5"),
            ("send_hwm", " 5"),
            ("send_hwm", ""),
            ("send_hwm", "99999999999999999999"),
            ("connect_retry", "2"),
            ("node_loss", "ALL"),
            ("no_such", "1"),
        ] {
            let e = o.set(name, value).unwrap_err();
            assert_eq!(e.status, Status::Invalid);
            assert!(e.message.contains(name), "{}", e.message);
        }
        assert_eq!(o, options(&[("send_hwm", "7")]));
    }

    #[test]
    fn the_environment_gives_defaults_and_its_mistakes_are_named() {
        let values = Values::from_environment(|v| (v == "KVCONN_SEND_TIMEOUT_MS").then(|| "250".into()));
        assert_eq!(values.unwrap().ms(Key::SendTimeoutMs), Duration::from_millis(250));
        let e = Values::from_environment(|v| (v == "KVCONN_STALL_MS").then(|| "soon".into()));
        assert!(e.unwrap_err().message.contains("KVCONN_STALL_MS"));
    }

    #[test]
    fn a_conflict_is_only_what_was_asked_for_and_differs() {
        let live = Values::defaults().with(&options(&[("send_hwm", "5")])).unwrap();
        assert!(live.conflict(&options(&[("send_hwm", "5"), ("connect_retry", "1")])).is_none());
        assert_eq!(live.conflict(&options(&[("send_hwm", "6")])).unwrap().name, "send_hwm");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        assert!(Values::defaults().with(&options(&[("backoff_ms", "5000")])).is_err());
    }

    #[test]
    fn a_call_refuses_settings_that_act_elsewhere() {
        let o = options(&[("max_nodes", "5")]);
        let e = o.only(&[Reach::Connection, Reach::Call], "kvconn_connect").unwrap_err();
        assert!(e.message.contains("max_nodes"));
    }
}
