//! The kernel's count of TCP traffic in this network: nothing is missing in it, not even a dial that is refused. Of use
//! only in a network of one's own (`OwnProcess::network`).

/// Totals of the network namespace of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTraffic {
    /// Dials: connections that left CLOSED for SYN-SENT.
    pub dials: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Segments sent, those of listeners too, without retransmissions.
    pub segments: u64,
}

/// The totals now.
#[track_caller]
pub fn tcp_traffic() -> TcpTraffic {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("reading the network's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let value_of = |wanted: &str| -> u64 {
        let place = names.split(' ').position(|name| name == wanted).expect("a counter of that name");
        values.split(' ').nth(place).and_then(|value| value.parse().ok()).expect("its value")
    };
    TcpTraffic { dials: value_of("ActiveOpens"), refused: value_of("AttemptFails"), segments: value_of("OutSegs") }
}
