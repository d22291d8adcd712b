//! The log never stops the host: R4, R19, R20, R21.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use kvconn::capi::{kvconn_error_t, kvconn_set_log};
use kvconn::error::Status;
use kvconn::log::SINK_WAIT;
use kvconn::process::Process;

use crate::common::engine::READY_LIMIT;
use crate::common::{Engine, OwnProcess, Peer, closed_port, ms, wait_until};
use crate::test_name;

const DEBUG: i32 = 4;
const LONG: Duration = Duration::from_secs(20);

/// What a log function of the host's needs: a lock that other threads of the host take too.
#[derive(Default)]
struct Host {
    lock: Mutex<()>,
    entered: AtomicUsize,
    returned: AtomicUsize,
}

unsafe extern "C-unwind" fn needs_the_lock(_: i32, _: *const c_char, host: *mut c_void) {
    // SAFETY: the test passes a host that lives as long as the process.
    let host = unsafe { &*host.cast::<Host>() };
    host.entered.fetch_add(1, Ordering::SeqCst);
    drop(host.lock.lock());
    host.returned.fetch_add(1, Ordering::SeqCst);
}

fn set_log(host: Option<&'static Host>) -> (i32, String) {
    // SAFETY: numbers and texts, for which zero is valid.
    let mut error: kvconn_error_t = unsafe { std::mem::zeroed() };
    error.struct_size = size_of::<kvconn_error_t>() as u32;
    let user_data = host.map_or(std::ptr::null_mut(), |host| std::ptr::from_ref(host).cast_mut().cast());
    let function = host.map(|_| needs_the_lock as unsafe extern "C-unwind" fn(i32, *const c_char, *mut c_void));
    // SAFETY: a function and its argument that live as long as the process, and a struct of ours.
    let status = unsafe { kvconn_set_log(function, user_data, DEBUG, &mut error) };
    // SAFETY: a text that ends with NUL.
    (status, unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_string_lossy().into_owned())
}

/// Has kvconn log something: a dial that fails.
fn say_something(engine: &Engine) {
    let refused = engine.connect(&closed_port().endpoint(), READY_LIMIT);
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn a_log_function_that_needs_a_lock_of_the_caller_is_waited_for_with_a_bound() {
    if OwnProcess::new(test_name!()).limit(Duration::from_secs(60)).parent() {
        return;
    }
    let (host, engine): (&'static Host, _) = (Box::leak(Box::default()), Engine::new());
    assert_eq!(set_log(Some(host)).0, 0);
    let held = host.lock.lock().unwrap();
    say_something(&engine);
    wait_until("the log function is called", LONG, || host.entered.load(Ordering::SeqCst) == 1);
    for _ in 0..2 {
        let begun = Instant::now();
        let (status, message) = set_log(None);
        assert_eq!(status, Status::Timeout as i32, "{message}");
        assert!(message.contains("has not returned"), "{message}");
        let took = begun.elapsed();
        assert!((SINK_WAIT..SINK_WAIT * 4).contains(&took), "{took:?}");
    }
    // Nothing else of kvconn waits for it either.
    say_something(&engine);
    drop(held);
    assert_eq!(set_log(None), (0, String::new()));
    say_something(&engine);
    // It was in one call, and was never called again.
    let calls = (host.entered.load(Ordering::SeqCst), host.returned.load(Ordering::SeqCst));
    assert_eq!(calls, (1, 1));
}

fn log_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvconn-faults-{}-{name}", std::process::id()))
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_renamed_log_file_is_left_for_a_new_one() {
    let inherited = std::env::var("KVCONN_FAULTS_LOG").map(PathBuf::from);
    let path = inherited.unwrap_or_else(|_| log_file("rotated"));
    let text = path.display().to_string();
    let own = OwnProcess::new(test_name!()).env("KVCONN_FAULTS_LOG", &text).env("KVCONN_LOG", &format!("info:{text}"));
    if own.parent() {
        return;
    }
    let (engine, old) = (Engine::new(), path.with_extension("1"));
    for _ in 0..3 {
        say_something(&engine);
        wait_until("the line is written", LONG, || lines(&path).iter().any(|line| line.contains("CONNECT_FAILED")));
        let before = lines(&path).len();
        std::fs::rename(&path, &old).unwrap();
        say_something(&engine);
        wait_until("there is a new file", LONG, || !lines(&path).is_empty());
        assert_eq!(lines(&old).len(), before, "the old file goes on");
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::remove_file(&old).unwrap();
}

#[test]
fn a_bad_log_setting_never_stops_an_engine() {
    let directory = std::env::temp_dir().display().to_string();
    let directory = format!("info:{directory}");
    let bad = ["info:/nonexistent/x.log", "info", "loud:-", "", "info:", "info:/proc/version", &directory];
    for value in bad {
        let Some(child) = OwnProcess::new(test_name!()).env("KVCONN_LOG", value).run() else {
            let (engine, peer) = (Engine::new(), Peer::any());
            let conn = engine.ready(peer.endpoint());
            assert_eq!(engine.send(&conn, &[b"goes on"], ms(5000)).unwrap(), 1);
            peer.wait_received(1, LONG);
            // Makes a line, which cannot be written where the file could be opened.
            say_something(&engine);
            wait_until("the line is given up", LONG, || kvconn::log::failures() > 0);
            let default = Process::current().unwrap().manager(kvconn::ids::ManagerId::NONE).unwrap();
            let metrics = default.metrics_text().unwrap();
            let failures = metrics.lines().find_map(|line| line.strip_prefix("kvconn_log_failures_total "));
            assert!(failures.is_some_and(|count| count != "0"), "{metrics}");
            return;
        };
        assert!(child.status.success(), "{value:?}: {child:?}");
        let told: Vec<_> = child.stderr.lines().filter(|line| line.contains("KVCONN_LOG")).collect();
        assert_eq!(told.len(), 1, "{value:?}: {child:?}");
        assert!(told[0].starts_with("kvconn: "), "{told:?}");
    }
}

#[test]
fn a_standard_error_that_nobody_reads_does_not_stop_it_either() {
    if OwnProcess::new(test_name!()).env("KVCONN_LOG", "loud:-").parent() {
        return;
    }
    let mut pipe = [0; 2];
    // SAFETY: an array of two, descriptors of ours, and the disposition that a C program has.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        libc::close(pipe[0]);
        assert_eq!(libc::dup2(pipe[1], 2), 2);
    }
    let peer = Peer::any();
    Engine::new().ready(peer.endpoint());
}

#[test]
fn a_misspelt_variable_is_reported_once_and_settings_have_sources() {
    let inherited = std::env::var("KVCONN_FAULTS_LOG").map(PathBuf::from);
    let path = inherited.unwrap_or_else(|_| log_file("variables"));
    let text = path.display().to_string();
    let own = OwnProcess::new(test_name!())
        .env("KVCONN_FAULTS_LOG", &text)
        .env("KVCONN_LOG", &format!("info:{text}"))
        .env("KVCONN_SEND_HWN", "5")
        .env("KVCONN_SEND_HWM", "77");
    if own.parent() {
        return;
    }
    let process = Process::current().unwrap();
    let default = process.manager(kvconn::ids::ManagerId::NONE).unwrap();
    default.configure(&crate::common::engine::options(&[("stall_ms", "1234")])).unwrap();
    let engine = Engine::with(&[("max_failures", "7")]);
    say_something(&engine);
    wait_until("the log is written", LONG, || lines(&path).iter().any(|line| line.contains("CONNECT_FAILED")));
    let told: Vec<_> = lines(&path).into_iter().filter(|line| line.contains("KVCONN_SEND_HW")).collect();
    assert!(told.len() == 1 && told[0].contains(" warn ") && told[0].contains("KVCONN_SEND_HWN"), "{told:?}");

    let (default, own) = (default.describe(), engine.describe());
    let line = |text: &str, begin: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin:?} in {text}")).to_owned()
    };
    assert!(line(&default, "settings from the environment:").contains(" send_hwm=77"), "{default}");
    assert!(line(&default, "settings from kvconn_configure:").contains(" stall_ms=1234"), "{default}");
    assert!(line(&default, "settings at their defaults:").contains(" max_failures=2"), "{default}");
    assert!(line(&own, "settings from kvconn_manager_create:").contains(" max_failures=7"), "{own}");
    assert!(line(&own, "settings from the environment:").contains(" send_hwm=77"), "{own}");
    std::fs::remove_file(&path).unwrap();
}

/// R4's kind: a release function that does not return, or waits for a lock of the caller's, holds up no call for longer
/// than its deadline.
#[test]
fn a_release_function_that_does_not_return_holds_up_no_call() {
    if OwnProcess::new(test_name!()).limit(Duration::from_secs(90)).parent() {
        return;
    }
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    let (entered, in_release) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let release = Box::new(move |_, _, _| {
        entered.send(()).unwrap();
        let _ = gate.recv();
    });
    let bytes: Arc<[u8]> = vec![7; 100_000].into();
    // SAFETY: `bytes` outlives the process's use of it: it is leaked.
    let frame: &'static [u8] = unsafe { &*Arc::into_raw(bytes) };
    // SAFETY: as above.
    unsafe { conn.send_owned(&[std::ptr::from_ref(frame)], Some(release), crate::common::engine::after(ms(5000))) }
        .unwrap();
    in_release.recv_timeout(LONG).expect("the release function is called");
    let bounded = |what: &str, limit: Duration, call: &dyn Fn()| crate::common::within(limit + ms(3000), what, call);
    let process = Process::current().unwrap();
    let after = crate::common::engine::after;
    bounded("describe", ms(0), &|| drop(engine.describe()));
    bounded("wait_released", ms(500), &|| {
        let waited = conn.wait_released(0, after(ms(500)));
        assert_eq!(waited.unwrap_err().status, Status::Timeout);
    });
    bounded("set_log", SINK_WAIT, &|| drop(set_log(None)));
    bounded("disconnect_all", ms(500), &|| drop(engine.disconnect_all(after(ms(500)))));
    bounded("manager_destroy", ms(500), &|| drop(process.destroy_manager(engine.id(), after(ms(500)))));
    bounded("shutdown", ms(500), &|| drop(process.shutdown(after(ms(500)))));
    drop(open);
}
