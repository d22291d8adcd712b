//! A test's own look at a TCP connection of this process: what the kernel says, without asking kvconn.

use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Holds the connection open: while it lives no FIN of ours leaves, and the counts stay readable.
pub struct TcpView(OwnedFd);

impl TcpView {
    /// The established connection to `endpoint`, which is `tcp://address:port`. One that this process has just given up
    /// may be established for a moment more: to tell them apart, ask for the only one.
    #[track_caller]
    pub fn of(endpoint: &str) -> TcpView {
        let peer = endpoint.strip_prefix("tcp://").and_then(|address| address.parse().ok());
        let peer: SocketAddr = peer.unwrap_or_else(|| panic!("{endpoint} is no numeric address"));
        let peer = plain(peer);
        let listing = std::fs::read_dir("/proc/self/fd").expect("listing /proc/self/fd");
        let numbers = listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let found = numbers.filter(|fd| peer_of(*fd) == Some(peer)).find_map(|fd| {
            // SAFETY: only duplicates; the number may mean something else by now, which is looked at below.
            let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            // SAFETY: just made and not owned elsewhere.
            let view = (own != -1).then(|| TcpView(unsafe { OwnedFd::from_raw_fd(own) }))?;
            let right = peer_of(view.0.as_raw_fd()) == Some(peer) && view.info().tcpi_state == ESTABLISHED;
            right.then_some(view)
        });
        found.unwrap_or_else(|| panic!("this process has no TCP connection to {endpoint}"))
    }

    /// Bytes of ours that the peer's kernel has acknowledged, the SYN counted as one.
    pub fn acked(&self) -> u64 {
        self.info().tcpi_bytes_acked
    }

    /// Bytes of the peer's that our kernel has received.
    pub fn received(&self) -> u64 {
        self.info().tcpi_bytes_received
    }

    /// The kernel's limits of patience with a silent peer, in force now: TCP_USER_TIMEOUT in milliseconds.
    pub fn user_timeout(&self) -> u32 {
        let mut value = 0u32;
        self.option(libc::TCP_USER_TIMEOUT, &mut value);
        value
    }

    /// After how long without an acknowledgement the kernel sends again. The user timeout counts from then.
    pub fn retransmission_timeout(&self) -> Duration {
        Duration::from_micros(self.info().tcpi_rto.into())
    }

    fn info(&self) -> Info {
        let mut info = Info::default();
        self.option(libc::TCP_INFO, &mut info);
        info
    }

    fn option<T>(&self, option: libc::c_int, value: &mut T) {
        let mut size = size_of::<T>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: room for `size` bytes of plain numbers; the descriptor is open.
        let result =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, option, std::ptr::from_mut(value).cast(), &mut size) };
        assert_eq!(result, 0, "TCP option {option}: {}", std::io::Error::last_os_error());
        assert_eq!(size as usize, size_of::<T>(), "TCP option {option}: this kernel knows less");
    }
}

/// Notes when the peer's kernel last acknowledged something, as closely as it is asked.
pub struct Progress<'a> {
    view: &'a TcpView,
    acked: u64,
    at: Instant,
}

impl<'a> Progress<'a> {
    pub fn of(view: &'a TcpView) -> Progress<'a> {
        Progress { view, acked: view.acked(), at: Instant::now() }
    }

    /// Looks; how long ago it was then.
    pub fn idle(&mut self) -> Duration {
        let acked = self.view.acked();
        if acked != self.acked {
            (self.acked, self.at) = (acked, Instant::now());
        }
        self.at.elapsed()
    }
}

const ESTABLISHED: u8 = 1;

/// The beginning of the kernel's `struct tcp_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    tcpi_state: u8,
    bytes: [u8; 7],
    /// In microseconds.
    tcpi_rto: u32,
    words: [u32; 23],
    rates: [u64; 2],
    tcpi_bytes_acked: u64,
    tcpi_bytes_received: u64,
}

/// The peer that a descriptor is connected to, if it is a TCP connection.
fn peer_of(fd: RawFd) -> Option<SocketAddr> {
    // SAFETY: never closed here (ManuallyDrop); getpeername fails on whatever is no socket.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    stream.peer_addr().ok().map(plain)
}

/// An IPv6 socket knows an IPv4 address as ::ffff:a.b.c.d.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
