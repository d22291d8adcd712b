//! A rank for tests and demos: an ordinary libzmq PULL socket that knows nothing of kvconn. On command it does what else
//! may happen at an endpoint: it refuses, begins a new life, or speaks another protocol.

mod address;
mod command;
mod curve;
mod directory;
mod kept;
mod kind;
mod options;
mod rank;
mod record;
mod signals;
mod stranger;
mod zmtp;

use std::process::ExitCode;

use options::{Options, Parsed};
use rank::Rank;

const USAGE: &str = "\
usage: kvconn-peer [OPTION [VALUE]]... [ENDPOINT]

A PULL socket at ENDPOINT: tcp://HOST:PORT or ipc://PATH, where * is any free one
(tcp://127.0.0.1:*). Standard output first says `bound ENDPOINT`, with CURVE
`bound ENDPOINT PUBLIC-KEY`. Every line of standard input is a command, and has one
line as its answer. `error: ...` says what was wrong; the process goes on.

  report    `report messages=N bytes=N connections=N accepted=N`: received; open now;
            accepted so far
  pause     read no more messages; libzmq goes on filling its queue
  resume    read again
  freeze    stop the whole process, as SIGSTOP does, after the answer; SIGCONT continues it
  die       SIGKILL itself; there is no answer
  goodbye   leave in order: half-close the connections, read until the senders have
            closed too, exit with 0. SIGTERM does the same. With --rcvhwm 0 nothing is
            lost that was acknowledged; a libzmq whose queue is full may lose the rest
  refuse    close the listener and end the connections, with what is not read yet. The
            endpoint refuses connections, and nobody else can listen there
  accept [KIND]    after refuse: a new life at the same endpoint, of that kind or the
            kind before. It is not paused, and goes on counting
  restart [KIND]   refuse and accept in one

KIND is what listens at the endpoint:

  pull      a PULL socket
  rep       a REP socket, which is never read: the wrong type for a sender
  mute      accepts and reads, never says a byte
  http      answers what it gets as a web server does: 400, and the end
  garbage   says 256 bytes that are no ZMTP, as soon as it has accepted

The end of standard input ends the process at once.

options:
  --as KIND         what listens at the endpoint first (pull)
  --curve           be a CURVE server with a new key pair. Every client may connect
  --curve-secret-file FILE   the same with the secret key in FILE, in Z85
  --record FILE     append each message to FILE at once: the number of its frames,
                    the size of each (u32, the machine's byte order), the frames
  --rcvhwm N        messages that libzmq queues for each connection (1000)
  --rcvbuf BYTES    the kernel's buffer for each connection (the kernel's default)
  --step-ms N       compute for N ms between two rounds of reading, as a busy rank does (0)
  --last-step-ms N  compute for N ms at a goodbye, before reading the rest (0)
  --help            this text

exit status: 0 after goodbye, SIGTERM or the end of standard input; 1 if it could not
listen or go on; 2 if the command line is wrong.
";

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Parsed::Help) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Parsed::Run(options)) => options,
        Err(error) => {
            eprint!("kvconn-peer: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match Rank::bind(options).and_then(Rank::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvconn-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
