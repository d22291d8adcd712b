//! Builds the libzmq that kvconn bundles. To Cargo it is `zeromq-src` 0.2, the build helper that zmq-sys calls.
//!
//! The real `zeromq-src` writes an empty `platform.hpp`, so everything that libzmq's own build systems detect is
//! missing: TCP keepalive is accepted and ignored, descriptors are not close-on-exec, timers follow the wall clock, a
//! forked child that touches a socket aborts its *parent*, and there is no CURVE. And libzmq aborts the process for
//! what a network, a kernel or a limit does.
//!
//! This crate takes libzmq 4.3.5 from `zeromq-src` 0.3.6, applies `patches/*.patch` in the order of their names, and
//! compiles all of it with what Linux has. libsodium is the one of `libsodium-sys-stable` (`sodium.rs`). `ASSERTS.md` lists what is left of libzmq's assertions.
//! `tests/process/bundled_libzmq.rs` and `tests/faults/` of kvconn prove the result at run time.

mod sodium;

use std::path::{Path, PathBuf};
use std::{env, fs};

use diffy::patch_set::{ParseOptions, PatchSet};
// Cargo downloads it, so its directory is there. Its code is not used: it cannot compile changed sources.
use upstream as _;

use sodium::Sodium;

/// The version of the crate whose sources are compiled, as in Cargo.toml.
const SOURCE_CRATE: &str = "zeromq-src";
const SOURCE_VERSION: &str = "0.3.6+4.3.5";

/// Parts of libzmq that need libraries which are not here, and that `zeromq-src` does not compile either.
const NOT_COMPILED: &[&str] = &["wss_address.cpp", "wss_engine.cpp"];

/// The way of a message, from the call to the kernel. These are compiled as one file, so that the compiler inlines their
/// small functions into each other. Link-time optimisation does the same, but needs a linker that fits the compiler.
const HOT: &[&str] = &[
    "zmq.cpp",
    "socket_base.cpp",
    "push.cpp",
    "lb.cpp",
    "pipe.cpp",
    "msg.cpp",
    "clock.cpp",
    "object.cpp",
    "own.cpp",
    "mailbox.cpp",
    "signaler.cpp",
    "session_base.cpp",
    "stream_engine_base.cpp",
    "zmtp_engine.cpp",
    "v2_encoder.cpp",
    "v3_1_encoder.cpp",
    "tcp.cpp",
    "epoll.cpp",
    "poller_base.cpp",
    "io_object.cpp",
    "io_thread.cpp",
];

/// With this variable, libzmq is like everybody else's: each file is compiled for itself, without the patches that only
/// make it faster. The benchmark compares kvconn with that one.
const PLAIN: &str = "KVCONN_PLAIN_LIBZMQ";

/// How the names of those patches begin.
const FASTER: &str = "004";

/// How libzmq is built: draft options for ZMQ_OUT_BATCH_SIZE, CURVE by libsodium.
const CONFIGURATION: &[(&str, &str)] = &[
    ("ZMQ_BUILD_DRAFT_API", "1"),
    ("ZMQ_USE_CV_IMPL_STL11", "1"),
    ("ZMQ_STATIC", "1"),
    ("ZMQ_USE_BUILTIN_SHA1", "1"),
    ("ZMQ_HAVE_WS", "1"), // the files are compiled, and need the types
    ("ZMQ_USE_LIBSODIUM", "1"),
    ("ZMQ_HAVE_CURVE", "1"),
    ("HAVE_STRNLEN", "1"),
];

/// What libzmq's `configure` would have found on Linux.
const LINUX: &[(&str, &str)] = &[
    ("ZMQ_HAVE_LINUX", "1"),
    ("ZMQ_IOTHREAD_POLLER_USE_EPOLL", "1"),
    ("ZMQ_POLL_BASED_ON_POLL", "1"),
    ("ZMQ_HAVE_IPC", "1"),
    ("ZMQ_HAVE_STRUCT_SOCKADDR_UN", "1"),
    ("ZMQ_HAVE_UIO", "1"),
    ("HAVE_POSIX_MEMALIGN", "1"), // needs the next one
    ("ZMQ_CACHELINE_SIZE", "64"),
    // One descriptor for each socket's mailbox instead of two.
    ("ZMQ_HAVE_EVENTFD", "1"),
    ("ZMQ_HAVE_EVENTFD_CLOEXEC", "1"),
    // Without these four the ZMQ_TCP_KEEPALIVE options do nothing.
    ("ZMQ_HAVE_SO_KEEPALIVE", "1"),
    ("ZMQ_HAVE_TCP_KEEPCNT", "1"),
    ("ZMQ_HAVE_TCP_KEEPIDLE", "1"),
    ("ZMQ_HAVE_TCP_KEEPINTVL", "1"),
    // Descriptors that a program started by the process does not inherit, without a race.
    ("ZMQ_HAVE_SOCK_CLOEXEC", "1"),
    ("HAVE_ACCEPT4", "1"),
    ("ZMQ_IOTHREAD_POLLER_USE_EPOLL_CLOEXEC", "1"),
    // The monotonic clock: with gettimeofday a step of the wall clock blocks timers and timeouts.
    ("HAVE_CLOCK_GETTIME", "1"),
    // A forked child leaves its parent's sockets alone.
    ("HAVE_FORK", "1"),
    ("ZMQ_HAVE_IFADDRS", "1"),
    ("HAVE_IF_NAMETOINDEX", "1"),
    ("ZMQ_HAVE_PTHREAD_SETNAME_2", "1"),
    ("ZMQ_HAVE_SO_PEERCRED", "1"),
    ("ZMQ_HAVE_SO_BINDTODEVICE", "1"),
    ("ZMQ_HAVE_SO_PRIORITY", "1"),
];

/// The type that zmq-sys names. Nothing makes one.
pub struct LibLocation;

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
        let target = variable("TARGET");
        assert!(target.contains("linux"), "kvconn's libzmq is configured for Linux, not for {target}");

        let out = PathBuf::from(variable("OUT_DIR"));
        let source = out.join("source");
        copy_sources(&find_crate(SOURCE_CRATE, SOURCE_VERSION).join("vendor"), &source);
        apply_patches(&Path::new(env!("CARGO_MANIFEST_DIR")).join("patches"), &source);
        let sodium = Sodium::for_target(&out);
        compile(&source, &out, &sodium.include);

        println!("cargo:rustc-link-search=native={}", out.join("lib").display());
        println!("cargo:rustc-link-lib=static=zmq");
        println!("cargo:rustc-link-search={}", sodium.library.display());
        println!("cargo:rustc-link-lib=static=sodium");
        println!("cargo:include={}", source.join("include").display());
        // Reaches kvconn's build script as DEP_ZMQ_COMPLETE.
        println!("cargo:complete=1");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("a build script has {name}"))
}

/// The directory of another crate's sources.
///
/// That crate does not say where it is. Cargo unpacks it beside zmq-sys, whose build script this is: both come from the
/// same registry, or from the same directory of vendored crates.
fn find_crate(name: &str, version: &str) -> PathBuf {
    let zmq_sys = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let crates = zmq_sys.parent().expect("a crate is in a directory");
    let is_it = |directory: &PathBuf| {
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap_or_default();
        manifest.contains(&format!("name = \"{name}\"")) && manifest.contains(&format!("version = \"{version}\""))
    };
    let names = [format!("{name}-{version}"), name.to_owned()];
    let found = names.iter().map(|name| crates.join(name)).find(is_it);
    found.unwrap_or_else(|| panic!("no {} in {}", names[0], crates.display()))
}

fn copy_sources(from: &Path, to: &Path) {
    for directory in ["include", "src", "external/sha1"] {
        let (from, to) = (from.join(directory), to.join(directory));
        // What a former build left there may be patched.
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).expect("the build directory can be written");
        for file in files(&from) {
            fs::copy(&file, to.join(file.file_name().expect("a file has a name")))
                .expect("libzmq's sources can be read");
        }
    }
}

/// The files of a directory, by name.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut all: Vec<_> = entries.map(|entry| entry.expect("a directory's entry").path()).collect();
    all.retain(|path| path.is_file());
    all.sort();
    all
}

/// Applies every patch, or ends the build.
fn apply_patches(patches: &Path, source: &Path) {
    println!("cargo:rerun-if-changed={}", patches.display());
    println!("cargo:rerun-if-env-changed={PLAIN}");
    let is_plain = env::var_os(PLAIN).is_some();
    for patch in files(patches).iter().filter(|file| file.extension().is_some_and(|e| e == "patch")) {
        let name = patch.display();
        if is_plain && patch.file_name().is_some_and(|file| file.to_string_lossy().starts_with(FASTER)) {
            continue;
        }
        let text = fs::read_to_string(patch).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut changed = 0;
        for part in PatchSet::parse(&text, ParseOptions::unidiff()) {
            let part = part.unwrap_or_else(|e| panic!("{name}: {e}"));
            let diff = part.patch().as_text().unwrap_or_else(|| panic!("{name} is not text"));
            let file = diff
                .modified()
                .and_then(|path| path.strip_prefix("b/"))
                .unwrap_or_else(|| panic!("{name}: no path b/…"));
            let file = source.join(file);
            let before = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{name}: {}: {e}", file.display()));
            let after = diffy::apply(&before, diff).unwrap_or_else(|e| panic!("{name}: {}: {e}", file.display()));
            fs::write(&file, after).expect("the build directory can be written");
            changed += 1;
        }
        assert!(changed > 0, "{name} changes nothing");
    }
}

fn compile(source: &Path, out: &Path, sodium: &Path) {
    // libzmq includes it. What it would hold is defined on the command line.
    fs::write(out.join("platform.hpp"), "").expect("the build directory can be written");
    let hot = if env::var_os(PLAIN).is_some() { &[] } else { HOT };
    let mut code = files(&source.join("src"));
    code.retain(|file| {
        let is_one_of = |names: &[&str]| names.iter().any(|name| file.ends_with(name));
        file.extension().is_some_and(|e| e == "cpp") && !is_one_of(NOT_COMPILED) && !is_one_of(hot)
    });
    let mut build = cc::Build::new();
    build
        .out_dir(out.join("lib"))
        .includes([source.join("include"), source.join("src"), source.join("external/sha1"), out.to_owned()])
        .include(sodium)
        // No symbol that the loader makes one of in the whole process: the static archive could not hide it.
        .flag_if_supported("-fno-gnu-unique")
        // As libzmq's own build does. A function that another library could replace is not inlined.
        .flag_if_supported("-fvisibility=hidden");
    if !hot.is_empty() {
        let file = out.join("hot.cpp");
        let all: String = hot.iter().map(|name| format!("#include \"{name}\"\n")).collect();
        fs::write(&file, all).expect("the build directory can be written");
        code.push(file);
    }
    map_paths(&mut build, out);
    for (name, value) in CONFIGURATION.iter().chain(LINUX) {
        build.define(name, *value);
    }
    if has_strlcpy(out) {
        build.define("ZMQ_HAVE_STRLCPY", "1");
    }
    let sha1 = build.clone().file(source.join("external/sha1/sha1.c")).compile_intermediates();
    build.cpp(true).std("c++11").files(code).objects(sha1).compile("zmq");
}

/// Keeps the build machine's paths out of the objects: `__FILE__` in libzmq's assertions, and the debug information.
fn map_paths(build: &mut cc::Build, out: &Path) {
    let zmq_sys = PathBuf::from(variable("CARGO_MANIFEST_DIR")); // the compiler's working directory
    // Of two that match, the last one counts.
    for (path, name) in [(zmq_sys, "zmq-sys"), (out.to_owned(), "build"), (out.join("source"), "libzmq")] {
        // gcc since 8 and clang since 10 know it.
        build.flag_if_supported(format!("-ffile-prefix-map={}={name}", path.display()));
    }
}

/// Whether the C library has strlcpy (glibc since 2.38): libzmq's own one would clash with it.
fn has_strlcpy(out: &Path) -> bool {
    let (probe, program) = (out.join("strlcpy.c"), out.join("strlcpy"));
    let text = "#include <string.h>\nint main(void) { char to[2]; return strlcpy(to, \"\", sizeof to) != 0; }\n";
    fs::write(&probe, text).expect("the build directory can be written");
    let mut compiler = cc::Build::new().warnings(false).get_compiler().to_command();
    let output = compiler.arg("-Werror=implicit-function-declaration").arg(probe).arg("-o").arg(program).output();
    output.expect("a C compiler").status.success()
}
