//! The one table of settings: name, scope, unit, range, default and text.
//!
//! A value is found in this order: the options of the call, what its endpoint remembers of former calls, what
//! `kvconn_configure` set for the manager, the environment variable `KVCONN_<NAME>`, the default.
//! `docs/options.md` is made from the table.

mod curve;
mod sources;
#[cfg(test)]
mod tests;
mod text;
mod values;

use std::fmt::Write as _;

use crate::error::{Error, Result};

pub use curve::CurveKey;
pub use sources::Source;
pub(crate) use sources::unknown_variables;
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

/// The values that a setting takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range, counted in a unit ("ms", "s", "" for a plain count).
    #[allow(missing_docs)]
    Number { min: i64, max: i64, unit: &'static str },
    /// 0 or 1; also `false` and `true`.
    Flag,
    /// One of these words. The value is its index.
    Word(&'static [&'static str]),
    /// A text of some form, or the empty text for none. `read` returns its canonical form, or refuses it.
    #[allow(missing_docs)]
    Text { form: &'static str, read: fn(&str) -> Option<String> },
    /// A public CURVE key, in Z85, or the empty text for none.
    PublicKey,
    /// A secret CURVE key, in Z85, or the empty text for none.
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
    /// The default of a setting with numbers or words. All others have none by default.
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

/// The longest time of a setting: a day. A caller that wants to wait longer calls again.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// Every setting.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    number(Key::SendTimeoutMs, "send_timeout_ms", Reach::Manager, (0, DAY_MS, "ms"), 1000,
        "The meaning of KVCONN_DEFAULT_TIMEOUT for a send. It is short because a scheduler thread waits here."),
    number(Key::ConnectTimeoutMs, "connect_timeout_ms", Reach::Connection, (1, DAY_MS, "ms"), 3000,
        "The longest time of one dial until TCP is connected. It includes name resolution and all addresses of the name. Each address but the last must also finish its handshake within its share of this time."),
    number(Key::HandshakeTimeoutMs, "handshake_timeout_ms", Reach::Connection, (1, DAY_MS, "ms"), 3000,
        "The longest time of the ZMTP handshake after TCP is connected. A peer that says nothing fails here; a peer that speaks another protocol is recognised by its first bytes."),
    Setting { key: Key::ConnectRetry, name: "connect_retry", reach: Reach::Call, kind: Kind::Flag, default: 0,
        text: "kvconn_connect and kvconn_node_connect dial again after each backoff step until the peer is READY or wait_ms is over. Without it, they fail with the first dial. For start-up." },
    number(Key::KeepaliveIdleS, "keepalive_idle_s", Reach::Connection, (0, 32767, "s"), 30,
        "TCP_KEEPIDLE: how long a connection is idle before the kernel probes the peer. 0 turns keepalive off. The loss of an idle peer is found after idle + interval × count (45 s by default)."),
    number(Key::KeepaliveIntervalS, "keepalive_interval_s", Reach::Connection, (1, 32767, "s"), 5,
        "TCP_KEEPINTVL: the time between two probes."),
    number(Key::KeepaliveCount, "keepalive_count", Reach::Connection, (1, 127, ""), 3,
        "TCP_KEEPCNT: after this many unanswered probes the peer is lost."),
    number(Key::UserTimeoutMs, "user_timeout_ms", Reach::Connection, (0, DAY_MS, "ms"), 120_000,
        "TCP_USER_TIMEOUT: how long sent data may stay unacknowledged before the peer is lost. Keepalive does not run while data is in flight; without this option the loss of such a peer takes 940 s. The time also runs while a live peer's window is zero: set it longer than the longest stall you tolerate. 0 leaves it to the kernel."),
    number(Key::SendHwm, "send_hwm", Reach::Connection, (1, 10_000_000, "messages"), 1000,
        "How many messages libzmq queues for one connection. A full queue takes messages again after half of it has left."),
    number(Key::MaxQueuedBytes, "max_queued_bytes", Reach::Connection, (1, 1 << 50, "bytes"), 256 << 20,
        "The largest number of bytes in flight on one connection: accepted, but not acknowledged by the peer's kernel (ipc and acknowledgement=off: still held by libzmq). These are bytes on the wire; libzmq needs about 104 bytes more in memory for each frame. At the limit the connection is full. A larger single message is accepted when nothing else is in flight."),
    number(Key::StallMs, "stall_ms", Reach::Connection, (1, DAY_MS, "ms"), 1000,
        "If messages are in flight and no byte was acknowledged for this long (ipc and acknowledgement=off: freed by libzmq), the event STALLED is raised."),
    Setting { key: Key::Acknowledgement, name: "acknowledgement", reach: Reach::Connection, kind: Kind::Word(&["off", "on"]), default: 1,
        text: "Whether kvconn counts what the peer's kernel has acknowledged (TCP). `off` saves a descriptor for each connection. What arrived is then unknown: counts are KVCONN_UNKNOWN, and kvconn_flush returns KVCONN_UNSUPPORTED. With `off`, the loss of a peer that wrongly sends data to this PUSH socket is not noticed." },
    number(Key::IdleTimeoutMs, "idle_timeout_ms", Reach::Connection, (0, DAY_MS, "ms"), 0,
        "Closes a connection (EVICTED) if nothing was sent on it for this long and all its messages are acknowledged. The next send to its endpoint dials. 0: never. If acknowledgements are unknown (ipc, acknowledgement=off), it is closed only if nothing was ever sent."),
    number(Key::BackoffMs, "backoff_ms", Reach::Manager, (1, DAY_MS, "ms"), 100,
        "The first backoff step, after a dial that failed or was given up before READY. Each further failure doubles the step, up to backoff_max_ms. Up to a quarter is added at random, so that many callers do not dial at the same time."),
    number(Key::BackoffMaxMs, "backoff_max_ms", Reach::Manager, (1, DAY_MS, "ms"), 2000,
        "The longest backoff step."),
    number(Key::MaxEndpoints, "max_endpoints", Reach::Manager, (1, 1_000_000, ""), 4096,
        "How many endpoints may be connected or registered with a node at the same time. A connected one needs 3 descriptors (2 with acknowledgement=off)."),
    Setting { key: Key::EvictIdle, name: "evict_idle", reach: Reach::Manager, kind: Kind::Flag, default: 0,
        text: "When max_endpoints is reached, closes the connection that was idle longest (EVICTED). It must have no node, and all its messages must be acknowledged. If there is none, the call returns KVCONN_LIMIT." },
    number(Key::MaxNodes, "max_nodes", Reach::Manager, (1, 1_000_000, ""), 4096,
        "How many nodes may be live, plus failure reports that were not taken."),
    number(Key::MaxRequests, "max_requests", Reach::Manager, (1, 100_000_000, ""), 1_000_000,
        "How many requests may be tracked, plus those in failure reports that were not taken. Each needs a little more than 8 bytes."),
    number(Key::MaxFences, "max_fences", Reach::Manager, (1, 1_000_000, ""), 16_384,
        "How many endpoints are remembered that are neither connected nor registered: this many fenced ones, and this many others. The oldest are forgotten."),
    number(Key::MaxEvents, "max_events", Reach::Manager, (2, 1_000_000, ""), 4096,
        "How many events wait for kvconn_next_event, besides the endings of connections. Further events are counted and reported by OVERFLOW. Endings have places of their own: only a connection that begins while max_events endings are unread has none. Each event needs at most about 1 KiB."),
    number(Key::MaxFailures, "max_failures", Reach::Manager, (1, 1_000_000, ""), 2,
        "How many unhealthy reports in a row fail a node."),
    Setting { key: Key::NodeLoss, name: "node_loss", reach: Reach::Manager, kind: Kind::Word(&["report", "any", "all"]), default: 0,
        text: "What happens to a node that loses endpoints. `report`: only PEER_LOST is raised. `any`: the first lost endpoint fails the node. `all`: the node fails when it has lost every endpoint that was READY in this life. A connection that this process ended or evicted does not count as lost." },
    number(Key::MetricsEndpoints, "metrics_endpoints", Reach::Manager, (0, 10_000, ""), 0,
        "How many endpoints have their own series in kvconn_metrics_text: the first ones in use, in the order of their texts. 0: only sums."),
    number(Key::MaxDescriptors, "max_descriptors", Reach::Process, (0, 100_000_000, ""), 0,
        "How many file descriptors kvconn's connections may hold, including those that are being closed. 0: as many as the process's RLIMIT_NOFILE allows. What the rest of the process has open is not counted. With 0 a dial only checks that some are free at that moment, so it can still fail with EMFILE. To leave room, set RLIMIT_NOFILE minus what the rest of the process needs, minus 32 for kvconn's own threads and files (docs/limits.md)."),
    number(Key::MaxTotalQueuedBytes, "max_total_queued_bytes", Reach::Process, (1, 1 << 50, "bytes"), 2 << 30,
        "The largest number of bytes in flight on all connections of the process together. At the limit a send returns KVCONN_LIMIT at once. Can be changed at any time."),
    number(Key::IoThreads, "io_threads", Reach::Process, (1, 16, ""), 1,
        "The number of libzmq's I/O threads, shared by all connections. One thread handles about a million small messages a second."),
    none(Key::CurveServerKey, "curve_server_key", Kind::PublicKey,
        "The public key of the peer, which is the server in CURVE's terms. It encrypts the connection, and the peer must prove that it holds the secret key; a peer that cannot, or talks plain, gets nothing. Needs both client keys. The empty text: plain."),
    none(Key::CurvePublicKey, "curve_public_key", Kind::PublicKey,
        "The public key of this client, made together with its secret key by zmq_curve_keypair. A peer may accept only the keys that it knows (ZAP)."),
    none(Key::CurveSecretKey, "curve_secret_key", Kind::Secret,
        "The secret key of this client. No text ever shows it."),
    Setting { key: Key::RequireCurve, name: "require_curve", reach: Reach::Manager, kind: Kind::Flag, default: 0,
        text: "A dial without curve_server_key returns KVCONN_INVALID (inside a backoff step, which does not dial: KVCONN_BACKOFF). Does not change live connections." },
    none(Key::SourceAddress, "source_address", Kind::Text { form: "the IPv4 or IPv6 address of an interface, without a port", read: text::source },
        "The address of this host from which TCP is dialled, for a host with several networks. Addresses of the peer from another family are skipped. The empty text: the kernel chooses."),
    none(Key::Interface, "interface", Kind::Text { form: "the name of an interface, 1 to 15 bytes", read: text::interface },
        "The interface through which TCP is dialled, whatever the routes say (SO_BINDTODEVICE), such as eth0. The empty text: the kernel chooses."),
];

impl Setting {
    /// Parses a value of this setting. Errors do not repeat the text of a key.
    fn parse(&self, value: &str) -> Result<Value> {
        let invalid = |text: String| Err(Error::invalid(format!("option {}: {text}", self.name)));
        let bad = |expected: &str| invalid(format!("{value:?} is not {expected}"));
        match self.kind {
            Kind::Number { min, max, unit } => match value.parse::<i64>() {
                // Only plain digits, so that a value has one text.
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
        "# Options\n\nMade from the table of settings in `src/options` by `make bless`. Every value is a text:\n\
         `kvconn_options_set(options, name, value)`. kvconn takes the first value that it finds, in this order:\n\n\
         1. the options of the call,\n\
         2. what the endpoint remembers from its last connect or registration, for each setting separately,\n\
         3. what `kvconn_configure` set for the manager,\n\
         4. the environment variable `KVCONN_<NAME>`,\n\
         5. the default in this table.\n\n\
         An endpoint remembers its settings while it is connected or registered, and afterwards while it is among the newest\n\
         `max_fences` others. A forgotten endpoint has lost its CURVE keys. If every peer must be encrypted, set `require_curve`, or\n\
         configure the keys for the manager.\n\n\
         The column \"acts on\" says which calls take a setting:\n\n\
         * **connection**: `kvconn_connect`, `kvconn_node_connect`, `kvconn_node_add_endpoints`, `kvconn_node_set_endpoints`, and\n  \
           `kvconn_configure` for all later dials.\n\
         * **manager**: `kvconn_configure` and `kvconn_manager_create`.\n\
         * **process**: `kvconn_configure` on manager 0 before the first connection. `max_total_queued_bytes` and\n  \
           `max_descriptors` can be changed at any time.\n\
         * **call**: `kvconn_connect` and `kvconn_node_connect`.\n\n\
         | name | acts on | values | default | meaning |\n| --- | --- | --- | --- | --- |\n",
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
