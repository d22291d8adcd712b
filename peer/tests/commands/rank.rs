//! A rank in a process of its own, driven by lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// For an answer, on a loaded machine.
pub const SOON: Duration = Duration::from_secs(30);

pub struct Rank {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    pub endpoint: String,
    pub public_key: Option<String>,
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kvconn-peer"))
}

/// A run that ends by itself.
pub fn run(arguments: &[&str]) -> Output {
    program().args(arguments).stdin(Stdio::null()).output().expect("it runs")
}

impl Rank {
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Rank {
        let mut child =
            program().args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut rank = Rank { child, stdin, lines, endpoint: String::new(), public_key: None };
        let bound = rank.line();
        let mut words = bound.strip_prefix("bound ").expect(&bound).split(' ').map(str::to_owned);
        (rank.endpoint, rank.public_key) = (words.next().expect("an endpoint"), words.next());
        rank
    }

    #[track_caller]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(SOON).expect("a line on standard output")
    }

    #[track_caller]
    pub fn say(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("an open input");
        writeln!(stdin, "{command}").expect("it reads");
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.line()
    }

    /// One number of the report.
    #[track_caller]
    pub fn count(&mut self, what: &str) -> u64 {
        let report = self.ask("report");
        let word = report.split(' ').find_map(|word| word.strip_prefix(what)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("no {what} in {report}")).parse().expect("a number")
    }

    /// Waits until the report says so.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str, expected: u64) {
        wait_until(&format!("{what} is {expected}"), || self.count(what) == expected);
    }

    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it has exited", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it has exited")
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: numbers only; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// The state of the process, as /proc says it.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
    }

    pub fn address(&self) -> &str {
        self.endpoint.strip_prefix("tcp://").expect("a TCP endpoint")
    }

    /// A plain TCP connection.
    #[track_caller]
    pub fn visit(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("it accepts");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < SOON, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads to the end of the stream, or so many bytes.
pub fn read(stream: &mut TcpStream, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.take(most).read_to_end(&mut bytes).expect("bytes");
    bytes
}

/// A sender that dials once and queues nothing before its handshake.
pub struct Push {
    pub socket: zmq::Socket,
    monitor: zmq::Socket,
}

impl Push {
    pub fn connect(endpoint: &str) -> Push {
        Push::with(endpoint, |_| ())
    }

    /// With more options.
    pub fn with(endpoint: &str, options: impl Fn(&zmq::Socket)) -> Push {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::PUSH).expect("a socket");
        socket.set_linger(0).expect("an option");
        socket.set_immediate(true).expect("an option");
        socket.set_reconnect_ivl(-1).expect("an option");
        socket.set_sndtimeo(SOON.as_millis() as i32).expect("an option");
        options(&socket);
        socket.monitor("inproc://monitor", zmq::SocketEvent::ALL as i32).expect("a monitor");
        let monitor = context.socket(zmq::PAIR).expect("a socket");
        monitor.connect("inproc://monitor").expect("inproc");
        monitor.set_rcvtimeo(SOON.as_millis() as i32).expect("an option");
        socket.connect(endpoint).expect("an endpoint");
        Push { socket, monitor }
    }

    /// Waits for the end of its connection or of its handshake. Which side closes first decides which event it is.
    #[track_caller]
    pub fn wait_for_end(&self) {
        use zmq::SocketEvent::*;
        let ends = [DISCONNECTED, HANDSHAKE_FAILED_NO_DETAIL, HANDSHAKE_FAILED_PROTOCOL, HANDSHAKE_FAILED_AUTH];
        loop {
            let frames = self.monitor.recv_multipart(0).unwrap_or_else(|error| panic!("no end: {error}"));
            let event = u16::from_ne_bytes([frames[0][0], frames[0][1]]);
            if ends.iter().any(|end| *end as u16 == event) {
                return;
            }
        }
    }

    /// Not in: it has no connection that is ready.
    #[track_caller]
    pub fn check_is_out(&self) {
        self.socket.set_sndtimeo(0).expect("an option");
        assert_eq!(self.socket.send("plain", 0), Err(zmq::Error::EAGAIN));
    }
}
