//! Settings that are texts: what is accepted, and its one canonical form.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use crate::net::endpoint;

/// An address to dial from. Its port is 0.
pub(super) fn source(text: &str) -> Option<String> {
    let (ip, zone) = match text.parse::<Ipv4Addr>() {
        Ok(ip) => (ip.into(), 0),
        Err(_) => endpoint::parse_ipv6(text).ok().map(|(ip, zone)| (IpAddr::from(ip).to_canonical(), zone))?,
    };
    // No interface has such an address.
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return None;
    }
    Some(match ip {
        IpAddr::V6(v6) if zone != 0 => format!("{v6}%{zone}"),
        ip => ip.to_string(),
    })
}

/// The same, from its canonical form.
pub(super) fn source_of(text: &str) -> Option<SocketAddr> {
    match text.parse::<Ipv4Addr>() {
        Ok(ip) => Some((ip, 0).into()),
        Err(_) => Some(SocketAddr::V6(format!("[{text}]:0").parse::<SocketAddrV6>().ok()?)),
    }
}

/// An interface's name, as the kernel allows them.
pub(super) fn interface(text: &str) -> Option<String> {
    let allowed = |sign: char| !sign.is_whitespace() && !sign.is_control() && !matches!(sign, '/' | ':');
    let fits = (1..=15).contains(&text.len()) && text.chars().all(allowed) && text != "." && text != "..";
    fits.then(|| text.to_owned())
}
