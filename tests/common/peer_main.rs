//! What runs in a peer's process. The test binary is started again for this one entry; see `process.rs`.
//!
//! The control socket is descriptor 0. One line in, one line out: `ok …` or `error …`. Its end is the process's end.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_short, c_void};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::peer::Message;
use super::process::ROLE;

/// Messages read before the control socket is looked at again.
const BURST: usize = 512;

/// The test runner's name of the entry below.
pub fn entry() -> String {
    let module = module_path!().split_once("::").map_or("", |(_, rest)| rest);
    format!("{module}::this_is_the_process_of_a_peer")
}

#[test]
#[ignore = "an entry for the peers that other tests start"]
fn this_is_the_process_of_a_peer() {
    if let Ok(role) = std::env::var(ROLE) {
        play(&role);
    }
}

/// Is that peer, to the process's end.
pub fn play(role: &str) -> ! {
    let control = Control::new();
    match role {
        "pull" => Pull::run(control),
        "raw" => super::raw_peer::run(control),
        "tcp" => super::wrong_peer::run(control),
        _ => panic!("no peer plays the role {role}"),
    }
    std::process::exit(0);
}

/// The child's end of the control socket.
pub struct Control {
    stream: UnixStream,
    line: Vec<u8>,
}

impl Control {
    pub const DESCRIPTOR: c_int = 0;

    fn new() -> Control {
        // SAFETY: descriptor 0 of a peer's process is the socket pair's end, and nothing else here uses it.
        let stream = unsafe { UnixStream::from_raw_fd(Control::DESCRIPTOR) };
        Control { stream, line: Vec::new() }
    }

    /// The next command; waits for it. Ends the process when the test is gone.
    pub fn command(&mut self) -> Vec<String> {
        use std::io::Read;
        let mut byte = [0];
        self.line.clear();
        loop {
            match self.stream.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => break,
                Ok(1) => self.line.push(byte[0]),
                _ => std::process::exit(0),
            }
        }
        let text = String::from_utf8_lossy(&self.line);
        text.split(' ').map(str::to_string).collect()
    }

    pub fn ok(&mut self, text: &str) {
        self.put(format!("ok {text}\n").as_bytes());
    }

    pub fn error(&mut self, text: &str) {
        self.put(format!("error {text}\n").as_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.stream.write_all(bytes).is_err() {
            std::process::exit(0);
        }
    }

    fn messages(&mut self, messages: &[Message]) {
        self.ok(&messages.len().to_string());
        let mut block = Vec::new();
        let length = |value: usize| u32::try_from(value).expect("below 4 GiB").to_le_bytes();
        for message in messages {
            block.extend(length(message.len()));
            for frame in message {
                block.extend(length(frame.len()));
                block.extend(frame);
                if block.len() > 1 << 20 {
                    self.put(&block);
                    block.clear();
                }
            }
        }
        self.put(&block);
    }
}

struct Pull {
    context: *mut c_void,
    socket: *mut c_void,
    monitor: *mut c_void,
    monitors: u32,
    kind: c_int,
    bind: String,
    count: usize,
    rcvhwm: c_int,
    rcvbuf: c_int,
    heartbeat: c_int,
    curve_secret: Option<CString>,
    endpoints: Vec<String>,
    delay: Duration,
    next_read: Instant,
    paused: bool,
    log: Option<Vec<Message>>,
    partial: Message,
    frames: u64,
    bytes: u64,
    messages: u64,
    accepted: u64,
    handshakes: u64,
    disconnected: u64,
}

impl Pull {
    fn run(mut control: Control) {
        let words = control.command();
        let [listen, socket, bind, endpoints, rcvhwm, rcvbuf, delay, heartbeat, log, paused, secret] = &words[..]
        else {
            return control.error(&format!("not a listen command: {words:?}"));
        };
        assert_eq!(listen, "listen");
        let int = |text: &String| -> i32 { text.parse().expect("a number") };
        // SAFETY: the context and its sockets are used by this one thread.
        let context = unsafe { zmq_sys::zmq_ctx_new() };
        assert!(!context.is_null(), "zmq_ctx_new: {}", zmq_error());
        // SAFETY: the context is fresh; a larger limit of sockets is harmless.
        unsafe { zmq_sys::zmq_ctx_set(context, zmq_sys::ZMQ_MAX_SOCKETS as c_int, 4096) };
        let mut pull = Pull {
            context,
            socket: std::ptr::null_mut(),
            monitor: std::ptr::null_mut(),
            monitors: 0,
            kind: socket_type(socket),
            bind: bind.clone(),
            count: endpoints.parse().expect("a number"),
            rcvhwm: int(rcvhwm),
            rcvbuf: int(rcvbuf),
            heartbeat: int(heartbeat),
            curve_secret: (secret != "-").then(|| CString::new(secret.as_str()).expect("a key")),
            endpoints: Vec::new(),
            delay: Duration::from_micros(delay.parse().expect("a number")),
            next_read: Instant::now(),
            paused: paused == "1",
            log: (log == "1").then(Vec::new),
            partial: Message::new(),
            frames: 0,
            bytes: 0,
            messages: 0,
            accepted: 0,
            handshakes: 0,
            disconnected: 0,
        };
        match pull.open() {
            Ok(()) => control.ok(&pull.endpoints.join(" ")),
            Err(error) => return control.error(&error),
        }
        pull.serve(control);
    }

    /// A new socket with its monitor, bound to the endpoints of the first, or to those the kernel chooses.
    fn open(&mut self) -> Result<(), String> {
        // SAFETY: the context lives until the process ends.
        self.socket = unsafe { zmq_sys::zmq_socket(self.context, self.kind) };
        if self.socket.is_null() {
            return Err(format!("zmq_socket: {}", zmq_error()));
        }
        self.set(zmq_sys::ZMQ_RCVHWM as c_int, self.rcvhwm);
        self.set(zmq_sys::ZMQ_LINGER as c_int, 0);
        self.set(zmq_sys::ZMQ_IPV6 as c_int, 1);
        if self.kind == zmq_sys::ZMQ_SUB as c_int {
            self.set_bytes(zmq_sys::ZMQ_SUBSCRIBE as c_int, &[]);
        }
        if self.rcvbuf > 0 {
            self.set(zmq_sys::ZMQ_RCVBUF as c_int, self.rcvbuf);
        }
        if self.heartbeat > 0 {
            self.set(zmq_sys::ZMQ_HEARTBEAT_IVL as c_int, self.heartbeat);
            // A peer that was stopped must not find its own heartbeats overdue.
            self.set(zmq_sys::ZMQ_HEARTBEAT_TIMEOUT as c_int, 600_000);
        }
        if let Some(secret) = self.curve_secret.clone() {
            self.set(zmq_sys::ZMQ_CURVE_SERVER as c_int, 1);
            self.set_bytes(zmq_sys::ZMQ_CURVE_SECRETKEY as c_int, secret.as_bytes());
        }
        self.watch();
        if self.endpoints.is_empty() {
            for _ in 0..self.count {
                self.bind(&self.bind.clone())?;
                self.endpoints.push(self.last_endpoint());
            }
        } else {
            for endpoint in self.endpoints.clone() {
                self.bind(&endpoint)?;
            }
        }
        Ok(())
    }

    /// Returns when libzmq has really freed the socket. Its monitor's reader must live until then: libzmq's I/O
    /// thread would wait for ever on an event that is never read.
    fn close(&mut self) {
        // SAFETY: the socket is this thread's own and open.
        unsafe { zmq_sys::zmq_close(self.socket) };
        let begun = Instant::now();
        while self.is_monitored() {
            self.read_monitor();
            assert!(begun.elapsed() < Duration::from_secs(5), "libzmq does not close the socket");
            std::thread::sleep(Duration::from_micros(100));
        }
        // SAFETY: the reader is this thread's own and open; nothing writes to it any more.
        unsafe { zmq_sys::zmq_close(self.monitor) };
        self.partial.clear();
    }

    /// Whether the monitor's writing end still lives; it goes with the socket. (The event MONITOR_STOPPED is no proof:
    /// it is dropped together with that end.) A PAIR can be written to as long as it has another end.
    fn is_monitored(&self) -> bool {
        let (mut events, mut size) = (0 as c_int, std::mem::size_of::<c_int>());
        // SAFETY: the reader is open; the option is an int.
        let result = unsafe {
            let option = zmq_sys::ZMQ_EVENTS as c_int;
            zmq_sys::zmq_getsockopt(self.monitor, option, (&raw mut events).cast(), &mut size)
        };
        assert_eq!(result, 0, "ZMQ_EVENTS: {}", zmq_error());
        events & zmq_sys::ZMQ_POLLOUT as c_int != 0
    }

    /// Port closing is not instant in libzmq, so an address in use is tried again for a while.
    fn bind(&self, endpoint: &str) -> Result<(), String> {
        let text = CString::new(endpoint).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        // SAFETY: the socket is open, the text ends with NUL.
        while unsafe { zmq_sys::zmq_bind(self.socket, text.as_ptr()) } != 0 {
            // SAFETY: no argument.
            let in_use = unsafe { zmq_sys::zmq_errno() } == libc::EADDRINUSE;
            if !in_use || begun.elapsed() > Duration::from_secs(5) {
                return Err(format!("binding {endpoint}: {}", zmq_error()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn last_endpoint(&self) -> String {
        let mut text = [0u8; 256];
        let mut size = text.len();
        // SAFETY: the buffer has `size` bytes; libzmq writes a NUL-terminated text.
        let result = unsafe {
            zmq_sys::zmq_getsockopt(
                self.socket,
                zmq_sys::ZMQ_LAST_ENDPOINT as c_int,
                text.as_mut_ptr().cast(),
                &mut size,
            )
        };
        assert_eq!(result, 0, "ZMQ_LAST_ENDPOINT: {}", zmq_error());
        let text = CStr::from_bytes_until_nul(&text).expect("a terminated text");
        text.to_string_lossy().into_owned()
    }

    /// Starts a monitor for accepted, handshaken and ended connections.
    fn watch(&mut self) {
        self.monitors += 1;
        let address = CString::new(format!("inproc://monitor-{}", self.monitors)).expect("no NUL");
        let events =
            zmq_sys::ZMQ_EVENT_ACCEPTED | zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED | zmq_sys::ZMQ_EVENT_DISCONNECTED;
        // SAFETY: sockets and context are open and this thread's own; the option is an int.
        unsafe {
            self.monitor = zmq_sys::zmq_socket(self.context, zmq_sys::ZMQ_PAIR as c_int);
            assert!(!self.monitor.is_null(), "zmq_socket: {}", zmq_error());
            let unlimited: c_int = 0;
            zmq_sys::zmq_setsockopt(
                self.monitor,
                zmq_sys::ZMQ_RCVHWM as c_int,
                (&raw const unlimited).cast(),
                std::mem::size_of::<c_int>(),
            );
            zmq_sys::zmq_connect(self.monitor, address.as_ptr());
            let result = zmq_sys::zmq_socket_monitor(self.socket, address.as_ptr(), events as c_int);
            assert_eq!(result, 0, "zmq_socket_monitor: {}", zmq_error());
        }
    }

    fn set(&self, option: c_int, value: c_int) {
        self.set_bytes(option, &value.to_ne_bytes());
    }

    fn set_bytes(&self, option: c_int, value: &[u8]) {
        // SAFETY: the socket is open; the value is read for its length.
        let result = unsafe { zmq_sys::zmq_setsockopt(self.socket, option, value.as_ptr().cast(), value.len()) };
        assert_eq!(result, 0, "socket option {option}: {}", zmq_error());
    }

    fn serve(&mut self, mut control: Control) {
        loop {
            let now = Instant::now();
            let due = now >= self.next_read;
            let reading = !self.paused && due;
            let timeout = match due || self.paused {
                true => -1,
                false => (self.next_read - now).as_millis() as c_long + 1,
            };
            let item = |socket, fd, events| zmq_sys::zmq_pollitem_t { socket, fd, events, revents: 0 };
            let pollin = zmq_sys::ZMQ_POLLIN as c_short;
            let mut items = [
                item(std::ptr::null_mut(), Control::DESCRIPTOR, pollin),
                item(self.monitor, 0, pollin),
                item(self.socket, 0, if reading { pollin } else { 0 }),
            ];
            // SAFETY: three items, sockets open and this thread's own.
            unsafe { zmq_sys::zmq_poll(items.as_mut_ptr(), 3, timeout) };
            if items[1].revents != 0 {
                self.read_monitor();
            }
            if items[2].revents != 0 {
                self.read_messages();
            }
            if items[0].revents != 0 {
                let command = control.command();
                self.obey(&command[0], &mut control);
            }
        }
    }

    fn obey(&mut self, command: &str, control: &mut Control) {
        match command {
            "report" => {
                self.read_monitor();
                control.ok(&format!(
                    "{} {} {} {} {} {}",
                    self.messages, self.frames, self.bytes, self.accepted, self.handshakes, self.disconnected
                ));
            }
            "messages" => match &self.log {
                Some(log) => control.messages(log),
                None => control.error("the log is off"),
            },
            "pause" => {
                self.paused = true;
                control.ok("");
            }
            "read" => {
                self.paused = false;
                control.ok("");
            }
            "flap" => {
                self.close();
                match self.open() {
                    Ok(()) => control.ok(""),
                    Err(error) => control.error(&error),
                }
            }
            "quit" => {
                self.close();
                // SAFETY: every socket of the context is closed, with LINGER 0 or as a mere reader.
                unsafe { zmq_sys::zmq_ctx_term(self.context) };
                control.ok("");
                std::process::exit(0);
            }
            _ => control.error(&format!("a PULL peer knows no command {command}")),
        }
    }

    fn read_monitor(&mut self) {
        let mut frames = Message::new();
        while let Some((frame, more)) = receive(self.monitor) {
            frames.push(frame);
            if more {
                continue;
            }
            match u32::from(u16::from_ne_bytes([frames[0][0], frames[0][1]])) {
                event if event == zmq_sys::ZMQ_EVENT_ACCEPTED => self.accepted += 1,
                event if event == zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED => self.handshakes += 1,
                event if event == zmq_sys::ZMQ_EVENT_DISCONNECTED => self.disconnected += 1,
                _ => {}
            }
            frames.clear();
        }
    }

    fn read_messages(&mut self) {
        let burst = if self.delay.is_zero() { BURST } else { 1 };
        let mut messages = 0;
        while messages < burst {
            let Some((frame, more)) = receive(self.socket) else {
                break;
            };
            self.frames += 1;
            self.bytes += frame.len() as u64;
            if self.log.is_some() {
                self.partial.push(frame);
            }
            if !more {
                messages += 1;
                self.messages += 1;
                if let Some(log) = &mut self.log {
                    log.push(std::mem::take(&mut self.partial));
                }
            }
        }
        self.next_read = Instant::now() + self.delay;
    }
}

/// One frame and whether more follow; None when nothing is there.
fn receive(socket: *mut c_void) -> Option<(Vec<u8>, bool)> {
    // SAFETY: the message is initialised before use and closed after; its data lives until then.
    unsafe {
        let mut message: zmq_sys::zmq_msg_t = std::mem::zeroed();
        zmq_sys::zmq_msg_init(&mut message);
        let result = zmq_sys::zmq_msg_recv(&mut message, socket, zmq_sys::ZMQ_DONTWAIT as c_int);
        if result < 0 {
            zmq_sys::zmq_msg_close(&mut message);
            return None;
        }
        let data = zmq_sys::zmq_msg_data(&mut message).cast::<u8>();
        let size = zmq_sys::zmq_msg_size(&message);
        let frame = match size {
            0 => Vec::new(),
            _ => std::slice::from_raw_parts(data, size).to_vec(),
        };
        let more = zmq_sys::zmq_msg_more(&message) != 0;
        zmq_sys::zmq_msg_close(&mut message);
        Some((frame, more))
    }
}

fn socket_type(name: &str) -> c_int {
    let kind = match name {
        "PULL" => zmq_sys::ZMQ_PULL,
        "REP" => zmq_sys::ZMQ_REP,
        "SUB" => zmq_sys::ZMQ_SUB,
        "ROUTER" => zmq_sys::ZMQ_ROUTER,
        "DEALER" => zmq_sys::ZMQ_DEALER,
        "PAIR" => zmq_sys::ZMQ_PAIR,
        _ => panic!("no socket type {name}"),
    };
    kind as c_int
}

fn zmq_error() -> String {
    // SAFETY: zmq_strerror returns a static text for any number.
    let text: *const c_char = unsafe { zmq_sys::zmq_strerror(zmq_sys::zmq_errno()) };
    // SAFETY: the text ends with NUL and is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
