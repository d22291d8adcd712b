//! The one table of metrics: name, text, and where each number comes from. `docs/metrics.md` is made from it.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::counts::{ByStatus, WaitsRead};
use super::reading::{EndpointReading, ProcessReading, Reading};
use crate::error::{STATUSES, Status};

/// Before every name.
pub(super) const PREFIX: &str = "kvconn";

/// The label that says whose numbers they are.
pub(super) const MANAGER: &str = "manager";

/// One row of the table: a family of series.
pub(super) struct Family {
    /// Without prefix, unit and suffix.
    name: &'static str,
    /// One sentence.
    help: &'static str,
    read: Read,
}

/// Whose numbers a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Manager,
    Endpoint,
    Process,
}

/// Where a family's numbers are in a reading, which also says what they are.
#[derive(Clone, Copy)]
enum Read {
    Counter(fn(&Reading) -> u64),
    Gauge(fn(&Reading) -> u64),
    /// A counter for each of these statuses, and for every other that was seen.
    ByStatus(fn(&Reading) -> ByStatus, &'static [Status]),
    /// Connections by their state.
    ByState,
    /// A histogram, in seconds.
    Waits(fn(&Reading) -> &WaitsRead),
    EndpointCounter(fn(&EndpointReading) -> u64),
    EndpointGauge(fn(&EndpointReading) -> u64),
    ProcessGauge(fn(&ProcessReading) -> u64),
    Build,
}

const fn family(name: &'static str, read: Read, help: &'static str) -> Family {
    Family { name, help, read }
}

/// Every metric there is.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Family] = &[
    family("dials", Read::Counter(|r| r.past.dials),
        "Dials begun. Each is one connection, whatever number of addresses it tries."),
    family("dials_failed", Read::Counter(|r| r.past.ended.of(Status::ConnectFailed)),
        "Dials that failed; the connections that ended with CONNECT_FAILED."),
    family("dials_refused", Read::ByStatus(|r| r.dials_refused, &[Status::Backoff, Status::Disconnected, Status::NodeFailed, Status::Conflict, Status::Limit]),
        "Calls that wanted a connection and were refused before a dial, by the status they got. BACKOFF: the last dial failed a moment ago. DISCONNECTED and NODE_FAILED: the endpoint is fenced."),
    family("connections", Read::ByState,
        "Live connections, by their state."),
    family("connections_ended", Read::ByStatus(|r| r.past.ended, &[Status::ConnectFailed, Status::PeerLost, Status::Disconnected, Status::NodeFailed, Status::Evicted]),
        "Connections that have ended, by the status that says why."),
    family("connections_stalled", Read::Gauge(|r| r.live.stalled),
        "Live connections on which nothing of what is on the way has moved for stall_ms."),
    family("stalls", Read::Counter(|r| r.stalls),
        "How often a connection has stalled (events STALLED, lost ones included)."),
    family("messages_accepted", Read::Counter(|r| r.past.accepted + r.live.accepted),
        "Messages accepted. Each of them is acknowledged, unacknowledged, on the way, or of unknown outcome."),
    family("messages_acknowledged", Read::Counter(|r| r.past.acknowledged + r.live.acknowledged),
        "Messages whose every byte the peer's kernel has acknowledged."),
    family("messages_unacknowledged", Read::Counter(|r| r.past.unacknowledged),
        "Messages that were not acknowledged when their connection ended: they can be sent again."),
    family("messages_unknown", Read::Counter(|r| r.past.unknown + r.live.unknown),
        "Messages accepted where nobody can tell what is acknowledged, as on ipc endpoints."),
    family("messages_in_flight", Read::Gauge(|r| r.live.on_the_way),
        "Messages accepted by live connections and not acknowledged yet."),
    family("queued_bytes", Read::Gauge(|r| r.live.queued_bytes),
        "Bytes on the wire that are on the way: accepted, and not acknowledged (where nobody can tell: held by libzmq). Each connection is limited by max_queued_bytes."),
    family("sends_refused", Read::ByStatus(|r| r.sends_refused, &[Status::Timeout, Status::Stalled, Status::Backoff, Status::ConnectFailed, Status::PeerLost, Status::Disconnected, Status::NodeFailed, Status::Limit]),
        "Sends to a connection or an endpoint that were not accepted, by the status they got."),
    family("send_blocked", Read::Waits(|r| &r.waits),
        "How long sends waited for READY or for room, whether they were accepted in the end or not. A send that need not wait is not counted."),
    family("send_waiting", Read::Gauge(|r| r.live.waiting),
        "Threads that wait in a send now."),
    family("wakeups_rescued", Read::Counter(|r| r.past.rescues + r.live.rescues),
        "Wake-ups of waiting sends that were lost and found by the safety net; more than 0 is a defect."),
    family("endpoints_in_use", Read::Gauge(|r| r.endpoints_in_use),
        "Endpoints that are connected or registered with a node; limited by max_endpoints."),
    family("endpoints_known", Read::Gauge(|r| r.endpoints_known),
        "Endpoints of which something is remembered, those in use included."),
    family("endpoints_fenced", Read::Gauge(|r| r.endpoints_fenced),
        "Endpoints that are fenced."),
    family("nodes", Read::Gauge(|r| r.nodes),
        "Live nodes."),
    family("nodes_failed", Read::Counter(|r| r.past.nodes_failed),
        "Lives of nodes that have failed, for whatever reason."),
    family("requests_in_flight", Read::Gauge(|r| r.requests),
        "Requests tracked on live nodes."),
    family("requests_failed", Read::Counter(|r| r.past.requests_failed),
        "Requests that were in flight on a node when it failed."),
    family("failure_reports_waiting", Read::Gauge(|r| r.failure_reports),
        "Failure reports that wait for kvconn_take_failure."),
    family("events_waiting", Read::Gauge(|r| r.events_waiting),
        "Events that wait for kvconn_next_event."),
    family("events_lost", Read::Counter(|r| r.events_lost),
        "Events that were lost because max_events waited already."),
    family("endpoint_messages_accepted", Read::EndpointCounter(|e| e.accepted),
        "Messages accepted for the endpoint, by all of its connections for as long as it has been known."),
    family("endpoint_messages_acknowledged", Read::EndpointCounter(|e| e.acknowledged),
        "Those of them that were acknowledged."),
    family("endpoint_state", Read::EndpointGauge(|e| e.state),
        "Its connection's state: 0 none, 1 CONNECTING, 2 READY."),
    family("endpoint_waiting", Read::EndpointGauge(|e| e.waiting),
        "Threads that wait in a send to it now."),
    family("endpoint_stalled", Read::EndpointGauge(|e| e.stalled),
        "Whether its connection has stalled, 0 or 1."),
    family("descriptors_in_use", Read::ProcessGauge(|p| p.descriptors_in_use),
        "File descriptors set aside for connections of all managers, closing ones included."),
    family("descriptors_limit", Read::ProcessGauge(|p| p.descriptors_limit),
        "How many file descriptors kvconn may hold: max_descriptors, or else the process's limit, which it shares with everything else."),
    family("queued_bytes_reserved", Read::ProcessGauge(|p| p.queued_bytes_reserved),
        "Bytes of max_total_queued_bytes that the connections of all managers have taken, in steps of 16 KiB."),
    family("queued_bytes_limit", Read::ProcessGauge(|p| p.queued_bytes_limit),
        "max_total_queued_bytes."),
    family("managers", Read::ProcessGauge(|p| p.managers),
        "Managers, the process's own included."),
    family("build", Read::Build,
        "Which kvconn and which libzmq this is."),
];

impl Family {
    pub(super) fn about(&self) -> About {
        match self.read {
            Read::Counter(_) | Read::Gauge(_) | Read::ByStatus(..) | Read::ByState | Read::Waits(_) => About::Manager,
            Read::EndpointCounter(_) | Read::EndpointGauge(_) => About::Endpoint,
            Read::ProcessGauge(_) | Read::Build => About::Process,
        }
    }

    fn kind(&self) -> MetricType {
        match self.read {
            Read::Counter(_) | Read::ByStatus(..) | Read::EndpointCounter(_) => MetricType::Counter,
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
            Read::ProcessGauge(_) => &[],
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

    /// The name of its series, as they stand in the text.
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
        "# Metrics\n\nMade from the table in `src/metrics/families.rs`; `make bless` renews it. `kvconn_metrics_text(m, …)` writes those of one\n\
         manager, in OpenMetrics text 1.0.0, to be served as `application/openmetrics-text; version=1.0.0; charset=utf-8`.\n\n\
         * Counters only grow, for as long as the manager lives. What is counted by the text is counted once, also while\n\
         \u{20}\u{20}connections end: accepted = acknowledged + unacknowledged + on the way + unknown, and dials = live + ended, in every text.\n\
         * The label `manager` is the manager's id. What the process has one of has no such label, and is in the text of\n\
         \u{20}\u{20}manager 0 only.\n\
         * Counting costs a send that gets through at once nothing. A text costs the caller some microseconds for each live\n\
         \u{20}\u{20}connection, and holds up nobody else for longer than a look at the list of endpoints.\n",
    );
    let chapters = [
        (About::Manager, "Of a manager", ""),
        (
            About::Endpoint,
            "Of an endpoint",
            "Off, unless option `metrics_endpoints` says how many endpoints in use may have series of their own: the first ones, in the\n\
             order of their texts. A series begins anew when its endpoint was forgotten meanwhile.\n\n",
        ),
        (About::Process, "Of the process", "In the text of manager 0 only.\n\n"),
    ];
    // Writing to a String cannot fail.
    for (about, title, text) in chapters {
        let _ = write!(out, "\n## {title}\n\n{text}| name | type | labels | |\n| --- | --- | --- | --- |\n");
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
