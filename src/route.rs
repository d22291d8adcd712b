//! From an address to the numeric text that libzmq dials, by the source and the interface that the options ask for.

use std::ffi::CString;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::connection::dial::DialFailure;
use crate::descriptor;
use crate::options::Values;

/// How the options ask TCP to be dialled. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// `source_address`, with port 0.
    source: Option<SocketAddr>,
    /// `interface`.
    interface: Option<Arc<str>>,
}

impl Route {
    pub(crate) fn new(values: &Values) -> Route {
        Route { source: values.source_address(), interface: values.interface().cloned() }
    }

    /// The text with which `zmq_connect` dials `address`, or why it cannot be dialled. Of an interface that is not
    /// there libzmq would tell nothing at all, and of an impossible source not why it failed.
    pub(crate) fn to(&self, address: SocketAddr) -> Result<CString, DialFailure> {
        if let Some(source) = self.source
            && source.is_ipv4() != address.is_ipv4()
        {
            let family = |ip: SocketAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(DialFailure {
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
        CString::new(text).map_err(|_| DialFailure { os_errno: libc::EINVAL, message: "a NUL in an address".into() })
    }

    /// Whether a socket can be bound as this route asks.
    fn check(&self, address: SocketAddr) -> Result<(), DialFailure> {
        // Without a descriptor nothing can be told here, and libzmq cannot dial either.
        let Ok(probe) = probe(address) else { return Ok(()) };
        let failed = |e: io::Error, what: String| DialFailure {
            os_errno: e.raw_os_error().unwrap_or(0),
            message: format!("{what} cannot be dialled from: {e}"),
        };
        if let Some(interface) = &self.interface {
            bind_to_device(&probe, interface).map_err(|e| failed(e, format!("interface {interface}")))?;
        }
        if let Some(source) = self.source {
            bind(&probe, source).map_err(|e| failed(e, format!("source_address {}", host(source))))?;
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

/// The text without any wishes: `tcp://ip:port`, with a wildcard source before it if the destination is this host.
///
/// A socket that dials a free port of its own host may be given that very port as its source, and is then connected to
/// itself. For a source that was bound first, which is what libzmq does for `tcp://[*]:0;ip:port`, the kernel takes odd
/// ports as long as there are any, so that this is rarer, but not impossible: a dial that is connected to itself fails.
/// In contrast to any other local connection such a source does not keep a listener from binding the port, neither
/// while the connection lives nor after. Other destinations do not need it, and crowded binding costs milliseconds.
///
/// `[*]` because libzmq takes everything else for the name of an interface at first, and lists all interfaces at every
/// dial. The brackets, which it strips, carry the asterisk past its check of a text's first character.
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
    probe(address).and_then(|probe| bind(&probe, address)).is_ok()
}

/// A socket of the address's family. UDP, because nothing is left of it once it is closed.
fn probe(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: takes no pointers.
    descriptor::own(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

fn bind_to_device(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    // SAFETY: the name is readable for its length.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    })
}

fn bind(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    // SAFETY: each name is a complete address of the given size.
    check(unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let mut name: libc::sockaddr_in = mem::zeroed();
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(Ipv4Addr::octets(v4.ip()));
                bind_name(socket, &name)
            }
            SocketAddr::V6(v6) => {
                let mut name: libc::sockaddr_in6 = mem::zeroed();
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_port = v6.port().to_be();
                name.sin6_addr.s6_addr = Ipv6Addr::octets(v6.ip());
                name.sin6_scope_id = v6.scope_id();
                bind_name(socket, &name)
            }
        }
    })
}

/// # Safety
/// `name` is a socket address.
unsafe fn bind_name<T>(socket: &OwnedFd, name: &T) -> libc::c_int {
    // SAFETY: readable for its size; a socket address by contract.
    unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(name).cast(), size_of::<T>() as libc::socklen_t) }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::socket_address;
    use std::ptr;

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

    #[test]
    fn every_interface_address_is_local() {
        let mut list = ptr::null_mut();
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
            let address = unsafe { socket_address(interface.ifa_addr, length as u32) }.unwrap();
            assert!(is_local(address), "{address}");
        }
        // SAFETY: the list is freed once, and `entry` is null by now.
        unsafe { libc::freeifaddrs(list) };
    }

    fn route(source: Option<&str>, interface: Option<&str>) -> Route {
        Route { source: source.map(|text| format!("{text}:0").parse().unwrap()), interface: interface.map(Into::into) }
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
