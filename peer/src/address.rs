//! Endpoints as addresses of the kernel, for the sockets that are not libzmq's.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::path::PathBuf;

use socket2::{Domain, SockAddr, Socket, Type};

pub enum Address {
    Tcp(SocketAddr),
    Ipc(PathBuf),
}

/// The endpoint as one writes it: libzmq's dual-stack listener calls 127.0.0.1 [::ffff:127.0.0.1].
pub fn plain(endpoint: &str) -> String {
    let mapped = endpoint.strip_prefix("tcp://").and_then(|text| text.parse::<SocketAddrV6>().ok());
    match mapped.and_then(|address| Some((address.ip().to_ipv4_mapped()?, address.port()))) {
        Some((ip, port)) => format!("tcp://{ip}:{port}"),
        None => endpoint.to_owned(),
    }
}

impl Address {
    /// `tcp://HOST:PORT` and `ipc://PATH` as libzmq reads them, except names of interfaces.
    pub fn parse(endpoint: &str) -> io::Result<Address> {
        if let Some(path) = endpoint.strip_prefix("ipc://").filter(|path| !path.is_empty()) {
            return Ok(Address::Ipc(match path.strip_prefix('@') {
                Some(name) => format!("\0{name}").into(), // the abstract namespace
                None => path.into(),
            }));
        }
        let wrong = || io::Error::other("the endpoint is neither tcp://HOST:PORT nor ipc://PATH");
        let (host, port) = endpoint.strip_prefix("tcp://").and_then(|text| text.rsplit_once(':')).ok_or_else(wrong)?;
        let port = if port == "*" { 0 } else { port.parse().map_err(|_| wrong())? };
        if host == "*" {
            return Ok(Address::Tcp((Ipv6Addr::UNSPECIFIED, port).into()));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host, port).to_socket_addrs()?.next().map(Address::Tcp).ok_or_else(wrong)
    }

    /// A socket that is bound and does not listen. As libzmq does, it takes the place of a file that is there.
    pub fn bind(&self) -> io::Result<Socket> {
        self.remove_file();
        let (domain, name) = match self {
            Address::Tcp(address) => (Domain::for_address(*address), SockAddr::from(*address)),
            Address::Ipc(path) => (Domain::UNIX, SockAddr::unix(path)?),
        };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        if let Address::Tcp(address) = self {
            // Connections that have ended keep the port for a minute otherwise.
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
        }
        socket.bind(&name)?;
        Ok(socket)
    }

    /// Removes the file of an ipc endpoint.
    pub fn remove_file(&self) {
        if let Address::Ipc(path) = self {
            // An abstract name has no file.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_written_plainly() {
        assert_eq!(plain("tcp://[::ffff:127.0.0.1]:5557"), "tcp://127.0.0.1:5557");
        assert_eq!(plain("tcp://[::1]:5557"), "tcp://[::1]:5557");
        assert_eq!(plain("ipc:///tmp/x"), "ipc:///tmp/x");
    }

    #[test]
    fn endpoints_are_read_as_libzmq_reads_them() {
        let tcp = |text: &str| match Address::parse(text) {
            Ok(Address::Tcp(address)) => address.to_string(),
            _ => panic!("{text} is no TCP endpoint"),
        };
        assert_eq!(tcp("tcp://127.0.0.1:*"), "127.0.0.1:0");
        assert_eq!(tcp("tcp://*:5557"), "[::]:5557");
        assert_eq!(tcp("tcp://[::1]:7"), "[::1]:7");
        for wrong in ["tcp://127.0.0.1", "tcp://127.0.0.1:x", "udp://127.0.0.1:7", "ipc://", ""] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
