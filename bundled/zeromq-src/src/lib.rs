//! Builds the libzmq that kvconn bundles. To Cargo it is `zeromq-src` 0.2, the build helper that zmq-sys calls.
//!
//! The real `zeromq-src` writes an empty `platform.hpp`, so everything that libzmq's own build systems detect is missing:
//! TCP keepalive is accepted and ignored, descriptors are not close-on-exec, timers follow the wall clock, a forked child
//! that touches a socket aborts its *parent*, and there is no CURVE. This crate adds what Linux has and hands the work to
//! `zeromq-src` 0.3.6 (libzmq 4.3.5). `tests/bundled_libzmq.rs` of kvconn proves the result at run time.

use std::env;

pub use upstream::LibLocation;

/// What libzmq's `configure` would have found on Linux.
const LINUX: &[&str] = &[
    "HAVE_POSIX_MEMALIGN=1", // needs the next one
    "ZMQ_CACHELINE_SIZE=64",
    // One descriptor for each socket's mailbox instead of two.
    "ZMQ_HAVE_EVENTFD=1",
    "ZMQ_HAVE_EVENTFD_CLOEXEC=1",
    // Without these four the ZMQ_TCP_KEEPALIVE options do nothing.
    "ZMQ_HAVE_SO_KEEPALIVE=1",
    "ZMQ_HAVE_TCP_KEEPCNT=1",
    "ZMQ_HAVE_TCP_KEEPIDLE=1",
    "ZMQ_HAVE_TCP_KEEPINTVL=1",
    // Descriptors that a program started by the process does not inherit, without a race.
    "ZMQ_HAVE_SOCK_CLOEXEC=1",
    "HAVE_ACCEPT4=1",
    "ZMQ_IOTHREAD_POLLER_USE_EPOLL_CLOEXEC=1",
    // The monotonic clock: with gettimeofday a step of the wall clock blocks timers and timeouts.
    "HAVE_CLOCK_GETTIME=1",
    // A forked child leaves its parent's sockets alone.
    "HAVE_FORK=1",
    "ZMQ_HAVE_IFADDRS=1",
    "HAVE_IF_NAMETOINDEX=1",
    "ZMQ_HAVE_PTHREAD_SETNAME_2=1",
    "ZMQ_HAVE_SO_PEERCRED=1",
    "ZMQ_HAVE_SO_BINDTODEVICE=1",
    "ZMQ_HAVE_SO_PRIORITY=1",
];

/// The part of zeromq-src's builder that zmq-sys uses.
#[derive(Default)]
pub struct Build;

impl Build {
    /// Begins a build.
    pub fn new() -> Self {
        Self
    }

    /// Changes nothing: zmq-sys asks for no libsodium, and this build always has it.
    pub fn with_libsodium(&mut self, _: Option<LibLocation>) -> &mut Self {
        self
    }

    /// Builds libzmq and prints Cargo's link instructions. Call it from a build script.
    pub fn build(&mut self) {
        let target = env::var("TARGET").expect("a build script has TARGET");
        let host = env::var("HOST").expect("a build script has HOST");
        // A dependency of a build script is built for the host, so that is what this libsodium is for.
        assert_eq!(target, host, "the bundled libsodium cannot be cross-compiled: build on the target");
        if target.contains("linux") {
            add_cxx_macros(&target, LINUX);
        }
        let libsodium = LibLocation::new(env!("DEP_SODIUM_LIB"), env!("DEP_SODIUM_INCLUDE"));
        upstream::Build::new()
            .enable_draft(true) // for ZMQ_OUT_BATCH_SIZE
            .with_libsodium(Some(libsodium))
            .build();
        // Reaches kvconn's build script as DEP_ZMQ_COMPLETE.
        println!("cargo:complete=1");
    }
}

/// Passes macros to the compiler through the variable that the `cc` crate reads last, after whatever the user has set.
/// zeromq-src offers no other way in.
fn add_cxx_macros(target: &str, macros: &[&str]) {
    let name = format!("CXXFLAGS_{target}");
    let mut flags = env::var(&name).unwrap_or_default();
    for macro_ in macros {
        flags.push_str(" -D");
        flags.push_str(macro_);
    }
    // SAFETY: a build script has a single thread until `cc` starts its own, and this runs before.
    unsafe { env::set_var(name, flags) };
}
