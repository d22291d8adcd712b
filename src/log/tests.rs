use std::ffi::OsStr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::error::Status;

const LONG: Duration = Duration::from_secs(20);
const MAX: usize = delivery::MAX_LINES;

/// A log of the test's own: the process's has one level for all tests.
fn new_log() -> &'static Log {
    Box::leak(Box::new(Log::new(Box::leak(Box::default()))))
}

/// A sink that passes lines on, and what it passes them to.
fn lines() -> (Sink, Receiver<(Level, String)>) {
    let (sender, receiver) = channel();
    (Box::new(move |level, line| sender.send((level, line.into())).unwrap()), receiver)
}

/// A sink that says when it is called, and returns only when it is told.
fn gated() -> (Sink, Receiver<String>, Sender<()>) {
    let (sender, receiver) = channel();
    let (open, gate) = channel();
    let gate = Mutex::new(gate);
    let sink: Sink = Box::new(move |_, line| {
        let _ = sender.send(line.into());
        let _ = gate.lock().recv();
    });
    (sink, receiver, open)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvconn-log-test-{}-{name}", std::process::id()))
}

fn value(level: &str, path: &Path) -> OsString {
    let mut value = OsString::from(format!("{level}:"));
    value.push(path);
    value
}

#[test]
fn lines_come_in_order_on_a_thread_of_their_own_that_ends_with_the_log() {
    let log = new_log();
    let (sender, receiver) = channel();
    let sink: Sink = Box::new(move |level, line| {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        // SAFETY: takes and changes nothing.
        sender.send((level, line.to_owned(), name, unsafe { libc::gettid() })).unwrap();
    });
    log.set(Some(sink), Level::Info).unwrap();
    assert_eq!(log.level.load(Ordering::Relaxed), Level::Info as u8);
    log.push(Level::Info, "first".into());
    log.push(Level::Error, "a reason\nof two lines\0".into());
    log.set(None, Level::Debug).unwrap();
    assert_eq!(log.level.load(Ordering::Relaxed), Level::Off as u8);
    log.push(Level::Error, "nobody wants it".into());
    let got: Vec<_> = receiver.try_iter().collect();
    let task = got[0].3;
    let expected = [(Level::Info, "first"), (Level::Error, "a reason of two lines ")]
        .map(|(level, line)| (level, line.to_owned(), "kvconn-log".to_owned(), task));
    assert_eq!(got, expected);
    wait_until("its thread is gone", || !Path::new(&format!("/proc/self/task/{task}")).exists());
}

#[test]
fn an_end_waits_until_the_sink_has_got_everything_and_is_dropped() {
    let log = new_log();
    let (got, alive) = (Arc::new(AtomicU8::new(0)), Arc::new(()));
    for _ in 0..3 {
        got.store(0, Ordering::Relaxed);
        let its = (got.clone(), alive.clone());
        let sink: Sink = Box::new(move |_, _| {
            std::thread::sleep(Duration::from_millis(2));
            its.0.fetch_add(1, Ordering::Relaxed);
            let _ = &its.1;
        });
        log.set(Some(sink), Level::Debug).unwrap();
        (0..20).for_each(|_| log.push(Level::Debug, "line".into()));
        log.set(None, Level::Off).unwrap();
        assert_eq!((got.load(Ordering::Relaxed), Arc::strong_count(&alive)), (20, 1));
        assert!(log.state.lock().ending.is_empty());
    }
}

#[test]
fn a_second_end_waits_for_the_sink_as_well() {
    let log = new_log();
    let (sink, called, open) = gated();
    log.set(Some(sink), Level::Debug).unwrap();
    log.push(Level::Debug, "line".into());
    called.recv_timeout(LONG).unwrap();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let end = std::thread::spawn(|| log.set(None, Level::Off).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            end
        })
        .collect();
    assert!(ends.iter().all(|end| !end.is_finished()), "a call returned while the sink was running");
    open.send(()).unwrap();
    ends.into_iter().for_each(|end| end.join().unwrap());
}

#[test]
fn a_new_sink_gets_its_lines_while_the_one_before_still_runs() {
    let log = new_log();
    let (sink, called, open) = gated();
    log.set(Some(sink), Level::Debug).unwrap();
    log.push(Level::Debug, "old".into());
    called.recv_timeout(LONG).unwrap();
    let (sink, received) = lines();
    let set = std::thread::spawn(|| log.set(Some(sink), Level::Debug).unwrap());
    wait_until("the new sink is in place", || {
        log.push(Level::Debug, "new".into());
        received.try_recv().is_ok()
    });
    assert!(!set.is_finished());
    drop(open);
    set.join().unwrap();
}

#[test]
fn a_sink_may_end_or_replace_the_log_and_is_not_called_again() {
    let log = new_log();
    for replaces in [false, true] {
        let calls = Arc::new(AtomicU8::new(0));
        let (ended, done) = channel();
        let its = calls.clone();
        let sink: Sink = Box::new(move |_, _| {
            its.fetch_add(1, Ordering::Relaxed);
            let (sink, _) = lines();
            log.set(replaces.then_some(sink), Level::Info).unwrap();
            ended.send(()).unwrap();
        });
        // The lock keeps the thread from the first line until all are there.
        let state = {
            log.set(Some(sink), Level::Debug).unwrap();
            log.state.lock()
        };
        let delivery = state.delivery.clone().unwrap();
        (0..5).for_each(|_| delivery.push(Level::Debug, "line".into()));
        drop(state);
        done.recv_timeout(LONG).unwrap();
        wait_until("its thread ends", || delivery.is_over());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        let level = if replaces { Level::Info } else { Level::Off };
        assert_eq!(log.level.load(Ordering::Relaxed), level as u8);
    }
    log.set(None, Level::Off).unwrap();
    assert!(log.state.lock().ending.is_empty());
}

#[test]
fn sinks_that_replace_themselves_leave_nothing_behind() {
    let log = new_log();
    fn sink(log: &'static Log, left: u32, done: Sender<usize>) -> Sink {
        Box::new(move |_, _| {
            if left > 0 {
                log.set(Some(sink(log, left - 1, done.clone())), Level::Debug).unwrap();
                log.push(Level::Debug, "next".into());
            } else {
                done.send(log.state.lock().ending.len()).unwrap();
            }
        })
    }
    let (done, ending) = channel();
    log.set(Some(sink(log, 200, done)), Level::Debug).unwrap();
    log.push(Level::Debug, "first".into());
    assert!(ending.recv_timeout(LONG).unwrap() < 100);
    log.set(None, Level::Off).unwrap();
}

#[test]
fn a_sink_may_log() {
    let log = new_log();
    let (sender, received) = channel();
    let sink: Sink = Box::new(move |_, line| {
        if line == "outer" {
            log.push(Level::Info, "inner".into());
        }
        sender.send(line.to_owned()).unwrap();
    });
    log.set(Some(sink), Level::Debug).unwrap();
    log.push(Level::Info, "outer".into());
    for expected in ["outer", "inner"] {
        assert_eq!(received.recv_timeout(LONG).unwrap(), expected);
    }
    log.set(None, Level::Off).unwrap();
}

#[test]
fn a_panic_in_the_sink_ends_that_call_only() {
    /// What is thrown may itself throw when it is dropped.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("dropping what was thrown"));
        }
    }
    let log = new_log();
    let (sender, received) = channel();
    let sink: Sink = Box::new(move |_, line| {
        if line == "throw" {
            std::panic::resume_unwind(Box::new(Bomb));
        }
        sender.send(line.to_owned()).unwrap();
    });
    log.set(Some(sink), Level::Debug).unwrap();
    for line in ["throw", "throw", "fine"] {
        log.push(Level::Debug, line.into());
    }
    log.set(None, Level::Off).unwrap();
    assert_eq!(received.try_iter().collect::<Vec<_>>(), ["fine"]);
}

#[test]
fn lines_beyond_the_bound_are_counted_where_they_were_lost() {
    let log = new_log();
    let (got, called, open) = (Arc::new(Mutex::new(Vec::new())), channel(), channel::<()>());
    let (its, gate) = (got.clone(), Mutex::new(open.1));
    let sink: Sink = Box::new(move |level, line| {
        its.lock().push((level, line.to_owned()));
        let _ = called.0.send(());
        let _ = gate.lock().recv();
    });
    log.set(Some(sink), Level::Debug).unwrap();
    let push = |range: std::ops::Range<usize>| range.for_each(|n| log.push(Level::Debug, n.to_string()));
    push(0..1);
    called.1.recv_timeout(LONG).unwrap(); // 0 is in the sink, the queue is empty
    push(1..MAX + 4); // 3 do not fit
    open.0.send(()).unwrap();
    called.1.recv_timeout(LONG).unwrap(); // 1 is in the sink, there is room for one
    push(MAX + 4..MAX + 6); // of which 1 does not fit
    drop(open.0);
    log.set(None, Level::Off).unwrap();
    let got = std::mem::take(&mut *got.lock());
    let text: Vec<&str> = got.iter().map(|(_, line)| line.as_str()).collect();
    let mut expected: Vec<String> = (0..=MAX).map(|n| n.to_string()).collect();
    expected.push("3 lines of the log were lost here: they came too fast for it".into());
    expected.push((MAX + 4).to_string());
    expected.push("1 lines of the log were lost here: they came too fast for it".into());
    assert_eq!(text[MAX - 3..], expected[MAX - 3..]);
    assert_eq!((text.len(), got[MAX + 1].0), (expected.len(), Level::Warn));
}
#[test]
fn an_environment_that_cannot_be_used_is_named_each_time() {
    let log = new_log();
    let nowhere = value("info", Path::new("/nonexistent/kvconn.log"));
    for bad in ["", "info", "info:", "Info:-", "loud:-", "5:-", " info:-", nowhere.to_str().unwrap()] {
        let e = log.read_environment(Some(bad.into())).unwrap_err();
        assert_eq!(e.status, Status::Invalid, "{bad:?}");
        assert!(e.message.starts_with(&format!("environment variable KVCONN_LOG: {bad:?}")), "{}", e.message);
    }
    assert_eq!(log.read_environment(Some(nowhere)).unwrap_err().os_errno, libc::ENOENT);
    assert!(log.state.lock().delivery.is_none());
    log.read_environment(Some("off:/nonexistent/kvconn.log".into())).unwrap();
    assert!(log.state.lock().delivery.is_none());
    log.read_environment(Some("no longer read".into())).unwrap();
}

#[test]
fn the_environment_sends_the_log_to_a_file_that_grows() {
    let path = file("grows");
    std::fs::write(&path, "before\n").unwrap();
    for _ in 0..2 {
        let log = new_log();
        log.read_environment(Some(value("info", &path))).unwrap();
        assert_eq!(log.level.load(Ordering::Relaxed), Level::Info as u8);
        log.push(Level::Info, "line".into());
        log.set(None, Level::Off).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "before"));
    assert!(lines[1..].iter().all(|l| l.ends_with("info line")), "{text}");
    std::fs::remove_file(&path).unwrap();
    // Standard error is not closed with the log, because it is a duplicate.
    let (sink, level) = file::sink(OsStr::new("error:-")).unwrap();
    assert!(sink.is_some() && level == Level::Error);
    drop(sink);
    // SAFETY: a query.
    assert_ne!(unsafe { libc::fcntl(2, libc::F_GETFD) }, -1);
}

#[test]
fn what_the_caller_sets_goes_before_the_environment() {
    let path = file("ignored");
    for first in [true, false] {
        let log = new_log();
        let (sink, received) = lines();
        if first {
            log.set(Some(sink), Level::Info).unwrap();
            log.read_environment(Some(value("debug", &path))).unwrap();
        } else {
            log.read_environment(Some(value("debug", &path))).unwrap();
            log.set(Some(sink), Level::Info).unwrap();
        }
        assert_eq!(log.level.load(Ordering::Relaxed), Level::Info as u8);
        assert!(!log.by_environment.load(Ordering::Relaxed));
        log.push(Level::Info, "line".into());
        log.set(None, Level::Off).unwrap();
        assert_eq!(received.try_iter().count(), 1);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    std::fs::remove_file(&path).unwrap();
}

/// What needs a process of its own: the process's log, the environment, forks. The test starts itself again, with
/// the variable that makes it do the work.
#[test]
fn a_process_and_its_child_log_apart() {
    if std::env::var_os("KVCONN_LOG_TEST").is_some() {
        return in_a_process_of_its_own();
    }
    let path = file("process");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "log::tests::a_process_and_its_child_log_apart", "--nocapture"])
        .env("KVCONN_LOG_TEST", "1")
        .env(VARIABLE, value("info", &path))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<(&str, &str)> = text
        .lines()
        .map(|line| line.split_once(" kvconn[").and_then(|(_, rest)| rest.split_once("] ")).unwrap())
        .collect();
    let (parent, child) = (lines[0].0, lines[1].0);
    assert_ne!(parent, child);
    let expected = [(parent, "info parent"), (child, "warn child"), (parent, "error parent again")];
    assert_eq!(lines, expected);
}

fn in_a_process_of_its_own() {
    // SAFETY: kills this process when something hangs.
    unsafe { libc::alarm(30) };
    log(Level::Error, || panic!("made although the log is off"));
    from_environment().unwrap();
    from_environment().unwrap();
    log(Level::Debug, || panic!("made although only info is on"));
    log(Level::Off, || panic!("made although it is no level of a line"));
    log(Level::Info, || "parent".into());

    let value = std::env::var_os(VARIABLE).unwrap();
    let path = value.to_str().and_then(|v| v.split_once(':')).unwrap().1;
    wait_until("the line is written", || std::fs::read(path).is_ok_and(|text| !text.is_empty()));

    // As if another thread of the parent were in the middle of something when it forks.
    let held = current().state.lock();
    let held_too = current().environment_read.lock();
    in_child(|| {
        let parents = LOG.load(Ordering::Acquire);
        for _ in 0..100_000 {
            log(Level::Info, || "into nothing".into());
        }
        reset_after_fork();
        let own = LOG.load(Ordering::Acquire);
        reset_after_fork();
        assert!(own != parents && own == LOG.load(Ordering::Acquire));
        assert!(enabled(Level::Info), "the environment asked for it");
        log(Level::Warn, || "child".into());
        set(None, Level::Off).unwrap();
        assert!(!enabled(Level::Error));
    });
    drop((held, held_too));
    log(Level::Error, || "parent again".into());

    // The host's sink stays with the parent; the child may have one of its own, also without a reset.
    let (sink, received) = lines();
    set(Some(sink), Level::Info).unwrap();
    let held = current().state.lock();
    in_child(|| {
        reset_after_fork();
        assert!(!enabled(Level::Error));
    });
    in_child(|| {
        let (sink, received) = lines();
        set(Some(sink), Level::Info).unwrap();
        log(Level::Info, || "mine".into());
        assert_eq!(received.recv_timeout(LONG).unwrap().1, "mine");
    });
    drop(held);
    log(Level::Info, || "theirs".into());
    set(None, Level::Off).unwrap();
    assert_eq!(received.try_iter().map(|(_, line)| line).collect::<Vec<_>>(), ["theirs"]);
}

/// Runs it in a forked child.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the test is the only thread that does anything now, so the child is not surprised by a lock of the
    // allocator or the standard library.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: kills the child when it hangs: an alarm is not inherited.
            unsafe { libc::alarm(20) };
            let fine = std::panic::catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: ends the child without the parent's exit hooks.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) }
        }
        child => {
            let mut status = -1;
            // SAFETY: writes to a live int.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's wait status");
        }
    }
}
