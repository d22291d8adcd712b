//! What the kernel knows about a TCP connection, and how long the kernel waits for the peer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::connection::acknowledgement::ledger::Counters;
use crate::delivery::EndedBy;

/// The part of `struct tcp_info` that is used, in Linux's layout. The kernel only appends fields. An older kernel fills
/// fewer of them; those that it does not fill are "unknown".
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
    /// The size that kernels before 4.19 fill at least. They do not report the bytes sent.
    const OLD: usize = std::mem::offset_of!(Raw, _segments);

    /// All bytes ever given to the kernel, plus one for the SYN, as in `bytes_acked`.
    fn written(&self) -> u64 {
        1 + (self.bytes_sent + u64::from(self.notsent_bytes)).saturating_sub(self.bytes_retrans)
    }
}

/// The state of a connection at one moment. Reading it takes about a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) counters: Counters,
    /// Our bytes that our kernel was given. `None` if the kernel does not report it.
    pub(crate) written: Option<u64>,
    /// The kernel's TCP state: 1 is established, 7 closed (by a reset or a timeout), 8 closed by the peer.
    pub(crate) state: u8,
    /// The kernel is (or was at the end) retransmitting unacknowledged data, or probing.
    pub(crate) repeating: bool,
    /// The time since anything came from the peer's kernel.
    pub(crate) silent: Duration,
    /// The round-trip time.
    pub(crate) round_trip: Duration,
}

/// The kernel's TCP state of a socket that is over by a reset or a timeout.
const CLOSED: u8 = 7;
/// Those after a FIN of the peer.
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;

impl TcpInfo {
    /// A reset or a timeout has ended it; after a FIN of the peer it is not so yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == CLOSED
    }

    /// libzmq ends it, now or in a moment: the peer has closed it, or it was reset or has timed out.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, CLOSED | CLOSE_WAIT | LAST_ACK)
    }

    /// How an ended connection ended. `os_errno` is its pending error (0 if libzmq has taken it). `out_of_time`: enough
    /// time has passed for the kernel to give up.
    pub(crate) fn ended_by(&self, os_errno: i32, out_of_time: bool) -> EndedBy {
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

/// Takes the pending error of a socket. 0 if there is none.
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

/// Sets how long the kernel waits for an answer. 0 means the kernel's default.
pub(crate) fn set_user_timeout(fd: BorrowedFd<'_>, ms: i64) {
    let ms = libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option is an int. Errors are ignored: they only mean that the connection has ended already.
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
    fn it_counts_bytes_sent_and_received() {
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
