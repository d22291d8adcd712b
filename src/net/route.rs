//! From an address to the numeric text that libzmq dials, by the source and the interface that the options ask for.

use std::ffi::CString;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::{Domain, Socket, Type};

use crate::sys::descriptor;

/// How the options ask TCP to be dialled. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// `source_address`, with port 0.
    source: Option<SocketAddr>,
    /// `interface`.
    interface: Option<Arc<str>>,
}

/// Why an address cannot be dialled as the options ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteError {
    /// The errno of the system call that failed.
    pub(crate) os_errno: i32,
    /// One line.
    pub(crate) message: String,
}

impl Route {
    pub(crate) fn new(source: Option<SocketAddr>, interface: Option<Arc<str>>) -> Route {
        Route { source, interface }
    }

    /// The text with which `zmq_connect` dials `address`, or why it cannot be dialled. libzmq reports nothing about a
    /// missing interface, and no reason for an impossible source.
    pub(crate) fn to(&self, address: SocketAddr) -> Result<CString, RouteError> {
        if let Some(source) = self.source
            && source.is_ipv4() != address.is_ipv4()
        {
            let family = |ip: SocketAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(RouteError {
                os_errno: libc::EAFNOSUPPORT,
                message: format!(
                    "source_address {} is {}, and {} is {}: not dialled",
                    host(source),
                    family(source),
                    host(address),
                    family(address)
                ),
            });
        }
        if self.source.is_some() || self.interface.is_some() {
            self.check(address)?;
        }
        let text = match self.source {
            Some(source) => format!("tcp://{source};{address}"),
            None => dial_text(address),
        };
        CString::new(text).map_err(|_| RouteError { os_errno: libc::EINVAL, message: "a NUL in an address".into() })
    }

    /// Whether a socket can be bound as this route asks.
    fn check(&self, address: SocketAddr) -> Result<(), RouteError> {
        // Without a descriptor this check cannot tell anything, and libzmq cannot dial either.
        let Ok(probe) = probe(address) else { return Ok(()) };
        let failed = |e: io::Error, what: String| RouteError {
            os_errno: e.raw_os_error().unwrap_or(libc::EINVAL),
            message: format!("{what} cannot be dialled from: {e}"),
        };
        if let Some(interface) = &self.interface {
            let bound = probe.bind_device(Some(interface.as_bytes()));
            bound.map_err(|e| failed(e, format!("interface {interface}")))?;
        }
        if let Some(source) = self.source {
            probe.bind(&source.into()).map_err(|e| failed(e, format!("source_address {}", host(source))))?;
        }
        Ok(())
    }
}

/// An address without its port.
fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        address => address.ip().to_string(),
    }
}

/// The text of a dial without a configured source: `tcp://ip:port`, with a wildcard source before it if the destination
/// is this host.
///
/// A socket that dials a free port of its own host may be given that very port as its source, and is then connected to
/// itself: such a dial fails. But libzmq sets SO_REUSEADDR on a socket with a source, so a listener can bind the port,
/// both while the connection lives and after it. A plain connect keeps the port's true owner away. The kernel chooses
/// the port in connect, as for a plain one (the correction `bind-late` in `bundled/zeromq-src`).
///
/// `[*]` because libzmq takes every other text for the name of an interface at first, and lists all interfaces at every
/// dial. It strips the brackets, and they carry the asterisk past its check of a text's first character.
fn dial_text(address: SocketAddr) -> String {
    match is_local(address) {
        true => format!("tcp://[*]:0;{address}"),
        false => format!("tcp://{address}"),
    }
}

/// Whether a connection to `address` stays on this host.
fn is_local(mut address: SocketAddr) -> bool {
    // The kernel knows best: a socket can be bound to local addresses only. Unlike a list of the interfaces' addresses
    // this includes local routes to whole networks, and 0.0.0.0, to which a name can resolve, and with which `connect`
    // means the loopback.
    //
    // It can err when there is no descriptor, but then there is none for the dial either; and under
    // `ip_nonlocal_bind`, when it says yes to all, and the dials get a source they do not need.
    address.set_port(0);
    probe(address).and_then(|probe| probe.bind(&address.into())).is_ok()
}

/// A socket of the address's family. UDP, because nothing is left of it once it is closed.
fn probe(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    descriptor::above_standard(socket.into()).map(Socket::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{SockAddr, SockAddrStorage};
    use std::ptr;
    use std::time::{Duration, Instant};

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn local_destinations_get_a_wildcard_source() {
        // TEST-NET-3 and the documentation prefix: nobody's addresses.
        for (text, expected) in [
            ("127.0.0.1:5555", "tcp://[*]:0;127.0.0.1:5555"),
            ("127.8.9.10:5555", "tcp://[*]:0;127.8.9.10:5555"),
            ("0.0.0.0:5555", "tcp://[*]:0;0.0.0.0:5555"),
            ("[::1]:5555", "tcp://[*]:0;[::1]:5555"),
            ("203.0.113.7:5555", "tcp://203.0.113.7:5555"),
            ("[2001:db8::7]:5555", "tcp://[2001:db8::7]:5555"),
            ("[fe80::dead:beef:1:2%1]:5555", "tcp://[fe80::dead:beef:1:2%1]:5555"),
        ] {
            assert_eq!(dial_text(address(text)), expected);
        }
    }

    fn interface_addresses() -> Vec<SocketAddr> {
        let (mut list, mut addresses) = (ptr::null_mut(), Vec::new());
        // SAFETY: getifaddrs makes the list.
        assert_eq!(unsafe { libc::getifaddrs(&mut list) }, 0);
        let mut entry = list;
        // SAFETY: the list's entries are valid, and end with null.
        while let Some(interface) = unsafe { entry.as_ref() } {
            entry = interface.ifa_next;
            // SAFETY: `ifa_addr` is null or an address as long as its family needs.
            let length = match unsafe { interface.ifa_addr.as_ref() }.map(|a| a.sa_family.into()) {
                Some(libc::AF_INET) => size_of::<libc::sockaddr_in>(),
                Some(libc::AF_INET6) => size_of::<libc::sockaddr_in6>(),
                _ => continue,
            };
            // SAFETY: see above.
            let address = unsafe {
                let mut storage = SockAddrStorage::zeroed();
                ptr::copy_nonoverlapping(interface.ifa_addr.cast::<u8>(), ptr::from_mut(&mut storage).cast(), length);
                SockAddr::new(storage, length as libc::socklen_t)
            };
            addresses.push(address.as_socket().unwrap());
        }
        // SAFETY: the list is freed once, and `entry` is null by now.
        unsafe { libc::freeifaddrs(list) };
        addresses
    }

    #[test]
    fn every_interface_address_is_local() {
        let begun = Instant::now();
        for address in interface_addresses() {
            // Interfaces come and go, and a new IPv6 address is not usable at once.
            while !is_local(address) && interface_addresses().contains(&address) {
                assert!(begun.elapsed() < Duration::from_secs(10), "{address}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn route(source: Option<&str>, interface: Option<&str>) -> Route {
        Route::new(source.map(|text| format!("{text}:0").parse().unwrap()), interface.map(Into::into))
    }

    #[test]
    fn a_source_is_dialled_from_as_it_is() {
        for (source, to, text) in [
            ("127.0.0.2", "127.0.0.1:5555", "tcp://127.0.0.2:0;127.0.0.1:5555"),
            ("127.0.0.2", "203.0.113.7:5555", "tcp://127.0.0.2:0;203.0.113.7:5555"),
            ("[::1]", "[2001:db8::7]:5555", "tcp://[::1]:0;[2001:db8::7]:5555"),
        ] {
            assert_eq!(route(Some(source), None).to(address(to)).unwrap().to_str(), Ok(text));
        }
    }

    #[test]
    fn what_cannot_be_dialled_as_asked_says_why() {
        for (source, interface, to, os_errno, text) in [
            (
                Some("127.0.0.2"),
                None,
                "[::1]:5",
                libc::EAFNOSUPPORT,
                "source_address 127.0.0.2 is IPv4, and ::1 is IPv6",
            ),
            (Some("[::1]"), None, "10.0.0.1:5", libc::EAFNOSUPPORT, "source_address ::1 is IPv6, and 10.0.0.1 is IPv4"),
            (Some("203.0.113.7"), None, "10.0.0.1:5", libc::EADDRNOTAVAIL, "source_address 203.0.113.7"),
            (Some("[2001:db8::7]"), None, "[::1]:5", libc::EADDRNOTAVAIL, "source_address 2001:db8::7"),
            (None, Some("nosuch0"), "10.0.0.1:5", libc::ENODEV, "interface nosuch0"),
        ] {
            let failure = route(source, interface).to(address(to)).unwrap_err();
            assert_eq!(failure.os_errno, os_errno, "{}", failure.message);
            assert!(failure.message.contains(text), "{}", failure.message);
        }
        assert!(route(None, Some("lo")).to(address("127.0.0.1:5")).is_ok());
    }
}
