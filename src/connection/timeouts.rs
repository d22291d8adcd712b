//! How long a peer that says nothing is given.
//!
//! Keepalive is for an idle connection, the user timeout for one with data in flight. Linux keeps one clock for both: where
//! TCP_USER_TIMEOUT is set, unanswered probes end the connection after that time, and not after their count. So the
//! kernel is told which of the two holds whenever that changes. An idle connection has keepalive's time and not none,
//! for a last acknowledgement or a PONG may be on its way, and while anything is, the kernel does not probe.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::connection::acknowledgement::tcp_info;
use crate::options::{Key, Values};

/// Milliseconds for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerTimeouts {
    idle: i64,
    in_flight: i64,
}

impl PeerTimeouts {
    pub(super) fn new(values: &Values) -> PeerTimeouts {
        let in_flight = values.get(Key::UserTimeoutMs);
        let [idle, interval, count] =
            [Key::KeepaliveIdleS, Key::KeepaliveIntervalS, Key::KeepaliveCount].map(|key| values.get(key));
        // Exactly that, for no probe is sent too early: at the last one's time it is over.
        let probed = (idle + interval * count) * 1000;
        PeerTimeouts { idle: if idle == 0 { in_flight } else { probed }, in_flight }
    }

    /// From now on nothing is on the way.
    pub(super) fn while_idle(self, tcp: BorrowedFd<'_>) {
        tcp_info::set_user_timeout(tcp, self.idle);
    }

    /// From now on something is.
    pub(super) fn while_in_flight(self, tcp: BorrowedFd<'_>) {
        tcp_info::set_user_timeout(tcp, self.in_flight);
    }

    /// Whether the kernel can have given up by now, when the peer has been silent for so long: what ends a connection
    /// before that is an answer, the RST of a host that is back and knows nothing of it. Where the user timeout is 0,
    /// only the kernel knows.
    pub(super) fn can_be_over(self, in_flight: bool, silent: Duration, round_trip: Duration) -> bool {
        let patience = if in_flight { self.in_flight } else { self.idle };
        // The kernel counts from when it sent what was lost, we from when something was last seen to be acknowledged.
        let slack = Duration::from_millis(150) + 2 * round_trip;
        silent + slack >= Duration::from_millis(patience.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn timeouts(settings: &[(&str, &str)]) -> PeerTimeouts {
        let mut options = Options::default();
        for (name, value) in settings {
            options.set(name, value).unwrap();
        }
        PeerTimeouts::new(&Values::defaults().with(&options).unwrap())
    }

    #[test]
    fn keepalives_time_is_what_its_probes_take() {
        assert_eq!(timeouts(&[]), PeerTimeouts { idle: 45_000, in_flight: 120_000 });
        let longest =
            timeouts(&[("keepalive_idle_s", "32767"), ("keepalive_interval_s", "32767"), ("keepalive_count", "127")]);
        assert_eq!(longest.idle, 32_767 * 128 * 1000);
        let off = timeouts(&[("keepalive_idle_s", "0"), ("user_timeout_ms", "7000")]);
        assert_eq!(off, PeerTimeouts { idle: 7000, in_flight: 7000 });
    }

    #[test]
    fn the_kernel_does_not_give_up_before_its_time() {
        let timeouts = timeouts(&[("user_timeout_ms", "2000")]);
        let s = Duration::from_secs;
        let rtt = Duration::from_millis(20);
        let cases = [(true, s(1)), (true, s(2)), (false, s(2)), (false, s(44)), (false, s(45))];
        let can = cases.map(|(in_flight, silent)| timeouts.can_be_over(in_flight, silent, rtt));
        assert_eq!(can, [false, true, false, false, true]);
    }
}
