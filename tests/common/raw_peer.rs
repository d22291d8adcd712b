//! A PULL peer without libzmq, in its own process: it speaks ZMTP 3 itself, so that it knows what its kernel has and
//! nothing lies between. It takes every message's first frame for a number and remembers which it has got whole.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::peer_main::Control;
use super::process::Process;
use super::wrong_peer::listen_at;

/// A PULL's greeting with the mechanism NULL, as libzmq 4.3 sends it.
pub const GREETING: [u8; 64] = {
    let mut bytes = [0; 64];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 1);
    (bytes[12], bytes[13], bytes[14], bytes[15]) = (b'N', b'U', b'L', b'L');
    bytes
};
/// The READY that follows.
pub const READY: &[u8] = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL";

/// The peer's process; dropping it kills it.
pub struct RawPeer {
    process: Process,
    address: SocketAddr,
}

/// What the peer has.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Connections that are open.
    pub open: u64,
    /// Messages whose number is not above that of the message before them on their connection.
    pub disordered: u64,
    /// How often each message came.
    pub times: BTreeMap<u64, u64>,
}

/// It is stopped, resumed and killed as its process is.
impl std::ops::Deref for RawPeer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl RawPeer {
    /// On any free port of that address of loopback, or on that port.
    #[track_caller]
    pub fn bind(address: &str) -> RawPeer {
        RawPeer::bind_in(address, None)
    }

    /// The same in this network namespace.
    #[track_caller]
    pub fn bind_in(address: &str, namespace: Option<Arc<OwnedFd>>) -> RawPeer {
        let process = Process::start("raw", namespace);
        let answer = process.ask(&format!("listen {address}"));
        RawPeer { process, address: answer.parse().expect("an address") }
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// SIGKILL, and another process takes the port.
    #[track_caller]
    pub fn succeed(self) -> RawPeer {
        self.process.kill();
        RawPeer::bind(&self.address.to_string())
    }

    /// Does not read any more; its kernel does, until it is full.
    #[track_caller]
    pub fn pause_reading(&self) {
        self.process.ask("pause");
    }

    #[track_caller]
    pub fn resume_reading(&self) {
        self.process.ask("read");
    }

    /// Ends every connection in order: says so (FIN), and reads on until the other side has closed as well.
    #[track_caller]
    pub fn finish(&self) {
        self.process.ask("finish");
    }

    /// Reads everything its kernel has, and closes. What comes in between makes the kernel send RST instead of FIN.
    #[track_caller]
    pub fn close(&self) {
        self.process.ask("close");
    }

    #[track_caller]
    pub fn numbers(&self) -> Numbers {
        let answer = self.process.ask("report");
        let mut words = answer.split(' ');
        let mut number = || words.next().map(|word| word.parse().expect("a number"));
        let open = number().expect("how many are open");
        let disordered = number().expect("how many came in another order");
        let mut numbers = Numbers { open, disordered, times: BTreeMap::new() };
        while let (Some(first), Some(last), Some(times)) = (number(), number(), number()) {
            numbers.times.extend((first..=last).map(|message| (message, times)));
        }
        numbers
    }

    /// Waits until the messages are there as `condition` wants them.
    #[track_caller]
    pub fn wait_for(&self, what: &str, deadline: Duration, condition: impl Fn(&Numbers) -> bool) -> Numbers {
        let mut numbers = Numbers::default();
        super::wait_until(what, deadline, || {
            numbers = self.numbers();
            condition(&numbers)
        });
        numbers
    }
}

/// The child's side.
pub fn run(mut control: Control) {
    let words = control.command();
    let address: SocketAddr = words[1].parse().expect("an address");
    let listener = match listen_at(address) {
        Ok(listener) => listener,
        Err(error) => return control.error(&format!("binding {address}: {error}")),
    };
    listener.set_nonblocking(true).expect("non-blocking");
    control.ok(&listener.local_addr().expect("bound").to_string());
    let (mut visitors, mut seen, mut reading) = (Vec::<Visitor>::new(), Seen::default(), true);
    loop {
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut items = vec![readable(Control::DESCRIPTOR), readable(listener.as_raw_fd())];
        if reading {
            items.extend(visitors.iter().map(|visitor| readable(visitor.stream.as_raw_fd())));
        }
        // SAFETY: the items are an initialised array of that length.
        unsafe { libc::poll(items.as_mut_ptr(), items.len() as libc::nfds_t, -1) };
        while let Ok((stream, _)) = listener.accept() {
            visitors.push(Visitor::greet(stream));
        }
        if reading {
            visitors.retain_mut(|visitor| visitor.read(&mut seen));
        }
        if items[0].revents == 0 {
            continue;
        }
        match control.command()[0].as_str() {
            "pause" => reading = false,
            "read" => reading = true,
            "finish" => {
                reading = true;
                for visitor in &visitors {
                    // Fails where the other side has gone already.
                    visitor.stream.shutdown(Shutdown::Write).ok();
                }
            }
            "close" => {
                visitors.retain_mut(|visitor| visitor.read(&mut seen));
                visitors.clear();
            }
            "report" => {
                control.ok(&report(visitors.len(), &seen));
                continue;
            }
            other => {
                control.error(&format!("a raw peer knows no command {other}"));
                continue;
            }
        }
        control.ok("");
    }
}

/// The messages of all connections.
#[derive(Default)]
struct Seen {
    times: BTreeMap<u64, u64>,
    disordered: u64,
}

/// How many are open and how many came in another order; then first, last and times for each run of messages.
fn report(open: usize, Seen { times, disordered }: &Seen) -> String {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for (&number, &times) in times {
        match runs.last_mut() {
            Some((_, last, same)) if *last + 1 == number && *same == times => *last = number,
            _ => runs.push((number, number, times)),
        }
    }
    let runs = runs.iter().map(|(first, last, times)| format!(" {first} {last} {times}"));
    format!("{open} {disordered}{}", runs.collect::<String>())
}

/// One connection: its handshake, and where in the stream of frames it is.
struct Visitor {
    stream: TcpStream,
    /// Bytes of the other side's greeting that are to come.
    greeting: usize,
    header: Vec<u8>,
    /// The frame that is being read: its flags, and bytes that are to come.
    frame: Option<(u8, u64)>,
    /// The beginning of the message's first frame, and whether that frame is complete.
    number: Vec<u8>,
    numbered: bool,
    /// The number of the last whole message.
    last: u64,
}

impl Visitor {
    fn greet(mut stream: TcpStream) -> Visitor {
        let mut greeting = GREETING;
        greeting[11] = 0; // ZMTP 3.0
        stream.write_all(&greeting).and_then(|()| stream.write_all(READY)).ok();
        stream.set_nonblocking(true).expect("non-blocking");
        Visitor { stream, greeting: 64, header: Vec::new(), frame: None, number: Vec::new(), numbered: false, last: 0 }
    }

    /// Reads what its kernel has; false when the connection is over.
    fn read(&mut self, seen: &mut Seen) -> bool {
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.take(&buffer[..count], seen),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], seen: &mut Seen) {
        let greeting = self.greeting.min(bytes.len());
        self.greeting -= greeting;
        bytes = &bytes[greeting..];
        while !bytes.is_empty() {
            let Some((flags, left)) = &mut self.frame else {
                self.header.push(bytes[0]);
                bytes = &bytes[1..];
                self.frame = header(&self.header);
                if self.frame.is_some_and(|(_, length)| length == 0) {
                    self.frame_ends(seen);
                }
                continue;
            };
            let taken = (*left).min(bytes.len() as u64) as usize;
            if *flags & COMMAND == 0 && !self.numbered {
                let missing = 8 - self.number.len();
                self.number.extend(&bytes[..taken.min(missing)]);
            }
            *left -= taken as u64;
            let over = *left == 0;
            bytes = &bytes[taken..];
            if over {
                self.frame_ends(seen);
            }
        }
    }

    fn frame_ends(&mut self, seen: &mut Seen) {
        self.header.clear();
        let Some((flags, _)) = self.frame.take().filter(|(flags, _)| flags & COMMAND == 0) else { return };
        self.numbered = flags & MORE != 0;
        if !self.numbered {
            let number = std::mem::take(&mut self.number);
            let number = u64::from_le_bytes(number.try_into().expect("a first frame of eight bytes or more"));
            *seen.times.entry(number).or_default() += 1;
            seen.disordered += u64::from(number <= self.last);
            self.last = number;
        }
    }
}

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The flags and the length of a frame, once its header is complete.
fn header(bytes: &[u8]) -> Option<(u8, u64)> {
    match bytes {
        [flags, length] if flags & LONG == 0 => Some((*flags, u64::from(*length))),
        [flags, length @ ..] => Some((*flags, u64::from_be_bytes(length.try_into().ok()?))),
        [] => None,
    }
}
