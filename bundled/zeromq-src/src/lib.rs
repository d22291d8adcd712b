//! Builds the libzmq that kvconn bundles. To Cargo it is `zeromq-src` 0.2, the build helper that zmq-sys calls.
//!
//! The real `zeromq-src` writes an empty `platform.hpp`, so everything that libzmq's own build systems detect is missing:
//! TCP keepalive is accepted and ignored, descriptors are not close-on-exec, timers follow the wall clock, a forked child
//! that touches a socket aborts its *parent*, and there is no CURVE. This crate adds what Linux has and hands the work to
//! `zeromq-src` 0.3.6 (libzmq 4.3.5). `tests/bundled_libzmq.rs` of kvconn proves the result at run time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

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
        let libsodium_include = PathBuf::from(env!("DEP_SODIUM_INCLUDE"));
        let libsodium = LibLocation::new(env!("DEP_SODIUM_LIB"), &libsodium_include);
        upstream::Build::new()
            .enable_draft(true) // for ZMQ_OUT_BATCH_SIZE
            .with_libsodium(Some(libsodium))
            .build();
        correct(&libsodium_include);
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

/// What zeromq-src itself defines for Linux; the corrected files must see the same.
const UPSTREAM: &[(&str, &str)] = &[
    ("ZMQ_BUILD_TESTS", "OFF"),
    ("ZMQ_BUILD_DRAFT_API", "1"),
    ("ZMQ_USE_CV_IMPL_STL11", "1"),
    ("ZMQ_STATIC", "1"),
    ("ZMQ_USE_BUILTIN_SHA1", "1"),
    ("ZMQ_HAVE_WS", "1"),
    ("ZMQ_USE_LIBSODIUM", "1"),
    ("ZMQ_HAVE_CURVE", "1"),
    ("ZMQ_HAVE_LINUX", "1"),
    ("ZMQ_IOTHREAD_POLLER_USE_EPOLL", "1"),
    ("ZMQ_POLL_BASED_ON_POLL", "1"),
    ("ZMQ_HAVE_IPC", "1"),
    ("HAVE_STRNLEN", "1"),
    ("ZMQ_HAVE_UIO", "1"),
    ("ZMQ_HAVE_STRUCT_SOCKADDR_UN", "1"),
];

/// A place where libzmq aborts the process, forgets memory that it holds or gives it away, and has to do better. In every release so
/// far.
struct Correction {
    /// The file, without `.cpp`.
    file: &'static str,
    /// A header whose text it takes in, because the place is there, and the include that would bring it in otherwise.
    header: Option<(&'static str, &'static str)>,
    /// Texts that stand before the place, in this order.
    before: &'static [&'static str],
    /// What stands there, and what takes its place.
    place: &'static str,
    instead: &'static str,
}

const CORRECTIONS: &[Correction] = &[
    // A socket is closed with linger 0 while its peer dies, when a message of several frames has gone out in part: the
    // session wants to read the rest of it from a pipe that is closed already, and asserts that it gets it (libzmq issue
    // 3442). The rest goes with the pipe.
    Correction {
        file: "session_base",
        header: None,
        before: &["::clean_pipes ()", "pull_msg (&msg);"],
        place: "errno_assert (rc == 0);",
        instead: "if (rc != 0) { _incomplete_in = false; break; }",
    },
    // A source address is taken for the name of an interface at first, and there is no descriptor left to list them. It
    // is none.
    Correction {
        file: "ip_resolver",
        header: None,
        before: &["#include <ifaddrs.h>", "::resolve_nic_name (", "getifaddrs (&ifa);"],
        place: "errno_assert (rc == 0);",
        instead: "if (rc != 0) { errno = ENODEV; return -1; }",
    },
    // A CURVE server gives a short-term key with which nothing can be encrypted. The handshake has failed.
    Correction {
        file: "curve_client",
        header: Some(("curve_client_tools.hpp", "#include \"curve_client.hpp\"")),
        before: &["crypto_box_beforenm (cn_precom_"],
        place: "zmq_assert (rc == 0);",
        instead: "if (rc != 0) { errno = EPROTO; return -1; }",
    },
    // A peer dies while a message is handed over frame by frame: the frames that were taken are forgotten with the pipe, and
    // neither freed nor, where they were lent, given back. They are dropped, as where this side ends the pipe.
    Correction {
        file: "pipe",
        header: None,
        before: &["::process_hiccup (", "zmq_assert (_out_pipe);"],
        place: "_out_pipe->flush ();",
        instead: "rollback (); _out_pipe->flush ();",
    },
    // A peer's PING is too short to have its TTL. libzmq takes the length that is missing, which is negative, for that of
    // the longest context, and answers with 16 bytes of our memory. Such a PING gets no answer; libzmq does not look at
    // what the function returns, so the connection goes on.
    Correction {
        file: "zmtp_engine",
        header: None,
        before: &["::process_heartbeat_message ("],
        place: "uint16_t remote_heartbeat_ttl;",
        instead: "uint16_t remote_heartbeat_ttl; if (msg_->size () < ping_ttl_len) { errno = EPROTO; return -1; }",
    },
];

/// Compiles some files of libzmq again with corrections, and puts them in the place of the originals.
fn correct(libsodium_include: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("a build script has OUT_DIR"));
    let (source, lib) = (out.join("source"), out.join("lib/libzmq.a"));
    let mut build = cc::Build::new();
    build.cpp(true).std("c++11").out_dir(out.join("corrected")).includes([
        source.join("include"),
        source.join("src"),
        out.clone(), // platform.hpp
        libsodium_include.to_owned(),
    ]);
    for correction in CORRECTIONS {
        let corrected = source.join(format!("src/{}_corrected.cpp", correction.file));
        fs::write(&corrected, correction.apply(&source.join("src"))).expect("the build directory can be written");
        build.file(corrected);
    }
    for (name, value) in UPSTREAM {
        build.define(name, *value);
    }
    let objects = build.compile_intermediates();

    // cc puts a hash before the name of each object.
    let listed = archiver(&build).arg("t").arg(&lib).output().expect("ar lists libzmq.a");
    let members = String::from_utf8(listed.stdout).expect("names of objects");
    let is_original = |name: &&str| CORRECTIONS.iter().any(|c| name.ends_with(&format!("-{}.o", c.file)));
    let originals: Vec<_> = members.lines().filter(is_original).collect();
    assert_eq!(originals.len(), CORRECTIONS.len(), "objects of libzmq that are corrected: {originals:?}");
    run(archiver(&build).arg("d").arg(&lib).args(originals));
    run(archiver(&build).arg("rs").arg(&lib).args(objects));
}

impl Correction {
    fn apply(&self, sources: &Path) -> String {
        let read = |name: &str| fs::read_to_string(sources.join(name)).expect("zeromq-src leaves its sources there");
        let mut text = read(&format!("{}.cpp", self.file));
        if let Some((header, include)) = self.header {
            assert_eq!(text.matches(include).count(), 1, "{include} in {}.cpp", self.file);
            text = text.replace(include, &[&read(header), include].join("\n"));
        }
        let after = |from: usize, wanted: &&str| Some(from + text[from..].find(*wanted)? + wanted.len());
        let before = self.before.iter().try_fold(0, after);
        let end = before.and_then(|from| after(from, &self.place));
        let end = end.unwrap_or_else(|| panic!("{}.cpp is not the one that the correction was made for", self.file));
        [&text[..end - self.place.len()], self.instead, &text[end..]].concat()
    }
}

fn archiver(build: &cc::Build) -> Command {
    build.get_archiver()
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}
