//! The rank: it lives at one endpoint, reads messages, obeys commands, and leaves without loss.

use std::io::{self, Write};
use std::thread::sleep;

use crate::command::{Command, Lines};
use crate::curve::Keys;
use crate::directory::Directory;
use crate::kept::Kept;
use crate::kind::Kind;
use crate::options::{Curve, Options};
use crate::record::Record;
use crate::signals::{Terminated, send_to_self};
use crate::stranger::Stranger;
use crate::zmtp::{Zmtp, retry};

/// Messages read before the commands are looked at again.
const ROUND: usize = 512;
/// At a goodbye, when the senders have closed: how long the queue must stay empty.
const QUIET_MS: i64 = 100;

/// What is at the endpoint.
enum Life {
    Zmtp(Zmtp),
    Stranger(Stranger),
    /// None: the endpoint could not be kept.
    Refusing(Option<Kept>),
}

/// What a round of waiting found.
struct Ready {
    message: bool,
    input: bool,
    leave: bool,
}

pub struct Rank {
    life: Life,
    /// What the life is, or what it was before it refused.
    kind: Kind,
    endpoint: String,
    options: Options,
    keys: Option<Keys>,
    terminated: Terminated,
    lines: Lines,
    record: Option<Record>,
    paused: bool,
    messages: u64,
    bytes: u64,
    accepted: u64,
    /// That of an endpoint `ipc://*`.
    _directory: Option<Directory>,
}

impl Rank {
    /// Listens, and says where.
    pub fn bind(options: Options) -> io::Result<Rank> {
        let terminated = Terminated::new()?;
        let record = options.record.as_deref().map(Record::open).transpose()?;
        let keys = match &options.curve {
            Curve::Off => None,
            Curve::New => Some(Keys::make()?),
            Curve::Secret(path) => Some(Keys::read(path)?),
        };
        let (directory, endpoint) = match options.endpoint.as_str() {
            "ipc://*" => Directory::with_endpoint().map(|(directory, endpoint)| (Some(directory), endpoint))?,
            endpoint => (None, endpoint.to_owned()),
        };
        let (life, endpoint) = open(options.kind, &endpoint, &options, keys.as_ref())?;
        match &keys {
            Some(keys) => say(&format!("bound {endpoint} {}", keys.public))?,
            None => say(&format!("bound {endpoint}"))?,
        }
        Ok(Rank {
            life,
            kind: options.kind,
            endpoint,
            options,
            keys,
            terminated,
            lines: Lines::default(),
            record,
            paused: false,
            messages: 0,
            bytes: 0,
            accepted: 0,
            _directory: directory,
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
                        Ok(Command::Goodbye) => {
                            say("goodbye")?;
                            return self.leave();
                        }
                        Ok(command) => self.obey(command)?,
                        Err(error) => say(&format!("error: {error}"))?,
                    }
                }
            }
            // A command may have ended the life that the message came to.
            if ready.message && !self.paused && self.kind == Kind::Pull {
                sleep(self.options.step);
                self.read_round()?;
            }
        }
    }

    fn obey(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Report => self.report(),
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
            Command::Refuse => match self.refuse() {
                Ok(()) => say("refusing"),
                Err(error) => say(&format!("error: it refuses, but cannot keep {}: {error}", self.endpoint)),
            },
            Command::Accept(kind) => {
                let accepts = !matches!(self.life, Life::Refusing(_));
                match kind {
                    Some(kind) if accepts && kind != self.kind => {
                        say("error: it accepts as another kind: refuse before, or restart")
                    }
                    _ if accepts => say(&format!("accepting {}", self.endpoint)),
                    kind => self.begin(kind.unwrap_or(self.kind), "accepting"),
                }
            }
            Command::Restart(kind) => {
                // If the endpoint cannot be kept, the new life may still get it.
                let _ = self.refuse();
                self.begin(kind.unwrap_or(self.kind), "restarted")
            }
        }
    }

    fn report(&mut self) -> io::Result<()> {
        let connections = match &mut self.life {
            Life::Zmtp(zmtp) => {
                self.accepted += zmtp.take_accepted();
                zmtp.connections
            }
            Life::Stranger(stranger) => {
                self.accepted += stranger.take_accepted();
                stranger.connections()
            }
            Life::Refusing(_) => 0,
        };
        let Rank { messages, bytes, accepted, .. } = self;
        say(&format!("report messages={messages} bytes={bytes} connections={connections} accepted={accepted}"))
    }

    /// Ends the life with its connections. Nobody listens at the endpoint then.
    fn refuse(&mut self) -> io::Result<()> {
        match &mut self.life {
            Life::Zmtp(zmtp) => {
                zmtp.note_connections()?;
                self.accepted += zmtp.take_accepted();
            }
            Life::Stranger(stranger) => self.accepted += stranger.take_accepted(),
            Life::Refusing(Some(_)) => return Ok(()),
            Life::Refusing(None) => {}
        }
        // The life ends before its endpoint is kept.
        self.life = Life::Refusing(None);
        self.life = Life::Refusing(Some(Kept::keep(&self.endpoint)?));
        Ok(())
    }

    /// A new life of a rank that refuses.
    fn begin(&mut self, kind: Kind, answer: &str) -> io::Result<()> {
        let kept = match std::mem::replace(&mut self.life, Life::Refusing(None)) {
            Life::Refusing(Some(kept)) => kept.share()?,
            _ => None,
        };
        match open(kind, &self.endpoint, &self.options, self.keys.as_ref()) {
            Ok((life, _)) => {
                (self.life, self.kind, self.paused) = (life, kind, false);
                say(&format!("{answer} {}", self.endpoint))
            }
            Err(error) => {
                drop(kept);
                let _ = self.refuse();
                say(&format!("error: it refuses: {error}"))
            }
        }
    }

    /// Waits until there is something to do, and notes which connections have begun and ended.
    fn wait(&mut self) -> io::Result<Ready> {
        let some = zmq::POLLIN;
        let reads = self.kind == Kind::Pull && !self.paused;
        let mut items =
            vec![zmq::PollItem::from_fd(self.terminated.descriptor(), some), zmq::PollItem::from_fd(0, some)];
        match &self.life {
            Life::Zmtp(zmtp) => {
                items.push(zmtp.monitor.as_poll_item(some));
                items.push(zmtp.socket.as_poll_item(if reads { some } else { zmq::PollEvents::empty() }));
            }
            Life::Stranger(stranger) => items.extend(stranger.descriptors().map(|fd| zmq::PollItem::from_fd(fd, some))),
            Life::Refusing(_) => {}
        }
        retry(|| zmq::poll(&mut items, -1))?;
        let found = |item: &zmq::PollItem| !item.get_revents().is_empty();
        let message = matches!(self.life, Life::Zmtp(_)) && found(&items[3]);
        let ready = Ready { leave: found(&items[0]), input: found(&items[1]), message };
        drop(items);
        match &mut self.life {
            Life::Zmtp(zmtp) => zmtp.note_connections()?,
            Life::Stranger(stranger) => stranger.serve()?,
            Life::Refusing(_) => {}
        }
        Ok(ready)
    }

    /// Reads what is there, at most one round. Leaving comes first: a rank that was stopped, and goes on because it has
    /// to leave, must not read what its senders have sent meanwhile before it half-closes.
    fn read_round(&mut self) -> io::Result<()> {
        for _ in 0..ROUND {
            let Life::Zmtp(zmtp) = &self.life else { break };
            let leave = zmq::PollItem::from_fd(self.terminated.descriptor(), zmq::POLLIN);
            let mut items = [leave, zmtp.socket.as_poll_item(zmq::POLLIN)];
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
        while let Life::Zmtp(zmtp) = &self.life
            && retry(|| zmtp.socket.poll(zmq::POLLIN, quiet_ms))? > 0
        {
            self.read_one()?;
        }
        Ok(())
    }

    fn read_one(&mut self) -> io::Result<()> {
        let Life::Zmtp(zmtp) = &self.life else { return Ok(()) };
        let frames = retry(|| zmtp.socket.recv_multipart(0))?;
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
        if self.kind != Kind::Pull {
            return Ok(());
        }
        if let Life::Zmtp(zmtp) = &mut self.life {
            zmtp.note_connections()?;
            zmtp.half_close();
            sleep(self.options.last_step);
        }
        while let Life::Zmtp(zmtp) = &mut self.life
            && zmtp.connections > 0
        {
            // Both sockets, so that a sender that closes without another message is seen.
            let mut items = [zmtp.monitor.as_poll_item(zmq::POLLIN), zmtp.socket.as_poll_item(zmq::POLLIN)];
            retry(|| zmq::poll(&mut items, -1))?;
            zmtp.note_connections()?;
            // A sender that has come back meanwhile has to leave, too.
            zmtp.half_close();
            self.read_all(0)?;
        }
        self.read_all(QUIET_MS)
    }
}

fn open(kind: Kind, endpoint: &str, options: &Options, keys: Option<&Keys>) -> io::Result<(Life, String)> {
    let opened = match kind.socket_type() {
        Some(socket_type) => {
            Zmtp::open(socket_type, endpoint, options, keys).map(|(zmtp, bound)| (Life::Zmtp(zmtp), bound))
        }
        None => Stranger::open(kind, endpoint).map(|(stranger, bound)| (Life::Stranger(stranger), bound)),
    };
    opened.map_err(|error| io::Error::other(format!("cannot listen at {endpoint}: {error}")))
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
