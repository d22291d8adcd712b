//! A PULL peer for tests and demos: an ordinary libzmq socket that knows nothing of kvconn.

mod command;
mod options;
mod rank;
mod record;
mod signals;

use std::process::ExitCode;

use options::{Options, Parsed};
use rank::Rank;

const USAGE: &str = "\
usage: kvconn-peer [OPTION VALUE]... [ENDPOINT]

A PULL socket at ENDPOINT (tcp://127.0.0.1:*). Standard output first says
`bound ENDPOINT`. Every line of standard input is a command, and has one line as
its answer:

  report    `report messages=N bytes=N connections=N`
  pause     read no more messages; libzmq goes on filling its queue
  resume    read again
  freeze    stop the whole process, as SIGSTOP does, after the answer; SIGCONT continues it
  die       SIGKILL itself; there is no answer
  goodbye   leave in order: half-close the connections, read until the senders have
            closed too, exit with 0. SIGTERM does the same. With --rcvhwm 0 nothing is
            lost that was acknowledged; a libzmq whose queue is full may lose the rest

The end of standard input ends the process at once.

options:
  --record FILE     append each message to FILE at once: the number of its frames,
                    the size of each (u32, the machine's byte order), the frames
  --rcvhwm N        messages that libzmq queues for each connection (1000)
  --rcvbuf BYTES    the kernel's buffer for each connection (the kernel's default)
  --step-ms N       compute for N ms between two rounds of reading, as a busy rank does (0)
  --last-step-ms N  compute for N ms at a goodbye, before reading the rest (0)
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
