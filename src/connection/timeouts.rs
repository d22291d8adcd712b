//! How long the kernel waits for a silent peer.
//!
//! Keepalive applies to an idle connection, the user timeout to one with data in flight. Linux uses one clock for both:
//! if TCP_USER_TIMEOUT is set, unanswered probes end the connection after that time, not after their count. Therefore
//! kvconn sets TCP_USER_TIMEOUT when the connection becomes busy, and when it has been idle for about a second: messages
//! that follow each other closely cost no system call. An idle connection gets keepalive's total time and not 0: a last
//! acknowledgement or a PONG may still be in flight, and the kernel does not probe meanwhile.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::connection::acknowledgement::tcp_info;
use crate::options::{Key, Values};

/// In milliseconds.
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
        // No slack is needed: no probe is sent early, so the time is over when the last probe is due.
        let probed = (idle + interval * count) * 1000;
        PeerTimeouts { idle: if idle == 0 { in_flight } else { probed }, in_flight }
    }

    /// From now on nothing is in flight.
    pub(super) fn while_idle(self, tcp: BorrowedFd<'_>) {
        tcp_info::set_user_timeout(tcp, self.idle);
    }

    /// From now on something is in flight.
    pub(super) fn while_in_flight(self, tcp: BorrowedFd<'_>) {
        tcp_info::set_user_timeout(tcp, self.in_flight);
    }

    /// Whether the kernel can have given up by now, after the peer has been silent for this time. An end before that
    /// time was caused by an answer: the RST of a host that restarted and does not know the connection. If the user
    /// timeout is 0, the kernel alone decides when to give up.
    pub(super) fn can_be_over(self, in_flight: bool, silent: Duration, round_trip: Duration) -> bool {
        let patience = if in_flight { self.in_flight } else { self.idle };
        // The kernel counts from when it sent the lost data; kvconn counts from the last acknowledgement it has seen.
        let slack = Duration::from_millis(150) + 2 * round_trip;
        silent + slack >= Duration::from_millis(patience.unsigned_abs())
    }
}

/// How long data in flight may have been unanswered. Progress was noted so long ago, but up to `late` after it was made. The
/// peer has been silent for a time that may include an idle one.
pub(super) fn longest_unanswered(noted: Duration, silent: Duration, late: Duration) -> Duration {
    noted.max(silent.min(noted + late))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn progress_that_was_noted_late_counts_from_the_peers_last_answer() {
        let ms = Duration::from_millis;
        let cases = [
            ("the network was cut", 1770, 2010, 2010),
            ("idle for a minute, then a message that a restarted host refused", 1, 60_000, 251),
            ("the peer answers that it has no room", 1770, 90, 1770),
        ];
        for (what, noted, silent, expected) in cases {
            assert_eq!(longest_unanswered(ms(noted), ms(silent), ms(250)), ms(expected), "{what}");
        }
    }

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
