//! The one table of settings: name, scope, unit, range, default and text.
//!
//! A value is found in this order: the options of the call, what its endpoint remembers of former calls, what
//! `kvconn_configure` set for the manager, the environment variable `KVCONN_<NAME>`, the default.
//! `docs/options.md` is made from the table.

mod curve;
#[cfg(test)]
mod tests;
mod text;
mod values;

use std::fmt::Write as _;

use crate::error::{Error, Result};

pub use curve::CurveKey;
pub use values::{NodeLoss, Options, Value, Values};

/// Where a setting acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The whole process; can be set on manager 0, most of them before the first connection only.
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

/// What values a setting takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range, counted in a unit ("ms", "s", "" for a plain count).
    #[allow(missing_docs)]
    Number { min: i64, max: i64, unit: &'static str },
    /// 0 or 1; also `false` and `true`.
    Flag,
    /// One of these words; the value is its place.
    Word(&'static [&'static str]),
    /// A text of some form, or the empty text for none. `read` gives its canonical form, or refuses it.
    #[allow(missing_docs)]
    Text { form: &'static str, read: fn(&str) -> Option<String> },
    /// A CURVE key that everybody may know, in Z85, or the empty text for none.
    PublicKey,
    /// A CURVE key that nobody else may know, in Z85, or the empty text for none.
    Secret,
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
    /// The default of a setting with numbers or words. All others are none by default.
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
    MaxQueuedBytes,
    StallMs,
    Acknowledgement,
    IdleTimeoutMs,
    BackoffMs,
    BackoffMaxMs,
    MaxEndpoints,
    EvictIdle,
    MaxNodes,
    MaxRequests,
    MaxFences,
    MaxEvents,
    MaxFailures,
    NodeLoss,
    MetricsEndpoints,
    MaxDescriptors,
    MaxTotalQueuedBytes,
    IoThreads,
    CurveServerKey,
    CurvePublicKey,
    CurveSecretKey,
    RequireCurve,
    SourceAddress,
    Interface,
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

const fn none(key: Key, name: &'static str, kind: Kind, text: &'static str) -> Setting {
    Setting { key, name, reach: Reach::Connection, kind, default: 0, text }
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
        "TCP_KEEPIDLE: how long a connection is idle before the kernel probes the peer. 0 turns keepalive off. An idle peer that vanished is found after idle + interval × count (45 s by default)."),
    number(Key::KeepaliveIntervalS, "keepalive_interval_s", Reach::Connection, (1, 32767, "s"), 5,
        "TCP_KEEPINTVL: time between two probes."),
    number(Key::KeepaliveCount, "keepalive_count", Reach::Connection, (1, 127, ""), 3,
        "TCP_KEEPCNT: how many probes go unanswered before the peer is lost."),
    number(Key::UserTimeoutMs, "user_timeout_ms", Reach::Connection, (0, DAY_MS, "ms"), 120_000,
        "TCP_USER_TIMEOUT: how long sent data may stay unacknowledged before the peer is lost. Keepalive does not run while data is in flight, so without it a black hole takes 940 s. It also counts a live peer's zero window: keep it longer than the longest stall you tolerate. 0 leaves it to the kernel."),
    number(Key::SendHwm, "send_hwm", Reach::Connection, (1, 10_000_000, "messages"), 1000,
        "How many messages libzmq queues for one connection. Once full, the queue opens again when half of it has left."),
    number(Key::MaxQueuedBytes, "max_queued_bytes", Reach::Connection, (1, 1 << 50, "bytes"), 256 << 20,
        "How many bytes may be on the way on one connection: accepted, and not yet acknowledged by the peer's kernel (ipc, and with acknowledgement off: still held by libzmq). Bytes on the wire: in memory libzmq needs about 64 more for each frame. When they are used up, the connection is full. One larger message goes when nothing else is on the way."),
    number(Key::StallMs, "stall_ms", Reach::Connection, (1, DAY_MS, "ms"), 1000,
        "When nothing of what is on the way to a peer has been acknowledged for this long (ipc, and with acknowledgement off: let go by libzmq), the event STALLED is raised."),
    Setting { key: Key::Acknowledgement, name: "acknowledgement", reach: Reach::Connection, kind: Kind::Word(&["off", "on"]), default: 1,
        text: "Whether kvconn keeps account of what the peer's kernel has acknowledged (TCP). `off` saves a descriptor for each connection; then nobody can tell what arrived: counts are KVCONN_UNKNOWN, kvconn_flush is KVCONN_UNSUPPORTED, and a peer that sends to this socket, which nobody should, and then leaves is not noticed." },
    number(Key::IdleTimeoutMs, "idle_timeout_ms", Reach::Connection, (0, DAY_MS, "ms"), 0,
        "A connection over which nothing was sent for this long, and whose messages are all acknowledged, is closed (EVICTED); the next send to its endpoint dials. 0: never. One whose peer's kernel nobody can ask (ipc, acknowledgement off) is closed only if nothing was ever sent."),
    number(Key::BackoffMs, "backoff_ms", Reach::Manager, (1, DAY_MS, "ms"), 100,
        "The first backoff step after a failed dial, and after one that was given up before it was READY. Each further failure doubles it, up to backoff_max_ms; up to a quarter is added at random, so that many callers do not dial in step."),
    number(Key::BackoffMaxMs, "backoff_max_ms", Reach::Manager, (1, DAY_MS, "ms"), 2000,
        "The longest backoff step."),
    number(Key::MaxEndpoints, "max_endpoints", Reach::Manager, (1, 1_000_000, ""), 4096,
        "How many endpoints may be connected or registered with a node at once. Each connected one costs 5 descriptors (4 with acknowledgement off)."),
    Setting { key: Key::EvictIdle, name: "evict_idle", reach: Reach::Manager, kind: Kind::Flag, default: 0,
        text: "When max_endpoints is reached, the connection that has been idle longest makes room (EVICTED), if there is one that no node owns and whose messages are all acknowledged; else LIMIT." },
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
        text: "What the loss of a node's endpoints does: `report` only raises PEER_LOST; `any` fails the node with the first endpoint lost; `all` when every endpoint that was READY in this life is lost; one whose connection this process has ended or evicted does not count." },
    number(Key::MetricsEndpoints, "metrics_endpoints", Reach::Manager, (0, 10_000, ""), 0,
        "How many endpoints have series of their own in kvconn_metrics_text: the first of those in use, in the order of their texts. 0: only sums."),
    number(Key::MaxDescriptors, "max_descriptors", Reach::Process, (0, 100_000_000, ""), 0,
        "How many file descriptors kvconn may hold, closing ones included. 0: as many as the process's RLIMIT_NOFILE leaves."),
    number(Key::MaxTotalQueuedBytes, "max_total_queued_bytes", Reach::Process, (1, 1 << 50, "bytes"), 2 << 30,
        "How many bytes may be on the way on all connections of the process together. When they are used up, a send is refused at once with KVCONN_LIMIT. Can be changed at any time."),
    number(Key::IoThreads, "io_threads", Reach::Process, (1, 16, ""), 1,
        "libzmq's I/O threads, shared by all connections. One carries about a million small messages a second."),
    none(Key::CurveServerKey, "curve_server_key", Kind::PublicKey,
        "The public key of the peer, which is the server in CURVE's terms. With it the connection is encrypted and the peer proves that it holds the secret key; a peer that cannot, or talks plain, gets nothing. Needs both client keys. The empty text: plain."),
    none(Key::CurvePublicKey, "curve_public_key", Kind::PublicKey,
        "The public key of this client, made together with its secret key by zmq_curve_keypair. A peer may let in only those it knows (ZAP)."),
    none(Key::CurveSecretKey, "curve_secret_key", Kind::Secret,
        "The secret key of this client. Never shown in any text."),
    Setting { key: Key::RequireCurve, name: "require_curve", reach: Reach::Manager, kind: Kind::Flag, default: 0,
        text: "A dial without curve_server_key is INVALID (inside a backoff step, where nothing would be dialled, BACKOFF). Live connections stay as they are." },
    none(Key::SourceAddress, "source_address", Kind::Text { form: "the IPv4 or IPv6 address of an interface, without a port", read: text::source },
        "The address of this host from which TCP is dialled, for a host with several networks. Addresses of a peer that are not of its family are passed over. The empty text: as the kernel routes."),
    none(Key::Interface, "interface", Kind::Text { form: "the name of an interface, 1 to 15 bytes", read: text::interface },
        "The interface TCP is dialled through, whatever the routes say (SO_BINDTODEVICE): its name, such as eth0. The empty text: as the kernel routes."),
];

impl Setting {
    /// Reads a value of this setting. No error repeats what may be a key.
    fn parse(&self, value: &str) -> Result<Value> {
        let invalid = |text: String| Err(Error::invalid(format!("option {}: {text}", self.name)));
        let bad = |expected: &str| invalid(format!("{value:?} is not {expected}"));
        match self.kind {
            Kind::Number { min, max, unit } => match value.parse::<i64>() {
                // Only plain digits, so that one value has one text.
                Ok(n) if (min..=max).contains(&n) && value.bytes().all(|b| b.is_ascii_digit()) => Ok(Value::Number(n)),
                _ => bad(format!("a whole number from {min} to {max} {unit}").trim_end()),
            },
            Kind::Flag => match value {
                "0" | "false" => Ok(Value::Number(0)),
                "1" | "true" => Ok(Value::Number(1)),
                _ => bad("0, 1, false or true"),
            },
            Kind::Word(words) => match words.iter().position(|w| *w == value) {
                Some(place) => Ok(Value::Number(place as i64)),
                None => bad(&format!("one of {}", words.join(", "))),
            },
            Kind::Text { .. } | Kind::PublicKey | Kind::Secret if value.is_empty() => Ok(Value::None),
            Kind::Text { form, read } => match read(value) {
                Some(text) => Ok(Value::Text(text.into())),
                None => bad(form),
            },
            Kind::PublicKey | Kind::Secret => {
                let secret = matches!(self.kind, Kind::Secret);
                match if secret { CurveKey::secret(value) } else { CurveKey::public(value) } {
                    Some(key) => Ok(Value::Key(key.into())),
                    None => invalid(format!(
                        "the {} bytes given are not a CURVE key: 40 characters of Z85, as zmq_curve_keypair makes them",
                        value.len()
                    )),
                }
            }
        }
    }

    fn default_value(&self) -> Value {
        match self.kind {
            Kind::Number { .. } | Kind::Flag | Kind::Word(_) => Value::Number(self.default),
            Kind::Text { .. } | Kind::PublicKey | Kind::Secret => Value::None,
        }
    }

    /// The environment variable that gives its default.
    pub fn variable(&self) -> String {
        format!("KVCONN_{}", self.name.to_ascii_uppercase())
    }
}

/// `docs/options.md`.
pub fn document() -> String {
    let mut out = String::from(
        "# Options\n\nMade from the table in `src/options.rs`; `make bless` renews it. Every value is text, given by\n\
         `kvconn_options_set(options, name, value)`. A setting is looked for in the options of the call, then in what its\n\
         endpoint was last connected or registered with, then in `kvconn_configure`, then in the environment variable\n\
         `KVCONN_<NAME>`, then here. An endpoint remembers each setting for itself, as long as it is connected, registered,\n\
         or among the newest `max_fences` others: options that leave one out do not take it away.\n\n\
         * **connection**: taken by `kvconn_connect` and `kvconn_node_add_endpoints`, and by `kvconn_configure` for all dials to come.\n\
         * **manager**: taken by `kvconn_configure` and `kvconn_manager_create`.\n\
         * **process**: taken by `kvconn_configure` on manager 0 before the first connection; `max_total_queued_bytes` and\n  \
           `max_descriptors` at any time.\n\
         * **call**: taken by `kvconn_connect`.\n\n\
         An endpoint that is forgotten has lost its CURVE keys: where every peer must be encrypted, set `require_curve`, or\n\
         configure the keys for the manager.\n\n\
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
            Kind::Text { form, .. } => (form.into(), "none".into()),
            Kind::PublicKey => ("a public CURVE key in Z85, 40 characters".into(), "none".into()),
            Kind::Secret => ("a secret CURVE key in Z85, 40 characters".into(), "none".into()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{}` | {} | {values} | {default} | {} |", s.name, s.reach.name(), s.text);
    }
    out
}
