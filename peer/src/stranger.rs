//! Something at the endpoint that speaks no ZMTP.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use crate::address::{Address, plain};
use crate::kept::patiently;
use crate::kind::Kind;

/// What a web server says to a request that it cannot read.
const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const BACKLOG: i32 = 128;

struct Visitor {
    stream: Socket,
    answered: bool,
}

pub struct Stranger {
    kind: Kind,
    listener: Socket,
    address: Address,
    visitors: Vec<Visitor>,
    accepted: u64,
}

impl Stranger {
    /// Listens; also says where.
    pub fn open(kind: Kind, endpoint: &str) -> io::Result<(Stranger, String)> {
        let address = Address::parse(endpoint)?;
        let listener = patiently(|| {
            let listener = address.bind()?;
            listener.listen(BACKLOG)?;
            Ok(listener)
        })?;
        listener.set_nonblocking(true)?;
        let bound = match listener.local_addr()?.as_socket() {
            Some(address) => plain(&format!("tcp://{address}")),
            None => endpoint.to_owned(),
        };
        Ok((Stranger { kind, listener, address, visitors: Vec::new(), accepted: 0 }, bound))
    }

    pub fn connections(&self) -> usize {
        self.visitors.len()
    }

    pub fn take_accepted(&mut self) -> u64 {
        std::mem::take(&mut self.accepted)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let visitors = self.visitors.iter().map(|visitor| visitor.stream.as_raw_fd());
        std::iter::once(self.listener.as_raw_fd()).chain(visitors)
    }

    /// Accepts who is there, reads what has come, and answers as its kind does.
    pub fn serve(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        let kind = self.kind;
        self.visitors.retain_mut(|visitor| visitor.serve(kind).is_ok());
        Ok(())
    }

    fn welcome(&mut self, stream: Socket) -> io::Result<()> {
        self.accepted += 1;
        stream.set_nonblocking(true)?;
        let mut visitor = Visitor { stream, answered: false };
        if self.kind == Kind::Garbage {
            // The first byte of ZMTP is 0xff. A visitor that has gone already is seen when it is read.
            let garbage: Vec<u8> = (0..=u8::MAX).map(|byte| byte.wrapping_mul(167).wrapping_add(13)).collect();
            let _ = visitor.stream.write(&garbage);
        }
        self.visitors.push(visitor);
        Ok(())
    }
}

impl Visitor {
    /// An error when the connection is over.
    fn serve(&mut self, kind: Kind) -> io::Result<()> {
        let mut block = [0; 65536];
        loop {
            match self.stream.read(&mut block) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if kind == Kind::Http && !std::mem::replace(&mut self.answered, true) {
                self.stream.write_all(HTTP)?;
                self.stream.shutdown(Shutdown::Write)?;
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.address.remove_file();
    }
}
