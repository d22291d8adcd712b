//! A PULL peer in its own process: an ordinary libzmq socket that knows nothing of kvconn.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::process::Process;
use super::wait_until;

/// The frames of one message.
pub type Message = Vec<Vec<u8>>;

/// What a peer is told when it starts.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Port 0 (tcp) lets the kernel choose; `endpoint()` tells.
    pub bind: String,
    /// How many times to bind (port 0): one process that listens on many endpoints.
    pub endpoints: usize,
    /// Messages libzmq buffers for each connection; 0 is no limit.
    pub rcvhwm: i32,
    /// SO_RCVBUF of the connections; small makes a stopped peer's queue fill soon. 0 leaves the kernel's.
    pub rcvbuf: i32,
    /// Wait after each message: a slow reader.
    pub delay: Duration,
    /// How often it sends PINGs (ZMQ_HEARTBEAT_IVL), which our libzmq answers; zero is never.
    pub heartbeat: Duration,
    /// Keep every message for `messages()`. Off for high rates.
    pub log: bool,
    /// Begin without reading, until `resume_reading`. libzmq goes on filling its buffers and answers PINGs.
    pub paused: bool,
    /// CURVE server with this secret key (Z85, 40 characters).
    pub curve_secret: Option<String>,
    /// "PULL", or the socket type of a peer that is none: "REP", "SUB", "ROUTER", "DEALER", "PAIR".
    pub socket: &'static str,
}

impl Default for PeerOptions {
    fn default() -> PeerOptions {
        PeerOptions {
            bind: "tcp://127.0.0.1:0".into(),
            endpoints: 1,
            rcvhwm: 1000,
            rcvbuf: 0,
            delay: Duration::ZERO,
            heartbeat: Duration::ZERO,
            log: true,
            paused: false,
            curve_secret: None,
            socket: "PULL",
        }
    }
}

/// Totals since the peer's process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub messages: u64,
    pub frames: u64,
    /// Bytes of all frames, without framing.
    pub bytes: u64,
    /// TCP or IPC connections its listener accepted.
    pub accepted: u64,
    /// ZMTP handshakes that succeeded.
    pub handshakes: u64,
    /// Connections that ended, as the peer saw it.
    pub disconnected: u64,
}

/// The peer's process; dropping it kills it.
pub struct Peer {
    process: Process,
    options: PeerOptions,
    namespace: Option<Arc<OwnedFd>>,
    endpoints: Vec<String>,
}

/// It is stopped, resumed and killed as its process is.
impl std::ops::Deref for Peer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Peer {
    /// A peer with the default options at `endpoint`, for instance `tcp://127.0.0.1:0`.
    #[track_caller]
    pub fn bind(endpoint: &str) -> Peer {
        Peer::with(PeerOptions { bind: endpoint.into(), ..PeerOptions::default() })
    }

    /// A peer on any free port of 127.0.0.1.
    #[track_caller]
    pub fn any() -> Peer {
        Peer::with(PeerOptions::default())
    }

    #[track_caller]
    pub fn with(options: PeerOptions) -> Peer {
        Peer::start(options, None)
    }

    /// Returns when the peer listens.
    #[track_caller]
    pub fn start(options: PeerOptions, namespace: Option<Arc<OwnedFd>>) -> Peer {
        let process = Process::start("pull", namespace.clone());
        let answer = process.ask(&format!(
            "listen {} {} {} {} {} {} {} {} {} {}",
            options.socket,
            options.bind,
            options.endpoints,
            options.rcvhwm,
            options.rcvbuf,
            options.delay.as_micros(),
            options.heartbeat.as_millis(),
            u8::from(options.log),
            u8::from(options.paused),
            options.curve_secret.as_deref().unwrap_or("-"),
        ));
        let endpoints = answer.split(' ').map(str::to_string).collect();
        Peer { process, options, namespace, endpoints }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoints[0]
    }

    /// Every endpoint, when `PeerOptions::endpoints` asked for several.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    #[track_caller]
    pub fn port(&self) -> u16 {
        port_of(self.endpoint())
    }

    /// An orderly end: closes the socket and exits, as a program does that leaves `main`. What its kernel or libzmq
    /// held unread is lost.
    #[track_caller]
    pub fn terminate(&self) {
        self.process.ask("quit");
        let status = self.process.wait(Duration::from_secs(10));
        assert!(status.success(), "peer {} ended with {status}", self.pid());
    }

    /// Closes the socket and binds a new one to the same endpoints, in the same process: one flap, in about a
    /// millisecond. The totals go on counting.
    #[track_caller]
    pub fn flap(&self) {
        self.process.ask("flap");
    }

    /// Stops calling zmq_recv; libzmq's own thread lives on (unlike `stop`).
    #[track_caller]
    pub fn pause_reading(&self) {
        self.process.ask("pause");
    }

    #[track_caller]
    pub fn resume_reading(&self) {
        self.process.ask("read");
    }

    /// Kills this process and starts another with the same options on the same endpoints, with empty totals.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process.kill();
        let mut options = self.options.clone();
        assert_eq!(options.endpoints, 1, "only a peer with one endpoint restarts");
        options.bind = self.endpoint().to_string();
        let listening = self.options.bind.clone();
        *self = Peer::start(options, self.namespace.clone());
        self.options.bind = listening;
    }

    /// A new peer with default options on this port of 127.0.0.1.
    #[track_caller]
    pub fn restart_on(port: u16) -> Peer {
        Peer::bind(&format!("tcp://127.0.0.1:{port}"))
    }

    #[track_caller]
    pub fn received(&self) -> Received {
        let answer = self.process.ask("report");
        let numbers: Vec<u64> = answer.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [messages, frames, bytes, accepted, handshakes, disconnected] = numbers[..] else {
            panic!("a peer's report: {answer}");
        };
        Received { messages, frames, bytes, accepted, handshakes, disconnected }
    }

    /// Waits until at least `messages` have arrived and returns the totals then.
    #[track_caller]
    pub fn wait_received(&self, messages: u64, deadline: Duration) -> Received {
        let what = format!("{messages} messages have arrived at {}", self.endpoint());
        self.wait_for(&what, deadline, |totals| totals.messages >= messages)
    }

    /// Waits until the totals satisfy `condition`.
    #[track_caller]
    pub fn wait_for(&self, what: &str, deadline: Duration, condition: impl Fn(&Received) -> bool) -> Received {
        let begun = std::time::Instant::now();
        loop {
            let totals = self.received();
            if condition(&totals) {
                return totals;
            }
            assert!(begun.elapsed() < deadline, "waited {deadline:?} in vain until {what}; it has {totals:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every message so far, in the order of arrival (`PeerOptions::log`).
    #[track_caller]
    pub fn messages(&self) -> Vec<Message> {
        assert!(self.options.log, "this peer keeps no messages: log is off");
        self.process.ask_then("messages", |answer, pipe| {
            let count = answer.parse().expect("a number of messages");
            (0..count).map(|_| (0..number(pipe)).map(|_| bytes(pipe)).collect()).collect()
        })
    }
}

/// The port of a `tcp://host:port` endpoint.
#[track_caller]
pub fn port_of(endpoint: &str) -> u16 {
    let port = endpoint.rsplit(':').next().and_then(|p| p.parse().ok());
    port.unwrap_or_else(|| panic!("{endpoint} has no port"))
}

fn number(pipe: &mut dyn Read) -> u32 {
    let mut bytes = [0; 4];
    pipe.read_exact(&mut bytes).expect("a length from the peer");
    u32::from_le_bytes(bytes)
}

fn bytes(pipe: &mut dyn Read) -> Vec<u8> {
    let mut bytes = vec![0; number(pipe) as usize];
    pipe.read_exact(&mut bytes).expect("a frame from the peer");
    bytes
}
