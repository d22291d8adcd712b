use std::ffi::OsStr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::UNIX_EPOCH;

use super::sink_thread::CAPACITY;
use super::*;

const LONG: Duration = Duration::from_secs(20);

/// A logger of the test's own: the process's has one level for all tests.
fn new_logger() -> &'static Logger {
    Box::leak(Box::new(Logger::new(Box::leak(Box::default()))))
}

/// A sink that passes lines on, and what it passes them to.
fn lines() -> (Sink, Receiver<(Level, String)>) {
    let (sender, receiver) = channel();
    (Box::new(move |level, line| sender.send((level, line.into())).unwrap()), receiver)
}

/// A sink that reports its call, and returns when the sender is used or dropped.
fn gated() -> (Sink, Receiver<String>, Sender<()>) {
    let (sender, receiver) = channel();
    let (open, gate) = channel();
    let sink: Sink = Box::new(move |_, line| {
        let _ = sender.send(line.into());
        let _ = gate.recv();
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
    let logger = new_logger();
    let (sender, receiver) = channel();
    let sink: Sink = Box::new(move |level, line| {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        // SAFETY: takes and changes nothing.
        sender.send((level, line.to_owned(), name, unsafe { libc::gettid() })).unwrap();
    });
    logger.set(Some(sink), Level::Info).unwrap();
    assert_eq!(logger.level.load(Ordering::Relaxed), Level::Info as u8);
    logger.push(Level::Info, "first".into());
    logger.push(Level::Error, "a reason\nof two lines\0".into());
    logger.set(None, Level::Debug).unwrap();
    assert_eq!(logger.level.load(Ordering::Relaxed), Level::Off as u8);
    logger.push(Level::Error, "nobody wants it".into());
    let got: Vec<_> = receiver.try_iter().collect();
    let task = got[0].3;
    let expected = [(Level::Info, "first"), (Level::Error, "a reason of two lines ")]
        .map(|(level, line)| (level, line.to_owned(), "kvconn-log".to_owned(), task));
    assert_eq!(got, expected);
    wait_until("its thread is gone", || !Path::new(&format!("/proc/self/task/{task}")).exists());
}

#[test]
fn the_sink_before_gets_everything_and_is_dropped() {
    let logger = new_logger();
    let (got, alive) = (Arc::new(AtomicU8::new(0)), Arc::new(()));
    for _ in 0..3 {
        got.store(0, Ordering::Relaxed);
        let its = (got.clone(), alive.clone());
        let sink: Sink = Box::new(move |_, _| {
            std::thread::sleep(Duration::from_millis(2));
            its.0.fetch_add(1, Ordering::Relaxed);
            let _ = &its.1;
        });
        logger.set(Some(sink), Level::Debug).unwrap();
        (0..20).for_each(|_| logger.push(Level::Debug, "line".into()));
        logger.set(None, Level::Off).unwrap();
        assert_eq!((got.load(Ordering::Relaxed), Arc::strong_count(&alive)), (20, 1));
    }
}

#[test]
fn a_sink_that_does_not_return_is_waited_for_with_a_bound_and_not_called_again() {
    let logger = new_logger();
    let (sink, called, open) = gated();
    logger.set(Some(sink), Level::Debug).unwrap();
    (0..3).for_each(|n| logger.push(Level::Debug, n.to_string()));
    assert_eq!(called.recv_timeout(LONG).unwrap(), "0");
    let (new, received) = lines();
    let begun = Instant::now();
    let waited = std::thread::scope(|scope| {
        let set = scope.spawn(|| logger.set(Some(new), Level::Debug));
        // The new sink gets its lines while the call waits for the one before.
        wait_until("the new sink is in place", || {
            logger.push(Level::Debug, "new".into());
            received.try_recv().is_ok()
        });
        assert!(!set.is_finished() || begun.elapsed() > SINK_WAIT);
        set.join().unwrap().unwrap_err()
    });
    assert_eq!((waited.status, begun.elapsed() < SINK_WAIT * 5), (Status::Timeout, true), "{waited:?}");
    // Another call waits for it as well.
    assert_eq!(logger.set(None, Level::Off).unwrap_err().status, Status::Timeout);
    drop(open);
    logger.set(None, Level::Off).unwrap();
    assert_eq!(called.try_iter().count(), 0, "called after the call that ended it had returned");
    wait_until("nothing of it is left", || {
        logger.set(None, Level::Off).unwrap();
        logger.state.lock().ending.is_empty()
    });
}

#[test]
fn a_backlog_is_given_up_when_the_time_is_over() {
    let logger = new_logger();
    let calls = Arc::new(AtomicU64::new(0));
    let its = calls.clone();
    let sink: Sink = Box::new(move |_, _| {
        its.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
    });
    logger.set(Some(sink), Level::Debug).unwrap();
    (0..CAPACITY).for_each(|_| logger.push(Level::Debug, "line".into()));
    let begun = Instant::now();
    // TIMEOUT when it ended within a call, OK when between two.
    let _ = logger.set(None, Level::Off);
    assert!(begun.elapsed() < SINK_WAIT * 5, "{:?}", begun.elapsed());
    let last = calls.load(Ordering::SeqCst);
    wait_until("its thread ends", || logger.set(None, Level::Off).is_ok() && logger.state.lock().ending.is_empty());
    assert!(calls.load(Ordering::SeqCst) <= last && last < CAPACITY as u64, "{last}");
}

#[test]
fn a_sink_may_end_or_replace_the_log_and_is_not_called_again() {
    let logger = new_logger();
    for replaces in [false, true] {
        let calls = Arc::new(AtomicU8::new(0));
        let (begin, begun) = channel::<()>();
        let (ended, done) = channel();
        let its = calls.clone();
        let sink: Sink = Box::new(move |_, _| {
            its.fetch_add(1, Ordering::Relaxed);
            let _ = begun.recv();
            let (sink, _) = lines();
            ended.send(logger.set(replaces.then_some(sink), Level::Info)).unwrap();
        });
        logger.set(Some(sink), Level::Debug).unwrap();
        (0..5).for_each(|_| logger.push(Level::Debug, "line".into()));
        begin.send(()).unwrap();
        done.recv_timeout(LONG).unwrap().unwrap();
        wait_until("its thread ends", || logger.state.lock().ending.iter().all(|old| old.is_over()));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        let level = if replaces { Level::Info } else { Level::Off };
        assert_eq!(logger.level.load(Ordering::Relaxed), level as u8);
    }
    logger.set(None, Level::Off).unwrap();
}

#[test]
fn sinks_that_replace_themselves_leave_nothing_behind() {
    fn sink(logger: &'static Logger, left: u32, done: Sender<usize>) -> Sink {
        Box::new(move |_, _| {
            if left > 0 {
                logger.set(Some(sink(logger, left - 1, done.clone())), Level::Debug).unwrap();
                logger.push(Level::Debug, "next".into());
            } else {
                done.send(logger.state.lock().ending.len()).unwrap();
            }
        })
    }
    let logger = new_logger();
    let (done, ending) = channel();
    logger.set(Some(sink(logger, 200, done)), Level::Debug).unwrap();
    logger.push(Level::Debug, "first".into());
    assert!(ending.recv_timeout(LONG).unwrap() < 100);
    logger.set(None, Level::Off).unwrap();
}

#[test]
fn a_sink_may_log_and_a_panic_in_it_ends_that_call_only() {
    /// What is thrown may itself throw when it is dropped.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("dropping what was thrown"));
        }
    }
    let logger = new_logger();
    let (sender, received) = channel();
    let sink: Sink = Box::new(move |_, line| {
        match line {
            "throw" => std::panic::resume_unwind(Box::new(Bomb)),
            "outer" => logger.push(Level::Info, "inner".into()),
            _ => {}
        }
        sender.send(line.to_owned()).unwrap();
    });
    logger.set(Some(sink), Level::Debug).unwrap();
    ["throw", "throw", "outer"].into_iter().for_each(|line| logger.push(Level::Debug, line.into()));
    for expected in ["outer", "inner"] {
        assert_eq!(received.recv_timeout(LONG).unwrap(), expected);
    }
    logger.set(None, Level::Off).unwrap();
}

#[test]
fn dropped_lines_are_counted_and_reported_where_they_are_missing() {
    let logger = new_logger();
    let (open, gate) = channel::<()>();
    let (called, calls) = channel();
    let sink: Sink = Box::new(move |level, line| {
        called.send((level, line.to_owned())).unwrap();
        let _ = gate.recv();
    });
    logger.set(Some(sink), Level::Debug).unwrap();
    let before = dropped();
    let push = |range: std::ops::Range<usize>| range.for_each(|n| logger.push(Level::Debug, n.to_string()));
    push(0..1);
    let mut got = vec![calls.recv_timeout(LONG).unwrap()]; // 0 is in the sink, the queue is empty
    push(1..CAPACITY + 4); // 3 do not fit
    for _ in 0..2 {
        open.send(()).unwrap();
        got.push(calls.recv_timeout(LONG).unwrap());
    }
    // 1 and 2 have been taken, there is room for two: the report and one line.
    push(CAPACITY + 4..CAPACITY + 6);
    drop(open);
    logger.set(None, Level::Off).unwrap();
    got.extend(calls.try_iter());
    let report =
        |n| (Level::Warn, format!("{n} lines of the log were dropped here: they came faster than the log takes them"));
    let mut expected: Vec<_> = (0..=CAPACITY).map(|n| (Level::Debug, n.to_string())).collect();
    expected.extend([report(3), (Level::Debug, (CAPACITY + 4).to_string()), report(1)]);
    assert_eq!(got[CAPACITY - 3..], expected[CAPACITY - 3..]);
    assert_eq!(got.len(), expected.len());
    assert!(dropped() - before >= 4);
}

#[test]
fn a_bad_environment_leaves_the_log_off_and_is_counted() {
    let directory = std::env::temp_dir();
    let mut bad: Vec<OsString> =
        ["", "info", "info:", "Info:-", "loud:-", "5:-", " info:-"].into_iter().map(Into::into).collect();
    bad.extend([value("info", Path::new("/nonexistent/kvconn.log")), value("info", &directory)]);
    for value in bad {
        let (logger, before) = (new_logger(), failures());
        logger.read_environment(Some(value.clone()));
        assert!(logger.state.lock().channel.is_none() && failures() > before, "{value:?}");
        // Read once: it does not get better.
        let after = file("never-read");
        logger.read_environment(Some(self::value("info", &after)));
        assert!(!after.exists());
    }
    let logger = new_logger();
    logger.read_environment(Some("off:/nonexistent/kvconn.log".into()));
    assert!(logger.state.lock().channel.is_none());
}

#[test]
fn a_named_pipe_that_nobody_reads_is_refused_at_once() {
    use std::os::unix::ffi::OsStrExt;
    let path = file("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let begun = Instant::now();
    let refused = file::sink(&value("info", &path)).map(drop).expect_err("nobody reads it");
    assert_eq!((refused.os_errno, begun.elapsed() < Duration::from_secs(5)), (libc::ENXIO, true), "{refused:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_line_has_time_process_level_and_text() {
    let at = UNIX_EPOCH + Duration::from_micros(1_709_210_096_000_789);
    let expected = format!("2024-02-29T12:34:56.000789Z kvconn[{}] warn a b\n", std::process::id());
    assert_eq!(file::line(at, Level::Warn, "a b"), expected);
}

#[test]
fn the_file_grows_and_follows_its_name() {
    let (path, rotated) = (file("grows"), file("grows.1"));
    std::fs::write(&path, "before\n").unwrap();
    let log = |text: &str| {
        let logger = new_logger();
        logger.read_environment(Some(value("info", &path)));
        assert_eq!(logger.level.load(Ordering::Relaxed), Level::Info as u8);
        logger.push(Level::Info, text.into());
        wait_until("the line is written", || std::fs::read_to_string(&path).unwrap().ends_with(&format!("{text}\n")));
        logger
    };
    log("one").set(None, Level::Off).unwrap();
    let logger = log("two");
    // As logrotate does it, without a copy and without a signal.
    std::fs::rename(&path, &rotated).unwrap();
    logger.push(Level::Info, "three".into());
    wait_until("there is a new file", || {
        std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with("info three\n"))
    });
    // And with a new file that it has made itself.
    std::fs::rename(&path, &rotated).unwrap();
    std::fs::write(&path, "made\n").unwrap();
    logger.push(Level::Info, "four".into());
    logger.set(None, Level::Off).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("made\n") && text.ends_with("info four\n") && text.lines().count() == 2, "{text}");
    assert_eq!(std::fs::read_to_string(&rotated).unwrap().lines().count(), 1);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&rotated).unwrap();
    // Standard error is not closed with the log, because it is a duplicate.
    let (sink, level) = file::sink(OsStr::new("error:-")).unwrap();
    assert!(sink.is_some() && level == Level::Error);
    drop(sink);
    // SAFETY: a query.
    assert_ne!(unsafe { libc::fcntl(2, libc::F_GETFD) }, -1);
}

#[test]
fn a_file_that_cannot_be_opened_again_goes_on() {
    let directory = file("directory");
    std::fs::create_dir(&directory).unwrap();
    let moved = file("moved");
    let logger = new_logger();
    logger.read_environment(Some(value("info", &directory.join("log"))));
    std::fs::rename(&directory, &moved).unwrap();
    let before = failures();
    logger.push(Level::Info, "line".into());
    logger.set(None, Level::Off).unwrap();
    assert!(std::fs::read_to_string(moved.join("log")).unwrap().ends_with("info line\n"));
    assert!(failures() > before);
    std::fs::remove_dir_all(moved).unwrap();
}

#[test]
fn what_the_caller_sets_goes_before_the_environment() {
    let path = file("ignored");
    for first in [true, false] {
        let logger = new_logger();
        let (sink, received) = lines();
        if first {
            logger.set(Some(sink), Level::Info).unwrap();
            logger.read_environment(Some(value("debug", &path)));
        } else {
            logger.read_environment(Some(value("debug", &path)));
            logger.set(Some(sink), Level::Info).unwrap();
        }
        assert_eq!(logger.level.load(Ordering::Relaxed), Level::Info as u8);
        assert!(!logger.by_environment.load(Ordering::Relaxed));
        logger.push(Level::Info, "line".into());
        logger.set(None, Level::Off).unwrap();
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
    from_environment();
    from_environment();
    log(Level::Debug, || panic!("made although only info is on"));
    log(Level::Off, || panic!("made although it is no level of a line"));
    log(Level::Info, || "parent".into());

    let value = std::env::var_os(VARIABLE).unwrap();
    let path = value.to_str().and_then(|v| v.split_once(':')).unwrap().1;
    wait_until("the line is written", || std::fs::read(path).is_ok_and(|text| !text.is_empty()));

    // As if another thread of the parent were in the middle of something when it forks.
    let held = current().state.lock();
    in_child(|| {
        let parents = LOGGER.load(Ordering::Acquire);
        for _ in 0..100_000 {
            log(Level::Info, || "into nothing".into());
        }
        reset_after_fork();
        let own = LOGGER.load(Ordering::Acquire);
        reset_after_fork();
        assert!(own != parents && own == LOGGER.load(Ordering::Acquire));
        assert!(enabled(Level::Info), "the environment asked for it");
        log(Level::Warn, || "child".into());
        set(None, Level::Off).unwrap();
        assert!(!enabled(Level::Error));
    });
    drop(held);
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
