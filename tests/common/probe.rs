//! What this process holds: descriptors by kind, threads by name, memory, processor time.

use std::time::{Duration, Instant};

/// Open descriptors by kind. Other tests of the same process are counted too: compare counts only in a process of
/// your own (`OwnProcess`, or cargo-nextest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub tcp: usize,
    pub unix: usize,
    pub other_sockets: usize,
    pub eventfd: usize,
    pub epoll: usize,
    pub pipe: usize,
    pub other: usize,
}

impl Descriptors {
    pub fn total(&self) -> usize {
        self.tcp + self.unix + self.other_sockets + self.eventfd + self.epoll + self.pipe + self.other
    }
}

/// What libzmq and kvconn hold, without what only the harness has: pipes, Unix sockets, files. (A peer at an ipc
/// endpoint is not seen here.)
pub fn held_descriptors() -> Descriptors {
    Descriptors { unix: 0, pipe: 0, other: 0, ..open_descriptors() }
}

/// The same when it has not changed for a while: libzmq's reaper gives the last descriptors of a connection back some
/// time after TCP's.
pub fn descriptors_at_rest() -> Descriptors {
    let (mut last, mut since) = (held_descriptors(), Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(5));
        let now = held_descriptors();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Counts the descriptors of this process, without the one the counting itself needs.
pub fn open_descriptors() -> Descriptors {
    let mut counts = Descriptors::default();
    let listing = std::fs::read_dir("/proc/self/fd").expect("listing /proc/self/fd");
    for entry in listing.flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        if target.starts_with("socket:") {
            let descriptor: i32 = entry.file_name().to_string_lossy().parse().expect("a number");
            match socket_domain(descriptor) {
                Some(libc::AF_INET | libc::AF_INET6) => counts.tcp += 1,
                Some(libc::AF_UNIX) => counts.unix += 1,
                _ => counts.other_sockets += 1,
            }
        } else if target == "anon_inode:[eventfd]" {
            counts.eventfd += 1;
        } else if target == "anon_inode:[eventpoll]" {
            counts.epoll += 1;
        } else if target.starts_with("pipe:") {
            counts.pipe += 1;
        } else if !is_own_listing(&target) {
            counts.other += 1;
        }
    }
    counts
}

fn is_own_listing(target: &str) -> bool {
    target.strip_prefix("/proc/").is_some_and(|rest| rest.ends_with("/fd"))
}

fn socket_domain(descriptor: i32) -> Option<i32> {
    let mut domain = 0i32;
    let mut size = std::mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: reads an int option into an int; a descriptor closed meanwhile gives an error.
    let result =
        unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &mut size) };
    (result == 0).then_some(domain)
}

/// The names of this process's threads, sorted.
pub fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("listing /proc/self/task");
    let mut names: Vec<String> = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim_end().to_string())
        .collect();
    names.sort();
    names
}

/// Resident memory of this process.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("reading /proc/self/statm");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    // SAFETY: no argument is a pointer.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Processor time this process has used, user and system, all threads.
pub fn processor_time() -> Duration {
    // SAFETY: a timespec of zeroes is valid and is all that the call writes.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time), 0);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
