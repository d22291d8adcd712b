//! What the operating system knows of this process.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use std::{fs, mem, ptr, thread};

/// How long anything may take that needs no time at all.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The descriptors of this process and what they are.
pub fn descriptors() -> BTreeMap<RawFd, String> {
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_str()?.parse().ok()?, target))
    };
    let mut all: BTreeMap<RawFd, String> =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| link(entry.unwrap())).collect();
    all.retain(|_, target| !target.starts_with("/proc/")); // the one that reads the directory
    all
}

pub fn descriptor_option(fd: RawFd, level: c_int, option: c_int) -> c_int {
    let mut value: c_int = -1;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes.
    let rc = unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &mut length) };
    assert_eq!(rc, 0);
    value
}

pub fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Adds 1 to an eventfd.
pub fn signal(fd: RawFd) {
    // SAFETY: the number has as many bytes as are counted.
    let written = unsafe { libc::write(fd, 1_u64.to_ne_bytes().as_ptr().cast(), size_of::<u64>()) };
    assert_eq!(written, size_of::<u64>().cast_signed());
}

pub fn peer_port(fd: RawFd) -> u16 {
    // SAFETY: all-zero bytes are a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: `address` has `length` bytes.
    let rc = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut length) };
    assert_eq!((rc, c_int::from(address.sin_family)), (0, libc::AF_INET));
    u16::from_be(address.sin_port)
}

pub fn gettimeofday() -> Duration {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `time` is valid for writes, and the time zone may be null.
    unsafe { libc::gettimeofday(&mut time, ptr::null_mut()) };
    Duration::from_secs(time.tv_sec as u64)
}
