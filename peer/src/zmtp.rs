//! A libzmq socket at the endpoint.

use std::collections::HashSet;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};

use crate::address::plain;
use crate::curve::Keys;
use crate::kept::patiently;
use crate::options::Options;

/// Dropping it ends its connections, and returns when libzmq has closed every descriptor.
pub struct Zmtp {
    pub socket: zmq::Socket,
    /// Tells which connections begin and end.
    pub monitor: zmq::Socket,
    /// How many connections live.
    pub connections: usize,
    accepted: u64,
    /// libzmq's descriptors of the connections that have begun. libzmq may have closed some of them since.
    descriptors: HashSet<RawFd>,
    // The last of its fields, because it waits for the sockets.
    _context: zmq::Context,
}

impl Zmtp {
    /// Listens; also says where.
    pub fn open(
        socket_type: zmq::SocketType,
        endpoint: &str,
        options: &Options,
        keys: Option<&Keys>,
    ) -> io::Result<(Zmtp, String)> {
        let context = zmq::Context::new();
        let socket = context.socket(socket_type)?;
        socket.set_linger(0)?;
        socket.set_ipv6(true)?;
        socket.set_rcvhwm(options.rcvhwm)?;
        if options.rcvbuf >= 0 {
            socket.set_rcvbuf(options.rcvbuf)?;
        }
        if let Some(keys) = keys {
            socket.set_curve_server(true)?;
            socket.set_curve_secretkey(&keys.secret)?;
        }
        let events = zmq::SocketEvent::ACCEPTED as i32 | zmq::SocketEvent::DISCONNECTED as i32;
        socket.monitor("inproc://monitor", events)?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.connect("inproc://monitor")?;
        patiently(|| {
            socket.bind(endpoint).map_err(|error| match error {
                zmq::Error::EADDRINUSE => io::ErrorKind::AddrInUse.into(),
                error => io::Error::other(error),
            })
        })?;
        let bound = socket.get_last_endpoint()?.map_err(|_| io::Error::other("the endpoint is not UTF-8"))?;
        let bound = plain(bound.trim_end_matches('\0'));
        let zmtp =
            Zmtp { socket, monitor, connections: 0, accepted: 0, descriptors: HashSet::new(), _context: context };
        Ok((zmtp, bound))
    }

    pub fn take_accepted(&mut self) -> u64 {
        std::mem::take(&mut self.accepted)
    }

    /// Notes which connections have begun and ended.
    ///
    /// Each event is two frames: its number and its value; and the endpoint. The value is the descriptor of a connection
    /// that begins, but not always of one that ends: the libzmq that is built in tells the errno there.
    pub fn note_connections(&mut self) -> io::Result<()> {
        while retry(|| self.monitor.poll(zmq::POLLIN, 0))? > 0 {
            let frames = retry(|| self.monitor.recv_multipart(0))?;
            let &[e0, e1, v0, v1, v2, v3] = &frames[0][..] else {
                return Err(io::Error::other("an event of libzmq's monitor has 6 bytes"));
            };
            if u16::from_ne_bytes([e0, e1]) == zmq::SocketEvent::ACCEPTED as u16 {
                self.connections += 1;
                self.accepted += 1;
                self.descriptors.insert(RawFd::from_ne_bytes([v0, v1, v2, v3]));
            } else {
                self.connections -= 1;
            }
        }
        Ok(())
    }

    /// Closes our direction of each connection, once.
    pub fn half_close(&mut self) {
        for descriptor in self.descriptors.drain() {
            // SAFETY: the descriptor is used only to duplicate it. If libzmq has closed it, that fails with EBADF, or it is
            // by now another descriptor of this process: a newer connection, or none that shutdown(2) can harm.
            let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
            if let Ok(duplicate) = duplicate {
                // A connection that has ended meanwhile says ENOTCONN.
                let _ = TcpStream::from(duplicate).shutdown(Shutdown::Write);
            }
        }
    }
}

/// A signal interrupts libzmq's calls, for example when a stopped process continues.
pub fn retry<T>(mut call: impl FnMut() -> zmq::Result<T>) -> zmq::Result<T> {
    loop {
        match call() {
            Err(zmq::Error::EINTR) => {}
            result => return result,
        }
    }
}
