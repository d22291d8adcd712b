//! The libzmq that kvconn bundles (`bundled/zeromq-src`) is complete: what a build with missing macros would silently do
//! without is checked here on the running library.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, mem, ptr, thread};

use kvconn as _;
use zmq_sys as zmq;

/// `ZMQ_OUT_BATCH_SIZE` and `ZMQ_TCP_MAXRT`, which zmq-sys does not know.
const OUT_BATCH_SIZE: u32 = 102;
const TCP_MAXRT: u32 = 80;

/// How long anything may take that needs no time at all.
const PATIENCE: Duration = Duration::from_secs(20);

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

/// Runs `scenario` in a forked child, with the context and the PUSH socket of a connection that its parent goes on using.
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

    // SAFETY: the child calls libzmq, which is the very thing tested, and leaves by _exit. An alarm ends it if it hangs.
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

// ---- a process of its own ------------------------------------------------------------------------------------------

enum Preload {
    Nothing,
    Interposer,
}

/// Runs `scenario` in a copy of this program that runs only the test `name`: alone with its descriptors and threads, free
/// to abort or hang, and with other functions of the C library if need be.
fn in_child(name: &str, preload: Preload, scenario: fn()) {
    const MARK: &str = "KVCONN_TEST_CHILD";
    if env::var_os(MARK).is_some_and(|child| child == name) {
        return scenario();
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact"]).env(MARK, name).stdout(Stdio::piped()).stderr(Stdio::piped());
    let interposer = match preload {
        Preload::Nothing => None,
        Preload::Interposer => Some(build_interposer(name)),
    };
    if let Some(path) = &interposer {
        command.env("LD_PRELOAD", path);
    }
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + 2 * PATIENCE; // the copy says more about what it waits for in vain
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    if let Some(path) = interposer {
        let _ = fs::remove_file(path);
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // A wrong name would run no test at all, with success.
    assert!(
        output.status.success() && text.contains("1 passed"),
        "the copy of this program ended with {}:\n{text}",
        output.status
    );
}

fn build_interposer(name: &str) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bundled_libzmq/interpose.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
    let compiler = env::var_os("CC").unwrap_or("cc".into());
    let status =
        Command::new(compiler).args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).arg(source).status();
    assert!(status.expect("a C compiler").success());
    library
}

fn interposed_wall_clock_runs_backwards() {
    // SAFETY: interpose.c defines it as `void (void)`.
    let function: extern "C" fn() = unsafe { mem::transmute(interposed(c"interpose_wall_clock_runs_backwards")) };
    function();
}

fn interposed_inheritable() -> c_int {
    // SAFETY: interpose.c defines it as `int (void)`.
    let function: extern "C" fn() -> c_int = unsafe { mem::transmute(interposed(c"interpose_inheritable")) };
    function()
}

fn interposed(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!symbol.is_null(), "LD_PRELOAD had no effect");
    symbol
}

// ---- the operating system ------------------------------------------------------------------------------------------

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The descriptors of this process and what they are.
fn descriptors() -> BTreeMap<RawFd, String> {
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_str()?.parse().ok()?, target))
    };
    let mut all: BTreeMap<RawFd, String> =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| link(entry.unwrap())).collect();
    all.retain(|_, target| !target.starts_with("/proc/")); // the one that reads the directory
    all
}

fn descriptor_option(fd: RawFd, level: c_int, option: c_int) -> c_int {
    let mut value: c_int = -1;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes.
    let rc = unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &mut length) };
    assert_eq!(rc, 0);
    value
}

fn peer_port(fd: RawFd) -> u16 {
    // SAFETY: all-zero bytes are a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: `address` has `length` bytes.
    let rc = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut length) };
    assert_eq!((rc, c_int::from(address.sin_family)), (0, libc::AF_INET));
    u16::from_be(address.sin_port)
}

fn gettimeofday() -> Duration {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `time` is valid for writes, and the time zone may be null.
    unsafe { libc::gettimeofday(&mut time, ptr::null_mut()) };
    Duration::from_secs(time.tv_sec as u64)
}

// ---- libzmq --------------------------------------------------------------------------------------------------------

struct Context(*mut c_void);

impl Context {
    fn new() -> Self {
        // SAFETY: has no preconditions.
        let raw = unsafe { zmq::zmq_ctx_new() };
        assert!(!raw.is_null());
        Self(raw)
    }

    fn socket(&self, kind: u32) -> Socket<'_> {
        // SAFETY: the context is alive.
        let raw = unsafe { zmq::zmq_socket(self.0, kind as c_int) };
        assert!(!raw.is_null(), "zmq_socket: errno {}", errno());
        let socket = Socket { raw, context: self };
        socket.set(zmq::ZMQ_LINGER, 0);
        for option in [zmq::ZMQ_SNDTIMEO, zmq::ZMQ_RCVTIMEO] {
            socket.set(option, PATIENCE.as_millis() as c_int);
        }
        socket
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: sockets borrow the context, so all are closed.
        unsafe { zmq::zmq_ctx_term(self.0) };
    }
}

struct Socket<'context> {
    raw: *mut c_void,
    context: &'context Context,
}

impl<'context> Socket<'context> {
    fn set(&self, option: u32, value: c_int) {
        // SAFETY: the value is an int, and so is its size.
        check(unsafe { zmq::zmq_setsockopt(self.raw, option as c_int, (&raw const value).cast(), size_of::<c_int>()) });
    }

    fn set_string(&self, option: u32, value: &CStr) {
        // SAFETY: the value has as many bytes as are counted.
        check(unsafe { zmq::zmq_setsockopt(self.raw, option as c_int, value.as_ptr().cast(), value.count_bytes()) });
    }

    fn get(&self, option: u32) -> c_int {
        let (mut value, mut size) = (0, size_of::<c_int>());
        // SAFETY: `value` has `size` bytes.
        check(unsafe { zmq::zmq_getsockopt(self.raw, option as c_int, (&raw mut value).cast(), &mut size) });
        value
    }

    /// Binds, and returns where.
    fn bind(&self, endpoint: &str) -> String {
        let endpoint = CString::new(endpoint).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_bind(self.raw, endpoint.as_ptr()) });
        self.last_endpoint()
    }

    fn last_endpoint(&self) -> String {
        let mut text = [0_u8; 256];
        let mut size = text.len();
        // SAFETY: `text` has `size` bytes.
        check(unsafe {
            zmq::zmq_getsockopt(self.raw, zmq::ZMQ_LAST_ENDPOINT as c_int, text.as_mut_ptr().cast(), &mut size)
        });
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
    }

    fn connect(&self, endpoint: &str) {
        let endpoint = CString::new(endpoint).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_connect(self.raw, endpoint.as_ptr()) });
    }

    fn try_send(&self, message: &[u8]) -> Result<(), c_int> {
        // SAFETY: the message has as many bytes as are counted.
        let rc = unsafe { zmq::zmq_send(self.raw, message.as_ptr().cast(), message.len(), 0) };
        if rc < 0 { Err(errno()) } else { Ok(()) }
    }

    fn send(&self, message: &[u8]) {
        assert_eq!(self.try_send(message), Ok(()));
    }

    fn try_receive(&self) -> Result<Vec<u8>, c_int> {
        let mut message = [0_u8; 256];
        // SAFETY: `message` has as many bytes as are counted.
        let rc = unsafe { zmq::zmq_recv(self.raw, message.as_mut_ptr().cast(), message.len(), 0) };
        usize::try_from(rc).map(|length| message[..length].to_vec()).map_err(|_| errno())
    }

    fn receive(&self) -> Vec<u8> {
        self.try_receive().unwrap()
    }

    /// A reader of this socket's first events. Of no later ones: libzmq would wait for room to queue them for ever, were the
    /// reader closed first.
    fn monitor(&self) -> Monitor<'context> {
        let events = zmq::ZMQ_EVENT_CONNECTED | zmq::ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        let endpoint = CString::new(format!("inproc://monitor-{:p}", self.raw)).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_socket_monitor(self.raw, endpoint.as_ptr(), events as c_int) });
        let reader = self.context.socket(zmq::ZMQ_PAIR);
        reader.connect(endpoint.to_str().unwrap());
        Monitor(reader)
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        // SAFETY: the socket is open, and nothing uses it after this.
        unsafe { zmq::zmq_close(self.raw) };
    }
}

struct Monitor<'context>(Socket<'context>);

impl Monitor<'_> {
    /// Waits for an event and returns its value.
    fn event(&self, wanted: u32) -> u32 {
        loop {
            let frame = self.0.receive();
            let _endpoint = self.0.receive();
            let event = u16::from_ne_bytes([frame[0], frame[1]]);
            if u32::from(event) == wanted {
                return u32::from_ne_bytes([frame[2], frame[3], frame[4], frame[5]]);
            }
        }
    }
}

fn curve_keys() -> (CString, CString) {
    let (mut public, mut secret) = ([0_u8; 41], [0_u8; 41]);
    // SAFETY: each key is written as 40 characters and a NUL.
    check(unsafe {
        zmq::zmq_curve_keypair(public.as_mut_ptr().cast::<c_char>(), secret.as_mut_ptr().cast::<c_char>())
    });
    [public, secret].map(|key| CStr::from_bytes_until_nul(&key).unwrap().to_owned()).into()
}

#[track_caller]
fn check(rc: c_int) {
    assert!(rc == 0, "libzmq: errno {}", errno());
}

fn errno() -> c_int {
    // SAFETY: has no preconditions.
    unsafe { zmq::zmq_errno() }
}
