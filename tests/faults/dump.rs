//! `kvconn_dump` is made for a debugger: it writes to a descriptor of the host's on the host's thread, and says what
//! waits for how long. R23, R32.

use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvconn::capi::{kvconn_dump, kvconn_error_t};
use kvconn::error::Status;

use crate::common::engine::after;
use crate::common::{Engine, OwnProcess, Peer, ms, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);

/// Dumps; the status and errno.
fn dump(fd: RawFd) -> (i32, i32) {
    // SAFETY: numbers and texts, for which zero is valid.
    let mut error: kvconn_error_t = unsafe { std::mem::zeroed() };
    error.struct_size = size_of::<kvconn_error_t>() as u32;
    // SAFETY: a struct of ours.
    (unsafe { kvconn_dump(fd, &mut error) }, error.os_errno)
}

/// Two connected descriptors, of a pipe (what is read first) or of sockets.
fn pair(sockets: bool) -> (OwnedFd, OwnedFd) {
    let mut pair: [c_int; 2] = [0; 2];
    // SAFETY: an array of two, filled with descriptors that nobody else has.
    unsafe {
        let made = match sockets {
            true => libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()),
            false => libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC),
        };
        assert_eq!(made, 0);
        (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1]))
    }
}

fn sigpipe_set() -> libc::sigset_t {
    // SAFETY: initialised by sigemptyset.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGPIPE);
        set
    }
}

fn sigpipe_is_pending() -> bool {
    // SAFETY: initialised by sigpending.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigpending(&mut set);
        libc::sigismember(&set, libc::SIGPIPE) == 1
    }
}

fn sigpipe_is_blocked() -> bool {
    // SAFETY: a query that initialises the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, libc::SIGPIPE) == 1
    }
}

#[test]
fn a_reader_that_is_gone_is_an_error_and_no_signal() {
    use std::os::fd::AsRawFd;
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    // What a C program has; Rust's start ignores it.
    // SAFETY: the default disposition, and no other thread cares.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    for sockets in [false, true] {
        let (reader, writer) = pair(sockets);
        drop(reader);
        assert_eq!(dump(writer.as_raw_fd()), (Status::Invalid as i32, libc::EPIPE), "sockets: {sockets}");
        assert!(!sigpipe_is_pending() && !sigpipe_is_blocked());

        // A host that blocks the signal finds none of ours waiting.
        let set = sigpipe_set();
        // SAFETY: a set of ours; the thread's own mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        assert_eq!(dump(writer.as_raw_fd()), (Status::Invalid as i32, libc::EPIPE));
        assert!(!sigpipe_is_pending() && sigpipe_is_blocked());
        // And keeps one of its own.
        // SAFETY: a blocked signal, for this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        assert_eq!(dump(writer.as_raw_fd()), (Status::Invalid as i32, libc::EPIPE));
        assert!(sigpipe_is_pending(), "the host's own signal is gone");
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a set and a time of ours.
        unsafe {
            assert_eq!(libc::sigtimedwait(&set, std::ptr::null_mut(), &now), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
    }
    // A reader that is there gets it, and one that does not read is waited for with a bound.
    for sockets in [false, true] {
        let (reader, writer) = pair(sockets);
        assert_eq!(dump(writer.as_raw_fd()).0, 0);
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert!(text.starts_with("kvconn "), "{text}");
        let (_reader, writer) = pair(sockets);
        let filled = crate::common::within(Duration::from_secs(60), "dumps that nobody reads", || {
            (0..100_000).map(|_| dump(writer.as_raw_fd()).0).find(|status| *status != 0)
        });
        assert_eq!(filled, Some(Status::Timeout as i32), "sockets: {sockets}");
    }
}

/// What a person sees of a process that hangs: who waits where, for how long, and what was lost lately.
/// A terminal is writable from some free bytes on: a write that waits for more would never return.
#[test]
fn a_terminal_that_nobody_reads_ends_the_dump_in_time() {
    let (mut terminal, mut line): (c_int, c_int) = (-1, -1);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: two numbers of ours; no name, settings or size are asked for.
    assert_eq!(unsafe { libc::openpty(&mut terminal, &mut line, name, settings, size) }, 0);
    // SAFETY: just made, owned by nobody else.
    let (terminal, line) = unsafe { (OwnedFd::from_raw_fd(terminal), OwnedFd::from_raw_fd(line)) };
    let (done, results) = std::sync::mpsc::channel();
    let fd = line.as_raw_fd();
    std::thread::spawn(move || {
        // Until it is full, and then once more.
        let statuses = std::iter::repeat_with(|| dump(fd).0).take(1000);
        let full = statuses.filter(|status| *status == Status::Timeout as i32).take(2).count();
        done.send(full).expect("the test waits");
    });
    let full = results.recv_timeout(LONG).expect("a dump that returns");
    assert_eq!(full, 2, "a terminal that nobody reads is full at some time");
    drop((terminal, line));
}

/// What cannot be written at all is INVALID, and not a reader that is slow.
#[test]
fn a_descriptor_for_reading_is_invalid() {
    let (reads, _writes) = pair(false);
    assert_eq!(dump(reads.as_raw_fd()), (Status::Invalid as i32, libc::EBADF));
}

#[test]
fn it_says_how_long_what_has_waited_and_what_was_lost() {
    use std::os::fd::AsRawFd;
    let (engine, lost, slow) = (Engine::with(&[("stall_ms", "100")]), Peer::any(), Peer::any());
    let gone = engine.ready(lost.endpoint());
    engine.send(&gone, &[b"one"], ms(5000)).unwrap();
    gone.flush(1, after(ms(5000))).0.unwrap();
    lost.kill();
    wait_until("the peer is lost", LONG, || gone.info().state == kvconn::connection::ConnectionState::Ended);
    let conn = engine.ready(slow.endpoint());
    slow.stop();
    engine.fill(&conn, &[7; 1000]);
    let dumped = || {
        let file = tempfile();
        assert_eq!(dump(file.as_raw_fd()).0, 0);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::read_to_string(path).unwrap()
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| engine.send(&conn, &[&[7; 1000]], Duration::from_secs(30)));
        // Not there when a lock was held at that moment.
        let mine = |text: &str| -> String {
            let ready = format!("connection {} READY", conn.id());
            text.lines().find(|line| line.contains(&ready)).unwrap_or_default().to_owned()
        };
        wait_until("its stall and its waits have ages", LONG, || {
            let line = mine(&dumped());
            line.contains("STALLED for ") && line.contains("1 threads waiting, the longest for ")
        });
        wait_until("the loss is told", LONG, || {
            let (text, lost) = (dumped(), format!("PEER_LOST, connection {}", gone.id()));
            text.lines().filter(|line| line.contains(&lost)).any(|line| {
                line.contains("1 accepted, 1 acknowledged, 0 unacknowledged, ended by ") && line.contains(" s ago")
            })
        });
        conn.disconnect().unwrap();
        assert!(sender.join().unwrap().is_err());
    });
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("kvconn-dump-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

/// The command lines of docs/operations.md that attach a debugger to the process `PID`.
fn documented_commands() -> Vec<String> {
    let operations = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).unwrap();
    let attaches = |line: &&str| line.starts_with("gdb -p PID ") || line.starts_with("lldb -p PID ");
    operations.lines().filter(attaches).map(str::to_owned).collect()
}

/// Whether this debugger is here and can restore a process's registers: gdb before version 14 cannot on a processor with AMX.
fn can_call(debugger: &str) -> bool {
    let Ok(said) = Command::new(debugger).arg("--version").output() else { return false };
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if debugger != "gdb" || !cpuinfo.contains("amx_tile") {
        return true;
    }
    let first = String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().to_owned();
    let version = first.rsplit(' ').next().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    version.is_some_and(|version| version >= 14)
}

/// The commands of docs/operations.md, on a process that hangs: with a library that has no symbols but the exported ones, with
/// this build, which has full debug information, and with the one of `make lib`, which has line tables only.
#[test]
fn a_debugger_can_call_it_with_and_without_debug_information() {
    let strip = Command::new("strip").arg("--version").stdout(Stdio::null()).status();
    if strip.is_err() || !(can_call("gdb") || can_call("lldb")) {
        println!("SKIPPED: there is no strip here, or no debugger that knows this processor");
        return;
    }
    let directory = std::env::temp_dir().join(format!("kvconn-gdb-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    // The shared library of this build, which cargo puts beside the tests.
    let library = std::env::current_exe().unwrap().with_file_name("libkvconn.so");
    let stripped = directory.join("stripped.so");
    let made = Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&library).status().unwrap();
    assert!(made.success());
    let mut libraries = vec![("stripped", stripped), ("debug", library)];
    // The makefile names it. Plain `cargo test` does not build it.
    match std::env::var_os("KVCONN_LIB") {
        Some(released) => libraries.push(("release", released.into())),
        None => println!("without the library of `make lib`: KVCONN_LIB does not name it"),
    }
    for (name, library) in libraries {
        if !the_documented_commands_work(&directory.join(name), &library) {
            println!("SKIPPED: this machine does not let a process be debugged");
            break;
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// Runs each documented command on a process of its own. Returns false if no process may be debugged here.
fn the_documented_commands_work(directory: &Path, library: &Path) -> bool {
    std::fs::create_dir(directory).unwrap();
    let soname = directory.join("libkvconn.so.0");
    std::fs::copy(library, &soname).unwrap();
    let source = directory.join("hangs.c");
    std::fs::write(
        &source,
        "#include <unistd.h>\n#include <stdint.h>\n#include <stdio.h>\n\
         int kvconn_dump(int, void *);\nint kvconn_node_open(uint64_t, const char *, uint64_t *, int *, void *);\n\
         int main(void) { uint64_t node; if (kvconn_node_open(0, \"prefill-9\", &node, NULL, NULL)) return 1;\n\
         puts(\"hangs\"); fflush(stdout); for (;;) pause(); }\n",
    )
    .unwrap();
    let program = directory.join("hangs");
    let compiled = Command::new("cc").arg(&source).arg(&soname).arg("-o").arg(&program).arg("-s").status().unwrap();
    assert!(compiled.success());
    let commands = documented_commands();
    assert_eq!(
        commands.len(),
        3,
        "docs/operations.md shows gdb for standard error and for a file, and lldb for standard error: {commands:?}"
    );
    for command in commands.iter().filter(|command| can_call(command.split(' ').next().unwrap_or_default())) {
        // The process's standard error is one file, the file of the second command another.
        let (standard_error, file) = (directory.join("stderr"), directory.join("file"));
        let mut child = Command::new(&program)
            .env("LD_LIBRARY_PATH", directory)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&standard_error).unwrap())
            .spawn()
            .unwrap();
        let mut begun = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        let (written, shown) = match command.contains("/tmp/kvconn.txt") {
            true => (&file, command.replace("/tmp/kvconn.txt", file.to_str().unwrap())),
            false => (&standard_error, command.clone()),
        };
        // Without a person's own start-up files.
        let shown = match shown.starts_with("gdb ") {
            true => shown.replacen("gdb ", "gdb -nx ", 1),
            false => shown.replacen("lldb ", "lldb --no-lldbinit ", 1),
        };
        let shown = shown.replace("PID", &child.id().to_string());
        let debugger = Command::new("sh").arg("-c").arg(&shown).output().unwrap();
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let told = String::from_utf8_lossy(&debugger.stdout).into_owned() + &String::from_utf8_lossy(&debugger.stderr);
        if told.contains("Operation not permitted") {
            return false;
        }
        let text = std::fs::read_to_string(written).unwrap_or_else(|e| panic!("{shown}: {e}\n{told}"));
        assert!(text.contains("node \"prefill-9\""), "{shown}\n{text}\n{told}");
        assert!(told.lines().any(|line| line.ends_with(" = 0")), "{shown}: no status OK\n{told}");
        assert!(!told.contains("Invalid cast"), "{shown}\n{told}");
        assert_eq!(ended, None, "{shown} ended the process\n{told}");
    }
    true
}
