//! The one table of metrics: name, text, and the source of each number. `docs/metrics.md` is made from it.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::reading::{EndpointReading, ProcessReading, Reading};
use crate::error::{STATUSES, Status};
use crate::manager::counts::{ByStatus, WaitsRead};

/// The prefix of every name.
pub(super) const PREFIX: &str = "kvconn";

/// The label with the manager's id.
pub(super) const MANAGER: &str = "manager";

/// One row of the table: a family of series.
pub(super) struct Family {
    /// Without prefix, unit and suffix.
    name: &'static str,
    /// One sentence.
    help: &'static str,
    read: Read,
}

/// What a family's numbers describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Manager,
    Endpoint,
    Process,
}

/// Where a family's numbers are in a reading, and their type.
#[derive(Clone, Copy)]
enum Read {
    Counter(fn(&Reading) -> u64),
    Gauge(fn(&Reading) -> u64),
    /// A counter for each of these statuses, and for every other status that was seen.
    ByStatus(fn(&Reading) -> ByStatus, &'static [Status]),
    /// Connections by their state.
    ByState,
    /// A histogram, in seconds.
    Waits(fn(&Reading) -> &WaitsRead),
    EndpointCounter(fn(&EndpointReading) -> u64),
    EndpointGauge(fn(&EndpointReading) -> u64),
    ProcessCounter(fn(&ProcessReading) -> u64),
    ProcessGauge(fn(&ProcessReading) -> u64),
    Build,
}

const fn family(name: &'static str, read: Read, help: &'static str) -> Family {
    Family { name, help, read }
}

/// Every metric.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Family] = &[
    family("dials", Read::Counter(|r| r.past.dials),
        "Dials begun. Each is one connection, however many addresses it tries."),
    family("dials_failed", Read::Counter(|r| r.past.ended.of(Status::ConnectFailed)),
        "Dials that failed: connections that ended with CONNECT_FAILED."),
    family("dials_refused", Read::ByStatus(|r| r.dials_refused, &[Status::Backoff, Status::Disconnected, Status::NodeFailed, Status::Conflict, Status::Limit]),
        "Calls that needed a dial and were refused before it, by status. BACKOFF: the last dial failed a moment ago. DISCONNECTED and NODE_FAILED: the endpoint is fenced."),
    family("connections", Read::ByState,
        "Live connections, by state."),
    family("connections_ended", Read::ByStatus(|r| r.past.ended, &[Status::ConnectFailed, Status::PeerLost, Status::Disconnected, Status::NodeFailed, Status::Evicted]),
        "Ended connections, by the status that says why."),
    family("connections_stalled", Read::Gauge(|r| r.live.stalled),
        "Live connections whose messages in flight made no progress for stall_ms."),
    family("stalls", Read::Counter(|r| r.stalls),
        "Stalls of connections. Counts STALLED events, lost ones included."),
    family("messages_accepted", Read::Counter(|r| r.past.accepted + r.live.accepted),
        "Messages accepted. Each of them is acknowledged, unacknowledged, in flight, or unknown."),
    family("messages_acknowledged", Read::Counter(|r| r.past.acknowledged + r.live.acknowledged),
        "Messages that the peer's kernel has acknowledged to the last byte."),
    family("messages_unacknowledged", Read::Counter(|r| r.past.unacknowledged),
        "Messages that were not acknowledged when their connection ended. They can be sent again."),
    family("messages_unknown", Read::Counter(|r| r.past.unknown + r.live.unknown),
        "Messages accepted on connections whose acknowledgements are unknown, such as ipc."),
    family("messages_in_flight", Read::Gauge(|r| r.live.in_flight),
        "Messages accepted by live connections and not acknowledged yet."),
    family("queued_bytes", Read::Gauge(|r| r.live.queued_bytes),
        "Bytes on the wire in flight: accepted and not acknowledged (if acknowledgements are unknown: held by libzmq). max_queued_bytes limits them for each connection."),
    family("sends_refused", Read::ByStatus(|r| r.sends_refused, &[Status::Timeout, Status::Stalled, Status::Backoff, Status::ConnectFailed, Status::PeerLost, Status::Disconnected, Status::NodeFailed, Status::Limit]),
        "Sends that were not accepted, by status."),
    family("send_blocked", Read::Waits(|r| &r.waits),
        "How long sends waited for READY or for room, accepted or not. A send that does not wait is not counted."),
    family("send_waiting", Read::Gauge(|r| r.live.waiting),
        "Threads that wait in a send now."),
    family("wakeups_rescued", Read::Counter(|r| r.past.rescues + r.live.rescues),
        "Lost wake-ups of waiting sends that the safety net found. More than 0 is a defect."),
    family("endpoints_in_use", Read::Gauge(|r| r.endpoints_in_use),
        "Endpoints that are connected or registered with a node. max_endpoints limits them."),
    family("endpoints_known", Read::Gauge(|r| r.endpoints_known),
        "Endpoints that are remembered, including those in use."),
    family("endpoints_fenced", Read::Gauge(|r| r.endpoints_fenced),
        "Fenced endpoints."),
    family("nodes", Read::Gauge(|r| r.nodes),
        "Live nodes."),
    family("nodes_failed", Read::Counter(|r| r.past.nodes_failed),
        "Lives of nodes that have failed, for any reason."),
    family("requests_in_flight", Read::Gauge(|r| r.requests),
        "Requests tracked on live nodes."),
    family("requests_failed", Read::Counter(|r| r.past.requests_failed),
        "Requests that were in flight on a node when it failed."),
    family("failure_reports_waiting", Read::Gauge(|r| r.failure_reports),
        "Failure reports that wait for kvconn_take_failure."),
    family("events_waiting", Read::Gauge(|r| r.events_waiting),
        "Events that wait for kvconn_next_event."),
    family("events_lost", Read::Counter(|r| r.events_lost),
        "Events lost because max_events events were waiting."),
    family("endpoint_messages_accepted", Read::EndpointCounter(|e| e.accepted),
        "Messages accepted for the endpoint by all its connections, since it is known."),
    family("endpoint_messages_acknowledged", Read::EndpointCounter(|e| e.acknowledged),
        "How many of them were acknowledged."),
    family("endpoint_state", Read::EndpointGauge(|e| e.state),
        "State of its connection: 0 none, 1 CONNECTING, 2 READY."),
    family("endpoint_waiting", Read::EndpointGauge(|e| e.waiting),
        "Threads that wait in a send to it now."),
    family("endpoint_stalled", Read::EndpointGauge(|e| e.stalled),
        "1 if its connection has stalled, else 0."),
    family("descriptors_in_use", Read::ProcessGauge(|p| p.descriptors_in_use),
        "File descriptors reserved for connections of all managers, including those that are being closed."),
    family("descriptors_limit", Read::ProcessGauge(|p| p.descriptors_limit),
        "How many file descriptors kvconn may hold: max_descriptors, else the process's limit, which it shares with the rest of the process."),
    family("queued_bytes_reserved", Read::ProcessGauge(|p| p.queued_bytes_reserved),
        "Bytes of max_total_queued_bytes that the connections of all managers have reserved, in steps of 16 KiB."),
    family("queued_bytes_limit", Read::ProcessGauge(|p| p.queued_bytes_limit),
        "The option max_total_queued_bytes."),
    family("managers", Read::ProcessGauge(|p| p.managers),
        "Managers, including the process's own."),
    family("log_dropped_lines", Read::ProcessCounter(|p| p.log_dropped_lines),
        "Lines of the log that were dropped because the log function, or the file, was too slow."),
    family("log_failures", Read::ProcessCounter(|p| p.log_failures),
        "How often the log of KVCONN_LOG could not be started, reopened or written."),
    family("build", Read::Build,
        "The versions of kvconn and of libzmq."),
];

impl Family {
    pub(super) fn about(&self) -> About {
        match self.read {
            Read::Counter(_) | Read::Gauge(_) | Read::ByStatus(..) | Read::ByState | Read::Waits(_) => About::Manager,
            Read::EndpointCounter(_) | Read::EndpointGauge(_) => About::Endpoint,
            Read::ProcessCounter(_) | Read::ProcessGauge(_) | Read::Build => About::Process,
        }
    }

    fn kind(&self) -> MetricType {
        match self.read {
            Read::Counter(_) | Read::ByStatus(..) | Read::EndpointCounter(_) | Read::ProcessCounter(_) => {
                MetricType::Counter
            }
            Read::Gauge(_) | Read::ByState | Read::EndpointGauge(_) | Read::ProcessGauge(_) => MetricType::Gauge,
            Read::Waits(_) => MetricType::Histogram,
            Read::Build => MetricType::Info,
        }
    }

    fn unit(&self) -> Option<Unit> {
        matches!(self.read, Read::Waits(_)).then_some(Unit::Seconds)
    }

    /// The labels of its series.
    fn labels(&self) -> &'static [&'static str] {
        match self.read {
            Read::Counter(_) | Read::Gauge(_) | Read::Waits(_) => &[MANAGER],
            Read::ByStatus(..) => &[MANAGER, "status"],
            Read::ByState => &[MANAGER, "state"],
            Read::EndpointCounter(_) | Read::EndpointGauge(_) => &[MANAGER, "endpoint"],
            Read::ProcessCounter(_) | Read::ProcessGauge(_) => &[],
            Read::Build => &["version", "libzmq"],
        }
    }

    /// Writes its series, if there are any.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>, reading: &Reading) -> fmt::Result {
        if self.about() == About::Endpoint && reading.endpoints.is_empty() {
            return Ok(());
        }
        let unit = self.unit();
        let mut metric = encoder.encode_descriptor(self.name, self.help, unit.as_ref(), self.kind())?;
        match self.read {
            Read::Counter(read) => counter(&mut metric, read(reading)),
            Read::Gauge(read) => metric.encode_gauge(&read(reading)),
            Read::ByStatus(read, always) => {
                let counts = read(reading);
                let shown = |status: &Status| always.contains(status) || counts.of(*status) > 0;
                STATUSES.iter().map(|row| row.status).filter(shown).try_for_each(|status| {
                    let label = [("status", short_name(status))];
                    counter(&mut metric.encode_family(&label)?, counts.of(status))
                })
            }
            Read::ByState => {
                let states = [("CONNECTING", reading.live.connecting), ("READY", reading.live.ready)];
                states
                    .iter()
                    .try_for_each(|(state, count)| metric.encode_family(&[("state", *state)])?.encode_gauge(count))
            }
            Read::Waits(read) => {
                let waits = read(reading);
                metric.encode_histogram::<NoLabelSet>(waits.sum, waits.count(), &waits.classes, None)
            }
            Read::EndpointCounter(read) => reading.endpoints.iter().try_for_each(|endpoint| {
                counter(&mut metric.encode_family(&[("endpoint", endpoint.endpoint.as_str())])?, read(endpoint))
            }),
            Read::EndpointGauge(read) => reading.endpoints.iter().try_for_each(|endpoint| {
                metric.encode_family(&[("endpoint", endpoint.endpoint.as_str())])?.encode_gauge(&read(endpoint))
            }),
            Read::ProcessCounter(read) => match &reading.process {
                Some(process) => counter(&mut metric, read(process)),
                None => Ok(()),
            },
            Read::ProcessGauge(read) => match &reading.process {
                Some(process) => metric.encode_gauge(&read(process)),
                None => Ok(()),
            },
            Read::Build => {
                let (major, minor, patch) = zmq::version();
                let libzmq = format!("{major}.{minor}.{patch}");
                metric.encode_info(&[("version", env!("CARGO_PKG_VERSION")), ("libzmq", &libzmq)])
            }
        }
    }

    /// The name of its series in the text.
    fn full_name(&self) -> String {
        let unit = self.unit().map_or(String::new(), |unit| format!("_{}", unit.as_str()));
        let suffix = match self.kind() {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            _ => "",
        };
        format!("{PREFIX}_{}{unit}{suffix}", self.name)
    }
}

fn counter(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

/// A status as a label: without the C prefix.
fn short_name(status: Status) -> &'static str {
    status.name().trim_start_matches("KVCONN_")
}

/// `docs/metrics.md`.
pub fn document() -> String {
    let mut out = String::from(
        "# Metrics\n\nMade from the table in `src/observe/metrics/families.rs` by `make bless`. `kvconn_metrics_text(m, …)` writes the metrics of one\n\
         manager in OpenMetrics text 1.0.0. Serve it as `application/openmetrics-text; version=1.0.0; charset=utf-8`.\n\n\
         * Counters only grow while the manager lives. Each text is consistent, even while connections end: accepted =\n\
         \u{20}\u{20}acknowledged + unacknowledged + in flight + unknown, and dials = live + ended.\n\
         * The label `manager` is the manager's id. Metrics of the process have no such label, and are in the text of manager 0\n\
         \u{20}\u{20}only.\n\
         * Counting costs nothing for a send that does not wait. A text costs its caller some microseconds for each live\n\
         \u{20}\u{20}connection. It delays other calls only while it copies the list of endpoints.\n",
    );
    let chapters = [
        (About::Manager, "Of a manager", ""),
        (
            About::Endpoint,
            "Of an endpoint",
            "Off by default. The option `metrics_endpoints` says how many endpoints in use have their own series: the first ones, in\n\
             the order of their texts. A series begins anew if its endpoint was forgotten in between.\n\n",
        ),
        (About::Process, "Of the process", "In the text of manager 0 only.\n\n"),
    ];
    // Writing to a String cannot fail.
    for (about, title, text) in chapters {
        let _ = write!(out, "\n## {title}\n\n{text}| name | type | labels | meaning |\n| --- | --- | --- | --- |\n");
        for family in FAMILIES.iter().filter(|family| family.about() == about) {
            let labels: Vec<_> = family.labels().iter().map(|label| format!("`{label}`")).collect();
            let kind = family.kind();
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} |",
                family.full_name(),
                kind.as_str(),
                labels.join(", "),
                family.help
            );
        }
    }
    out
}
