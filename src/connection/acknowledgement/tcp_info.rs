//! What the kernel knows about a TCP connection, and how much patience it is to have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::connection::acknowledgement::ledger::Counters;
use crate::delivery::EndedBy;

/// The part of `struct tcp_info` that is used, as Linux lays it out. Fields were only ever added at its end, and an
/// older kernel fills less: then what it does not fill is "unknown".
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    state: u8,
    _ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    _options: u8,
    _wscale: u8,
    _flags: u8,
    _rto_to_rcv_mss: [u32; 4],
    _unacked: u32,
    _sacked_to_last_ack_sent: [u32; 6],
    last_data_received_ms: u32,
    last_ack_received_ms: u32,
    _pmtu_and_ssthresh: [u32; 2],
    round_trip_us: u32,
    _rttvar_to_total_retrans: [u32; 8],
    _pacing_rate: u64,
    _max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    _segments: [u32; 2],
    notsent_bytes: u32,
    _min_rtt: u32,
    _data_segments: [u32; 2],
    _delivery_rate: u64,
    _limited: [u64; 3],
    _delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
}

impl Raw {
    /// How much a kernel fills that tells nothing of what was sent: those before 4.19.
    const OLD: usize = std::mem::offset_of!(Raw, _segments);

    /// All bytes that were ever handed over, with the SYN, as in `bytes_acked`.
    fn written(&self) -> u64 {
        1 + (self.bytes_sent + u64::from(self.notsent_bytes)).saturating_sub(self.bytes_retrans)
    }
}

/// One look at a connection: about a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) counters: Counters,
    /// Bytes of ours that our kernel was given, if it tells.
    pub(crate) written: Option<u64>,
    /// The kernel's TCP state: 1 is established, 7 closed (by a reset or a timeout), 8 "the peer has closed".
    pub(crate) state: u8,
    /// The kernel is, or was at the end, sending again what nobody acknowledged, or probing.
    pub(crate) repeating: bool,
    /// How long ago anything came from the peer's kernel.
    pub(crate) silent: Duration,
    /// How long an answer takes.
    pub(crate) round_trip: Duration,
}

impl TcpInfo {
    /// How a connection that is over ended, given its pending error (0: libzmq has taken it), and whether so much time has
    /// passed that the kernel can have given up.
    pub(crate) fn ended_by(&self, os_errno: i32, out_of_time: bool) -> EndedBy {
        const CLOSED: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        const LAST_ACK: u8 = 9;
        match (self.state, os_errno) {
            (CLOSE_WAIT | LAST_ACK, _) => EndedBy::Fin,
            (_, libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => EndedBy::Timeout,
            (_, libc::ECONNRESET | libc::EPIPE) => EndedBy::Reset,
            (CLOSED, _) if self.repeating && out_of_time => EndedBy::Timeout,
            (CLOSED, _) => EndedBy::Reset,
            _ => EndedBy::Unknown,
        }
    }
}

/// Takes the pending error of a socket, 0 when there is none.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> i32 {
    let mut errno: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: room for an int.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            std::ptr::from_mut(&mut errno).cast(),
            &mut length,
        )
    };
    if rc == 0 { errno } else { 0 }
}

/// Sets how long the kernel goes on without an answer; 0 leaves it to the kernel.
pub(crate) fn set_user_timeout(fd: BorrowedFd<'_>, ms: i64) {
    let ms = libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option is an int. Of a connection that is over already, nothing is to be expected: errors mean nothing.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const ms).cast(),
            size_of_val(&ms) as libc::socklen_t,
        )
    };
}

pub(crate) fn read(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut raw = Raw::default();
    let mut length = size_of::<Raw>() as libc::socklen_t;
    // SAFETY: room for `length` bytes of plain numbers.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut raw).cast(),
            &mut length,
        )
    };
    match rc {
        0 if length as usize >= Raw::OLD => Ok(TcpInfo {
            counters: Counters { acked: raw.bytes_acked, received: raw.bytes_received },
            written: (length as usize == size_of::<Raw>()).then(|| raw.written()),
            state: raw.state,
            repeating: raw.retransmits > 0 || raw.probes > 0 || raw.backoff > 0,
            silent: Duration::from_millis(raw.last_data_received_ms.min(raw.last_ack_received_ms).into()),
            round_trip: Duration::from_micros(raw.round_trip_us.into()),
        }),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn it_counts_what_goes_and_what_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        here.write_all(&[1; 1000]).unwrap();
        there.write_all(&[2; 77]).unwrap();
        there.read_exact(&mut [0; 1000]).unwrap();
        here.read_exact(&mut [0; 77]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let info = read(here.as_fd()).unwrap();
            assert_eq!((info.state, info.counters.received, info.written), (1, 77, Some(1001)));
            // The SYN counts as one byte.
            if info.counters.acked == 1001 {
                break;
            }
            assert!(Instant::now() < deadline, "{info:?}");
        }
    }
}
