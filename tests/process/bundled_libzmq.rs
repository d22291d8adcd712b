//! The libzmq that kvconn bundles (`bundled/zeromq-src`) is complete: what a build with missing macros would silently
//! do without is checked here on the running library.

use std::ffi::{c_int, c_void};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, ptr};

use kvconn as _;
use zmq_sys as zmq;

mod child;
mod messages;
mod raw;
mod system;

use child::*;
use raw::*;
use system::*;

/// `ZMQ_OUT_BATCH_SIZE` and `ZMQ_TCP_MAXRT`, which zmq-sys does not know.
const OUT_BATCH_SIZE: u32 = 102;
const TCP_MAXRT: u32 = 80;

// ---- what is in it -------------------------------------------------------------------------------------------------

#[test]
fn version_is_4_3_5() {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the three pointers are valid for writes.
    unsafe { zmq::zmq_version(&mut major, &mut minor, &mut patch) };
    assert_eq!((major, minor, patch), (4, 3, 5));
}

#[test]
fn draft_option_out_batch_size_is_accepted() {
    let context = Context::new();
    let push = context.socket(zmq::ZMQ_PUSH);
    push.set(OUT_BATCH_SIZE, 65536);
    assert_eq!(push.get(OUT_BATCH_SIZE), 65536);
}

#[test]
fn curve_carries_messages() {
    // SAFETY: the argument is a C string.
    assert_eq!(unsafe { zmq::zmq_has(c"curve".as_ptr()) }, 1);
    let context = Context::new();
    let (server_public, server_secret) = curve_keys();
    let (client_public, client_secret) = curve_keys();

    let pull = context.socket(zmq::ZMQ_PULL);
    pull.set(zmq::ZMQ_CURVE_SERVER, 1);
    pull.set_string(zmq::ZMQ_CURVE_SECRETKEY, &server_secret);
    let push = context.socket(zmq::ZMQ_PUSH);
    push.set_string(zmq::ZMQ_CURVE_SERVERKEY, &server_public);
    push.set_string(zmq::ZMQ_CURVE_PUBLICKEY, &client_public);
    push.set_string(zmq::ZMQ_CURVE_SECRETKEY, &client_secret);
    push.connect(&pull.bind("tcp://127.0.0.1:*"));

    assert_eq!(push.get(zmq::ZMQ_MECHANISM), zmq::ZMQ_CURVE as c_int);
    push.send(b"secret");
    assert_eq!(pull.receive(), b"secret");
}

#[test]
fn interfaces_have_names() {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    assert!(pull.bind("tcp://lo:*").starts_with("tcp://127.0.0.1:"));
}

#[test]
fn threads_have_names() {
    in_child("threads_have_names", Preload::Nothing, || {
        let context = Context::new();
        let _starts_the_threads = context.socket(zmq::ZMQ_PUSH);
        wait_until("the I/O thread and the reaper have their names", || {
            let names: Vec<String> = fs::read_dir("/proc/self/task")
                .unwrap()
                .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
                .collect();
            ["ZMQbg/IO/0\n", "ZMQbg/Reaper\n"].iter().all(|name| names.iter().any(|n| n == name))
        });
    });
}

/// What `note_event` was called with: event and value, the thread's name, and whether two calls overlapped.
#[derive(Default)]
struct Noted {
    events: Mutex<Vec<(u64, u64, String)>>,
    inside: AtomicBool,
    overlapped: AtomicBool,
}

unsafe extern "C" fn note_event(hint: *mut c_void, event: u64, value: u64) {
    // SAFETY: the test keeps it until MONITOR_STOPPED.
    let noted = unsafe { &*hint.cast::<Noted>() };
    noted.overlapped.fetch_or(noted.inside.swap(true, Ordering::SeqCst), Ordering::SeqCst);
    let thread = fs::read_to_string("/proc/thread-self/comm").unwrap();
    noted.events.lock().unwrap().push((event, value, thread.trim().to_owned()));
    noted.inside.store(false, Ordering::SeqCst);
}

#[test]
fn monitor_calls_come_in_order_one_at_a_time_and_stop_with_the_socket() {
    let noted = Noted::default();
    let wait_for = |event: u32| {
        let has = || noted.events.lock().unwrap().iter().any(|(number, ..)| *number == u64::from(event));
        wait_until(&format!("event {event:#x}"), has);
    };
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let push = context.socket(zmq::ZMQ_PUSH);
    push.set(zmq::ZMQ_RECONNECT_IVL, -1);
    // SAFETY: `noted` lives until MONITOR_STOPPED, which is waited for.
    unsafe { push.monitor_call(note_event, (&raw const noted).cast_mut().cast(), zmq::ZMQ_EVENT_ALL) };
    push.connect(&pull.bind("tcp://127.0.0.1:*"));
    wait_for(zmq::ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    drop(pull);
    wait_for(zmq::ZMQ_EVENT_DISCONNECTED);
    assert!(
        !noted.events.lock().unwrap().iter().any(|(event, ..)| *event == u64::from(zmq::ZMQ_EVENT_MONITOR_STOPPED))
    );
    let before = descriptors().len();
    drop(push);
    wait_for(zmq::ZMQ_EVENT_MONITOR_STOPPED);
    assert!(descriptors().len() < before, "the socket's descriptor is closed before the last call");

    let events = noted.events.lock().unwrap();
    let place = |event: u32| events.iter().position(|(number, ..)| *number == u64::from(event)).expect("it came");
    let [connected, ready, lost, stopped] = [
        zmq::ZMQ_EVENT_CONNECTED,
        zmq::ZMQ_EVENT_HANDSHAKE_SUCCEEDED,
        zmq::ZMQ_EVENT_DISCONNECTED,
        zmq::ZMQ_EVENT_MONITOR_STOPPED,
    ]
    .map(place);
    assert!(connected < ready && ready < lost && stopped == events.len() - 1, "{events:?}");
    assert_eq!((&*events[ready].2, &*events[stopped].2), ("ZMQbg/IO/0", "ZMQbg/Reaper"));
    assert!(events[connected].1 > 2, "a descriptor");
    assert!(!noted.overlapped.load(Ordering::SeqCst));
}

#[test]
fn a_monitor_call_that_is_replaced_is_told_that_it_stopped_also_without_an_event_before() {
    let [first, second] = [Noted::default(), Noted::default()];
    let kinds = |noted: &Noted| noted.events.lock().unwrap().iter().map(|(event, ..)| *event).collect::<Vec<_>>();
    let context = Context::new();
    let push = context.socket(zmq::ZMQ_PUSH);
    for noted in [&first, &second] {
        // SAFETY: both live until MONITOR_STOPPED, which is waited for.
        unsafe { push.monitor_call(note_event, ptr::from_ref(noted).cast_mut().cast(), 0) };
    }
    let stopped = [u64::from(zmq::ZMQ_EVENT_MONITOR_STOPPED)];
    assert_eq!((&*kinds(&first), &*kinds(&second)), (&stopped[..], &[][..]));
    drop(push);
    wait_until("the second has stopped", || kinds(&second) == stopped);
}

// ---- descriptors ---------------------------------------------------------------------------------------------------

#[test]
fn tcp_keepalive_is_set_on_the_descriptor() {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let endpoint = pull.bind("tcp://127.0.0.1:*");
    let push = context.socket(zmq::ZMQ_PUSH);
    for (option, value) in [
        (zmq::ZMQ_TCP_KEEPALIVE, 1),
        (zmq::ZMQ_TCP_KEEPALIVE_IDLE, 31),
        (zmq::ZMQ_TCP_KEEPALIVE_INTVL, 7),
        (zmq::ZMQ_TCP_KEEPALIVE_CNT, 4),
        (TCP_MAXRT, 54321),
    ] {
        push.set(option, value);
    }
    let monitor = push.monitor();
    push.connect(&endpoint);
    let fd = monitor.event(zmq::ZMQ_EVENT_CONNECTED) as RawFd;
    monitor.event(zmq::ZMQ_EVENT_HANDSHAKE_SUCCEEDED);

    assert!(endpoint.ends_with(&format!(":{}", peer_port(fd))), "not the connection's descriptor");
    let set = |level, option| descriptor_option(fd, level, option);
    assert_eq!(set(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 31);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 7);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 4);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 54321);
}

#[test]
fn a_socket_costs_one_eventfd() {
    in_child("a_socket_costs_one_eventfd", Preload::Nothing, || {
        let context = Context::new();
        let _starts_the_threads = context.socket(zmq::ZMQ_PUSH);
        let before = descriptors();
        let _socket = context.socket(zmq::ZMQ_PUSH);
        let mut after = descriptors();
        after.retain(|fd, _| !before.contains_key(fd));
        assert_eq!(after.into_values().collect::<Vec<_>>(), ["anon_inode:[eventfd]"]);
    });
}

#[test]
fn no_descriptor_is_inherited_by_a_new_program() {
    in_child("no_descriptor_is_inherited_by_a_new_program", Preload::Interposer, || {
        let before = descriptors();
        let inheritable_before = interposed_inheritable();
        let context = Context::new();
        let abstract_socket = format!("ipc://@kvconn-test-{}", std::process::id());
        let pairs = ["tcp://127.0.0.1:*", &abstract_socket].map(|listen| {
            let pull = context.socket(zmq::ZMQ_PULL);
            let push = context.socket(zmq::ZMQ_PUSH);
            let monitor = push.monitor();
            push.connect(&pull.bind(listen));
            push.send(b"connected");
            assert_eq!(pull.receive(), b"connected");
            (push, monitor, pull)
        });

        let mut opened = descriptors();
        opened.retain(|fd, _| !before.contains_key(fd));
        for kind in ["anon_inode:[eventpoll]", "anon_inode:[eventfd]", "socket:"] {
            assert!(opened.values().any(|link| link.starts_with(kind)), "no {kind} in {opened:?}");
        }
        for (fd, link) in &opened {
            // SAFETY: F_GETFD only reads the flags of a descriptor.
            let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
            assert!(flags & libc::FD_CLOEXEC != 0, "{link} is inherited by programs");
        }
        // Nor in the instant between the call that opened it and an fcntl.
        assert_eq!(interposed_inheritable(), inheritable_before, "opened without close-on-exec");
        // SAFETY: accept fails on descriptor -1, and takes no address.
        unsafe { libc::accept(-1, ptr::null_mut(), ptr::null_mut()) };
        assert_eq!(interposed_inheritable(), inheritable_before + 1, "nothing is interposed");
        drop(pairs);
    });
}

// ---- the wall clock ------------------------------------------------------------------------------------------------

#[test]
fn steps_of_the_wall_clock_block_nothing() {
    in_child("steps_of_the_wall_clock_block_nothing", Preload::Interposer, || {
        let soon = Duration::from_millis(250)..Duration::from_secs(2);
        let context = Context::new();
        let (push, pull) = (context.socket(zmq::ZMQ_PUSH), context.socket(zmq::ZMQ_PULL));
        push.set(zmq::ZMQ_SNDTIMEO, 300);
        pull.set(zmq::ZMQ_RCVTIMEO, 300);
        let handshake = context.socket(zmq::ZMQ_PUSH);
        handshake.set(zmq::ZMQ_HANDSHAKE_IVL, 300);
        handshake.set(zmq::ZMQ_RECONNECT_IVL, -1);

        interposed_wall_clock_runs_backwards();
        let hour = Duration::from_secs(3000);
        let (earlier, later) = (gettimeofday(), gettimeofday());
        assert!(later + hour < earlier, "gettimeofday is not interposed");
        let (earlier, later) = (SystemTime::now(), SystemTime::now());
        assert!(later + hour < earlier, "clock_gettime is not interposed");

        let begin = Instant::now();
        assert_eq!(push.try_send(b"to nobody"), Err(libc::EAGAIN));
        assert!(soon.contains(&begin.elapsed()), "send took {:?}", begin.elapsed());

        let begin = Instant::now();
        assert_eq!(pull.try_receive(), Err(libc::EAGAIN));
        assert!(soon.contains(&begin.elapsed()), "receive took {:?}", begin.elapsed());

        // A timer of the I/O thread: the handshake with a peer that says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let begin = Instant::now();
        handshake.connect(&format!("tcp://{}", silent.local_addr().unwrap()));
        let (mut connection, _) = silent.accept().unwrap();
        connection.read_to_end(&mut Vec::new()).unwrap();
        assert!(soon.contains(&begin.elapsed()), "handshake took {:?}", begin.elapsed());
    });
}

// ---- fork ----------------------------------------------------------------------------------------------------------

#[test]
fn a_forked_child_that_sends_does_no_harm() {
    in_child("a_forked_child_that_sends_does_no_harm", Preload::Nothing, || {
        fork_beside_a_connection(|_, push| {
            for _ in 0..100 {
                // SAFETY: the socket is open, and the child's only thread uses it.
                unsafe { zmq::zmq_send(push, c"child".as_ptr().cast(), 5, zmq::ZMQ_DONTWAIT as c_int) };
            }
        });
    });
}

#[test]
fn a_forked_child_that_closes_does_no_harm() {
    in_child("a_forked_child_that_closes_does_no_harm", Preload::Nothing, || {
        fork_beside_a_connection(|_, push| {
            // SAFETY: the socket is open, and the child does not use it again.
            unsafe { zmq::zmq_close(push) };
        });
    });
}

#[test]
fn a_forked_child_that_connects_does_no_harm() {
    in_child("a_forked_child_that_connects_does_no_harm", Preload::Nothing, || {
        fork_beside_a_connection(|context, _| {
            // SAFETY: the context is alive. A failure to make the socket would only hide what is tested, so the child
            // reports it by its exit status.
            unsafe {
                let socket = zmq::zmq_socket(context, zmq::ZMQ_PUSH as c_int);
                if socket.is_null() || zmq::zmq_connect(socket, c"tcp://127.0.0.1:9".as_ptr()) != 0 {
                    libc::_exit(1);
                }
                zmq::zmq_close(socket);
            }
        });
    });
}

#[test]
fn a_forked_child_that_shuts_down_does_no_harm() {
    in_child("a_forked_child_that_shuts_down_does_no_harm", Preload::Nothing, || {
        fork_beside_a_connection(|context, _| {
            // SAFETY: the context is alive.
            unsafe { zmq::zmq_ctx_shutdown(context) };
        });
    });
}

/// Runs `scenario` in a forked child, with the context and the PUSH socket of a connection that its parent goes on
/// using.
fn fork_beside_a_connection(scenario: fn(*mut c_void, *mut c_void)) {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let push = context.socket(zmq::ZMQ_PUSH);
    push.connect(&pull.bind("tcp://127.0.0.1:*"));
    let exchange = |from: u32| {
        for number in from..from + 100 {
            push.send(&number.to_ne_bytes());
            assert_eq!(pull.receive(), number.to_ne_bytes());
        }
    };
    exchange(0);

    // SAFETY: the child calls libzmq, which is the very thing tested, and leaves by _exit. An alarm ends it if it
    // hangs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: alarm and _exit are async-signal-safe.
        unsafe { libc::alarm(5) };
        scenario(context.0, push.raw);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    // While the child runs, and after it.
    exchange(100);
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's wait status");
    exchange(200);

    let other = context.socket(zmq::ZMQ_PUSH);
    other.connect(&pull.last_endpoint());
    other.send(b"a new socket works as well");
    assert_eq!(pull.receive(), b"a new socket works as well");
}
