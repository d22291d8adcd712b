//! The PULL socket: it reads messages, obeys commands, and leaves without loss.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddrV6, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{Command, Lines};
use crate::options::Options;
use crate::record::Record;
use crate::signals::{Terminated, send_to_self};

/// How long a bind is tried: the port of a process that was just killed may need a moment.
const BIND: Duration = Duration::from_secs(5);
const BIND_AGAIN: Duration = Duration::from_millis(10);
/// Messages read before the commands are looked at again.
const ROUND: usize = 512;
/// At a goodbye, when the senders have closed: how long the queue must stay empty.
const QUIET_MS: i64 = 100;

/// What a round of waiting found.
struct Ready {
    message: bool,
    input: bool,
    leave: bool,
}

pub struct Rank {
    options: Options,
    pull: zmq::Socket,
    /// Tells which connections begin and end.
    monitor: zmq::Socket,
    terminated: Terminated,
    lines: Lines,
    record: Option<Record>,
    /// How many connections live.
    connections: usize,
    /// libzmq's descriptors of the connections that have begun. libzmq may have closed some of them since.
    descriptors: HashSet<RawFd>,
    paused: bool,
    messages: u64,
    bytes: u64,
}

/// The endpoint as one writes it: libzmq's dual-stack listener calls 127.0.0.1 [::ffff:127.0.0.1].
fn plain(endpoint: &str) -> String {
    let mapped = endpoint.strip_prefix("tcp://").and_then(|text| text.parse::<SocketAddrV6>().ok());
    match mapped.and_then(|address| Some((address.ip().to_ipv4_mapped()?, address.port()))) {
        Some((ip, port)) => format!("tcp://{ip}:{port}"),
        None => endpoint.to_owned(),
    }
}

impl Rank {
    /// Listens, and says where.
    pub fn bind(options: Options) -> io::Result<Rank> {
        let terminated = Terminated::new()?;
        let record = options.record.as_deref().map(Record::open).transpose()?;
        let context = zmq::Context::new();
        let pull = context.socket(zmq::PULL)?;
        pull.set_linger(0)?;
        pull.set_ipv6(true)?;
        pull.set_rcvhwm(options.rcvhwm)?;
        if options.rcvbuf >= 0 {
            pull.set_rcvbuf(options.rcvbuf)?;
        }
        let events = zmq::SocketEvent::ACCEPTED as i32 | zmq::SocketEvent::DISCONNECTED as i32;
        pull.monitor("inproc://monitor", events)?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.connect("inproc://monitor")?;
        let deadline = Instant::now() + BIND;
        while let Err(error) = pull.bind(&options.endpoint) {
            if error != zmq::Error::EADDRINUSE || Instant::now() > deadline {
                return Err(io::Error::other(format!("cannot listen at {}: {error}", options.endpoint)));
            }
            sleep(BIND_AGAIN);
        }
        let endpoint = pull.get_last_endpoint()?.map_err(|_| io::Error::other("the endpoint is not UTF-8"))?;
        say(&format!("bound {}", plain(endpoint.trim_end_matches('\0'))))?;
        Ok(Rank {
            options,
            pull,
            monitor,
            terminated,
            lines: Lines::default(),
            record,
            connections: 0,
            descriptors: HashSet::new(),
            paused: false,
            messages: 0,
            bytes: 0,
        })
    }

    /// Reads messages and obeys commands until a goodbye or the end of standard input.
    pub fn serve(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.leave {
                return self.leave();
            }
            if ready.input {
                let Some(lines) = self.lines.read()? else { return Ok(()) };
                for line in lines {
                    match Command::parse(&line) {
                        Some(Command::Goodbye) => {
                            say("goodbye")?;
                            return self.leave();
                        }
                        Some(command) => self.obey(command)?,
                        None => say(&format!("error: there is no command {line:?}"))?,
                    }
                }
            }
            if ready.message && !self.paused {
                sleep(self.options.step);
                self.read_round()?;
            }
        }
    }

    fn obey(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Report => {
                say(&format!("report messages={} bytes={} connections={}", self.messages, self.bytes, self.connections))
            }
            Command::Pause => {
                self.paused = true;
                say("paused")
            }
            Command::Resume => {
                self.paused = false;
                say("resumed")
            }
            Command::Freeze => {
                say("frozen")?;
                send_to_self(libc::SIGSTOP)
            }
            Command::Die => send_to_self(libc::SIGKILL),
            Command::Goodbye => unreachable!("serve() leaves"),
        }
    }

    /// Waits until there is something to do, and notes which connections have begun and ended.
    fn wait(&mut self) -> io::Result<Ready> {
        let (none, some) = (zmq::PollEvents::empty(), zmq::POLLIN);
        let mut items = [
            zmq::PollItem::from_fd(self.terminated.descriptor(), some),
            zmq::PollItem::from_fd(0, some),
            self.monitor.as_poll_item(some),
            self.pull.as_poll_item(if self.paused { none } else { some }),
        ];
        retry(|| zmq::poll(&mut items, -1))?;
        let found = |item: &zmq::PollItem| !item.get_revents().is_empty();
        let ready = Ready { leave: found(&items[0]), input: found(&items[1]), message: found(&items[3]) };
        self.note_connections()?;
        Ok(ready)
    }

    /// Each event is two frames: its number and its value; and the endpoint. The value is the descriptor of a connection
    /// that begins, but not always of one that ends: the libzmq that is built in tells the errno there.
    fn note_connections(&mut self) -> io::Result<()> {
        while retry(|| self.monitor.poll(zmq::POLLIN, 0))? > 0 {
            let frames = retry(|| self.monitor.recv_multipart(0))?;
            let &[e0, e1, v0, v1, v2, v3] = &frames[0][..] else {
                return Err(io::Error::other("an event of libzmq's monitor has 6 bytes"));
            };
            if u16::from_ne_bytes([e0, e1]) == zmq::SocketEvent::ACCEPTED as u16 {
                self.connections += 1;
                self.descriptors.insert(RawFd::from_ne_bytes([v0, v1, v2, v3]));
            } else {
                self.connections -= 1;
            }
        }
        Ok(())
    }

    /// Reads what is there, at most one round. Leaving comes first: a rank that was stopped, and goes on because it has
    /// to leave, must not read what its senders have sent meanwhile before it half-closes.
    fn read_round(&mut self) -> io::Result<()> {
        for _ in 0..ROUND {
            let leave = zmq::PollItem::from_fd(self.terminated.descriptor(), zmq::POLLIN);
            let mut items = [leave, self.pull.as_poll_item(zmq::POLLIN)];
            retry(|| zmq::poll(&mut items, 0))?;
            let [leave, message] = items.map(|item| !item.get_revents().is_empty());
            if leave || !message {
                break;
            }
            self.read_one()?;
        }
        Ok(())
    }

    fn read_all(&mut self, quiet_ms: i64) -> io::Result<()> {
        while retry(|| self.pull.poll(zmq::POLLIN, quiet_ms))? > 0 {
            self.read_one()?;
        }
        Ok(())
    }

    fn read_one(&mut self) -> io::Result<()> {
        let frames = retry(|| self.pull.recv_multipart(0))?;
        self.messages += 1;
        self.bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        match &mut self.record {
            Some(record) => record.append(&frames),
            None => Ok(()),
        }
    }

    /// Leaves without loss. Closing the socket under load would drop what libzmq and the kernel still hold, although
    /// the kernel has acknowledged it. So only our own direction is closed: the senders see a FIN and close.
    ///
    /// Once both sides have closed, a libzmq whose queue is full reads no more and drops what the kernel still holds. So
    /// nothing is lost only if the queue has no bound.
    fn leave(mut self) -> io::Result<()> {
        self.note_connections()?;
        for &descriptor in &self.descriptors {
            // SAFETY: the descriptor is used only to duplicate it. If libzmq has closed it, that fails with EBADF, or it is
            // by now another descriptor of this process: a newer connection, or none that shutdown(2) can harm.
            let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
            if let Ok(duplicate) = duplicate {
                // A connection that has ended meanwhile says ENOTCONN.
                let _ = TcpStream::from(duplicate).shutdown(Shutdown::Write);
            }
        }
        sleep(self.options.last_step);
        while self.connections > 0 {
            // Both sockets, so that a sender that closes without another message is seen.
            let mut items = [self.monitor.as_poll_item(zmq::POLLIN), self.pull.as_poll_item(zmq::POLLIN)];
            retry(|| zmq::poll(&mut items, -1))?;
            self.note_connections()?;
            self.read_all(0)?;
        }
        self.read_all(QUIET_MS)
    }
}

/// A signal interrupts libzmq's calls, for example when a stopped process continues.
fn retry<T>(mut call: impl FnMut() -> zmq::Result<T>) -> zmq::Result<T> {
    loop {
        match call() {
            Err(zmq::Error::EINTR) => {}
            result => return result,
        }
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
