//! An endpoint that refuses connections, and that nobody else gets.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::address::Address;

/// How long a bind is tried: the port of a process or a life that has just ended may need a moment.
const BIND: Duration = Duration::from_secs(5);
const BIND_AGAIN: Duration = Duration::from_millis(10);

/// Binds. Tries again while the address is in use.
pub fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + BIND;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => sleep(BIND_AGAIN),
            result => return result,
        }
    }
}

/// A socket that is bound and does not listen.
pub struct Kept {
    socket: Socket,
    address: Address,
}

impl Kept {
    pub fn keep(endpoint: &str) -> io::Result<Kept> {
        let address = Address::parse(endpoint)?;
        let socket = patiently(|| address.bind())?;
        if let Address::Tcp(_) = address {
            // From now on nobody else can listen there, not even with SO_REUSEADDR, which libzmq sets.
            socket.set_reuse_address(false)?;
        }
        Ok(Kept { socket, address })
    }

    /// Lets the next life bind the address while it is still kept. None: an ipc endpoint cannot be shared.
    pub fn share(self) -> io::Result<Option<Kept>> {
        match self.address {
            Address::Tcp(_) => self.socket.set_reuse_address(true).map(|()| Some(self)),
            Address::Ipc(_) => Ok(None),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.address.remove_file();
    }
}
