//! Endpoints: where a peer rank listens, as text that is parsed strictly and kept in one canonical
//! form.
//!
//! The canonical text is the key of the connection cache, so it must be the same for the same
//! endpoint and differ for different ones. libzmq is no help here: it takes `tcp://10.0.0.1:99999`
//! and dials port 34463, and it takes `tcp://127.1:5` without a word. Whatever `parse` lets through
//! can be dialled, and means exactly what it says.
//!
//! | | accepted | canonical form |
//! | --- | --- | --- |
//! | IPv4 | four decimal numbers, no leading zeros | as written |
//! | IPv6 | in brackets, any spelling | RFC 5952 (lower case, shortest); a v4-mapped address becomes the IPv4 address |
//! | zone | on a link-local address, which needs one; by name or index (`%eth0`, `%2`) | the index: `[fe80::1%2]` |
//! | name | labels of letters, digits, `-` and `_`; a last dot may say that it is absolute | lower case; the last dot stays, as `host.` and `host` can resolve differently |
//! | port | decimal, 1 to 65535, no leading zeros | as written |
//! | ipc | a path, or `@` and an abstract name | as written: paths compare as text |
//!
//! A name and its address are two endpoints: only a look-up could tell that they are the same, and
//! it may answer differently tomorrow.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::error::Error;
use std::ffi::CString;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// Longest text of an endpoint, in bytes. With its NUL it fits `endpoint[264]` of
/// `kvconn_error_t`.
pub const MAX_ENDPOINT: usize = 263;

/// Longest host name in bytes, without the dot at its end (RFC 1035: 255 in wire form).
const MAX_NAME: usize = 253;
/// Longest label of a host name, in bytes (RFC 1035).
const MAX_LABEL: usize = 63;
/// Longest ipc path or abstract name, in bytes: `sun_path` has 108, one of which is a NUL.
const MAX_IPC: usize = 107;

/// Where a peer rank listens. Cheap to clone; compared, hashed and ordered by its canonical text.
#[derive(Clone)]
pub struct Endpoint {
    parts: Arc<Parts>,
}

struct Parts {
    text: String,
    target: Target,
}

/// What there is to dial at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP address. Never a v4-mapped one, and with a zone exactly if it is link-local.
    Address(SocketAddr),
    /// A TCP port of a host whose name must be looked up.
    Name {
        /// The name, in lower case, with the dot at its end if there was one.
        host: String,
        /// The port, never 0.
        port: u16,
    },
    /// A Unix socket.
    Ipc {
        /// The path, or `@` and an abstract name.
        path: String,
    },
}

/// Why a text is not an endpoint: one sentence that names the offending part and says what to
/// write instead. At most [`EndpointError::MAX_TEXT`] bytes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError {
    text: String,
}

impl Endpoint {
    /// Parses `text` and brings it into canonical form.
    ///
    /// The result depends on `text` alone, except for a zone that is given by its interface's name.
    ///
    /// # Errors
    ///
    /// If `text` is anything but an endpoint that can be dialled: addresses and ports to *listen*
    /// on, blanks, paths behind a port, other schemes, and all that the module's table leaves out.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        if text.len() > MAX_ENDPOINT {
            let length = text.len();
            return refuse(format!("the endpoint is {length} bytes long: write at most {MAX_ENDPOINT}"));
        }
        if text.contains(char::is_control) {
            return refuse(format!("{} contains a control character: leave it out", quote(text)));
        }
        let target = if let Some(rest) = text.strip_prefix("tcp://") {
            parse_tcp(rest)?
        } else if let Some(path) = text.strip_prefix("ipc://") {
            parse_ipc(path)?
        } else {
            return refuse_scheme(text);
        };
        let text = target.to_string();
        Ok(Endpoint { parts: Arc::new(Parts { text, target }) })
    }

    /// The canonical text, such as `tcp://10.0.0.1:899`, `tcp://[fe80::1%2]:5555` or
    /// `ipc:///tmp/x`.
    pub fn as_str(&self) -> &str {
        &self.parts.text
    }

    /// What there is to dial.
    pub fn target(&self) -> &Target {
        &self.parts.target
    }
}

impl EndpointError {
    /// Longest text of an error, in bytes. With its NUL it fits `message[256]` of
    /// `kvconn_error_t`.
    pub const MAX_TEXT: usize = 255;
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Endpoint) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Endpoint {}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

/// Maps with endpoints as keys are searched by canonical text.
impl Borrow<str> for Endpoint {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialOrd for Endpoint {
    fn partial_cmp(&self, other: &Endpoint) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Endpoint {
    fn cmp(&self, other: &Endpoint) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The canonical text.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The standard library writes IPv6 as RFC 5952 asks, and a zone as its index.
            Target::Address(address) => write!(f, "tcp://{address}"),
            Target::Name { host, port } => write!(f, "tcp://{host}:{port}"),
            Target::Ipc { path } => write!(f, "ipc://{path}"),
        }
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Error for EndpointError {}

fn refuse<T>(text: String) -> Result<T, EndpointError> {
    Err(EndpointError { text })
}

/// Says what is wrong with a text that begins neither with `tcp://` nor with `ipc://`.
fn refuse_scheme<T>(text: &str) -> Result<T, EndpointError> {
    let Some((scheme, _)) = text.split_once("://") else {
        return refuse(format!("{} has no scheme: write tcp://host:port or ipc://path", quote(text)));
    };
    let known = scheme.trim().to_ascii_lowercase();
    if known == "tcp" || known == "ipc" {
        return refuse(format!(
            "the scheme {} must be written {known}, in lower case and without blanks",
            quote(scheme)
        ));
    }
    refuse(format!("the scheme {} is not supported: write tcp://host:port or ipc://path", quote(scheme)))
}

/// Characters that some take for part of a TCP endpoint, and what they are not.
const FOREIGN: [(char, &str); 5] = [
    (';', "has a source address: that is the option source_address; write only"),
    ('@', "has a user name: write only"),
    ('/', "has a path: write only"),
    ('?', "has a query: write only"),
    ('#', "has a fragment: write only"),
];

/// Parses what follows `tcp://`.
fn parse_tcp(rest: &str) -> Result<Target, EndpointError> {
    if rest.contains(char::is_whitespace) {
        return refuse(format!("{} contains a blank: leave it out", quote(rest)));
    }
    if let Some((_, what)) = FOREIGN.iter().find(|(sign, _)| rest.contains(*sign)) {
        return refuse(format!("{} {what} tcp://host:port", quote(rest)));
    }
    if let Some(bracketed) = rest.strip_prefix('[') {
        let Some((host, port)) = bracketed.split_once(']') else {
            return refuse(format!("{} has no closing bracket: write tcp://[address]:port", quote(rest)));
        };
        let (ip, zone) = parse_ipv6(host)?;
        let ip = dialable(ip.to_canonical())?;
        let port = parse_port(port)?;
        return Ok(Target::Address(match ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, zone).into(),
        }));
    }
    let (host, port) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
    if port.matches(':').count() > 1 {
        return refuse(format!(
            "{} has more than one ':': write an IPv6 address in brackets, as in tcp://[fd00::1]:5555",
            quote(rest)
        ));
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        let ip = dialable(ip.into())?;
        return Ok(Target::Address((ip, parse_port(port)?).into()));
    }
    let host = parse_name(host)?;
    let port = parse_port(port)?;
    Ok(Target::Name { host, port })
}

/// Parses what follows a host: a colon and the port.
fn parse_port(text: &str) -> Result<u16, EndpointError> {
    let Some(port) = text.strip_prefix(':') else {
        return match text {
            "" => refuse("the port is missing: write tcp://host:port".to_owned()),
            _ => refuse(format!("{} stands between the address and its port: write tcp://[address]:port", quote(text))),
        };
    };
    match port {
        "" => refuse("the port is empty: write a number from 1 to 65535".to_owned()),
        "0" | "*" => {
            refuse(format!("port {port} cannot be dialled, it lets a listener choose: write the port it chose"))
        }
        _ => match decimal(port) {
            Some(number) => Ok(number),
            None => refuse(format!(
                "port {} is not a decimal number from 1 to 65535 without sign or leading zeros",
                quote(port)
            )),
        },
    }
}

/// A positive decimal number in its only canonical spelling: no sign, no leading zero.
fn decimal<N: std::str::FromStr>(text: &str) -> Option<N> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    canonical.then(|| text.parse().ok()).flatten()
}

/// Parses what stands between brackets: an IPv6 address, and a zone (0 if there is none).
pub(crate) fn parse_ipv6(text: &str) -> Result<(Ipv6Addr, u32), EndpointError> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let Ok(ip) = address.parse::<Ipv6Addr>() else {
        return refuse(format!(
            "{} in brackets is not an IPv6 address: write one, or leave out the brackets",
            quote(address)
        ));
    };
    match (ip.is_unicast_link_local(), zone) {
        (true, Some(zone)) => Ok((ip, parse_zone(zone)?)),
        (false, None) => Ok((ip, 0)),
        // Linux refuses to dial it (EINVAL): the same address may exist behind every interface.
        (true, None) => {
            refuse(format!("{ip} is link-local and needs a zone: write the interface to use, as in [{ip}%eth0]"))
        }
        // The kernel ignores such a zone, so with and without it would be one endpoint.
        (false, Some(zone)) => {
            refuse(format!("zone {} does not apply, {ip} is not link-local: leave it out", quote(zone)))
        }
    }
}

/// The index of a zone that is given by index or by interface name.
///
/// An index is not checked: it is what it is, whether or not there is such an interface yet.
fn parse_zone(zone: &str) -> Result<u32, EndpointError> {
    if zone.starts_with(|first: char| first.is_ascii_digit()) {
        // The kernel's index is an int.
        return match decimal::<i32>(zone) {
            Some(index) => Ok(index.unsigned_abs()),
            None => refuse(format!(
                "zone {} is not the index of an interface: write %2 or %eth0 (not %25eth0)",
                quote(zone)
            )),
        };
    }
    // Blanks and control characters, NUL among them, have been refused before.
    let name = CString::new(zone).unwrap_or_default();
    // SAFETY: `name` is a NUL-terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => refuse(format!(
            "zone {} is not an interface of this host ({})",
            quote(zone),
            std::io::Error::last_os_error()
        )),
        index => Ok(index),
    }
}

/// Refuses addresses that no single peer can have.
fn dialable(ip: IpAddr) -> Result<IpAddr, EndpointError> {
    if ip.is_unspecified() {
        return refuse_wildcard(&ip.to_string());
    }
    if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return refuse(format!("{ip} is a multicast or broadcast address: write the address of one peer"));
    }
    Ok(ip)
}

fn refuse_wildcard<T>(host: &str) -> Result<T, EndpointError> {
    refuse(format!("{host} is an address to listen on, not to dial: write the peer's own address"))
}

/// Checks a host name and lowers its case.
fn parse_name(host: &str) -> Result<String, EndpointError> {
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.is_empty() {
        return refuse("the host is missing: write tcp://host:port".to_owned());
    }
    if name == "*" {
        return refuse_wildcard(name);
    }
    // getaddrinfo reads 127.1, 2130706433 and 0x7f.1 as IPv4 addresses, whatever they were meant
    // to be.
    if name.split('.').all(is_number) {
        return refuse(format!(
            "{} is not an IPv4 address: write four decimal numbers up to 255 without leading zeros",
            quote(host)
        ));
    }
    if name.len() > MAX_NAME {
        let length = name.len();
        return refuse(format!("the host name is {length} bytes long: write at most {MAX_NAME}"));
    }
    for label in name.split('.') {
        check_label(label, host)?;
    }
    Ok(host.to_ascii_lowercase())
}

/// Whether the C library takes `label` for one of the numbers of an IPv4 address.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x").or(label.strip_prefix("0X")) {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Checks one label of the name `host`: RFC 1123, and underscores, which container systems use.
fn check_label(label: &str, host: &str) -> Result<(), EndpointError> {
    let foreign = |sign: &char| !(sign.is_ascii_alphanumeric() || *sign == '-' || *sign == '_');
    if let Some(sign) = label.chars().find(foreign) {
        let hint = match sign.is_ascii() {
            true => "use letters, digits, '-', '_' and '.'",
            false => "write an international name in its xn-- form",
        };
        return refuse(format!("host name {} contains {}: {hint}", quote(host), quote(sign.encode_utf8(&mut [0; 4]))));
    }
    if label.is_empty() {
        return refuse(format!("host name {} has an empty label", quote(host)));
    }
    if label.len() > MAX_LABEL {
        return refuse(format!("host name {} has a label of more than {MAX_LABEL} bytes", quote(host)));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return refuse(format!("host name {} has '-' at the edge of the label {}", quote(host), quote(label)));
    }
    Ok(())
}

/// Parses what follows `ipc://`.
fn parse_ipc(path: &str) -> Result<Target, EndpointError> {
    match path {
        "" => refuse("the ipc path is empty: write ipc:///path or ipc://@name".to_owned()),
        "@" => refuse("the abstract ipc name is empty: write ipc://@name".to_owned()),
        "*" => refuse_wildcard("ipc://*"),
        _ if path.len() > MAX_IPC => {
            refuse(format!("the ipc path is {} bytes long: a Unix socket's can have {MAX_IPC}", path.len()))
        }
        _ => Ok(Target::Ipc { path: path.to_owned() }),
    }
}

/// A part of the text in quotes for an error: printable, in ASCII, and cut off where it would make
/// the error too long.
fn quote(part: &str) -> String {
    const MAX: usize = 72;
    let mut shown = part.escape_default().to_string();
    if shown.len() > MAX {
        shown.truncate(MAX);
        shown.push_str("...");
    }
    format!("'{shown}'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn canonical(text: &str) -> String {
        match Endpoint::parse(text) {
            Ok(endpoint) => endpoint.as_str().to_owned(),
            Err(error) => panic!("{text}: {error}"),
        }
    }

    #[track_caller]
    fn assert_refused(text: &str, reason: &str) {
        match Endpoint::parse(text) {
            Ok(endpoint) => panic!("{text} was taken for {endpoint}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(reason), "{text}: {error:?} lacks {reason:?}");
            }
        }
    }

    #[test]
    fn canonical_forms() {
        let table = [
            ("tcp://10.0.0.1:899", "tcp://10.0.0.1:899"),
            ("tcp://10.0.0.1:8998", "tcp://10.0.0.1:8998"),
            ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
            ("tcp://240.0.0.1:65535", "tcp://240.0.0.1:65535"),
            ("tcp://[::1]:5555", "tcp://[::1]:5555"),
            ("tcp://[0:0::0:0001]:5555", "tcp://[::1]:5555"),
            ("tcp://[FD00:0:0:1:0:0:0:A]:5555", "tcp://[fd00:0:0:1::a]:5555"),
            ("tcp://[fd00::10.0.0.1]:5555", "tcp://[fd00::a00:1]:5555"),
            ("tcp://[::ffff:10.0.0.1]:899", "tcp://10.0.0.1:899"),
            ("tcp://[::FFFF:a00:1]:899", "tcp://10.0.0.1:899"),
            ("tcp://[fe80::1%2]:5555", "tcp://[fe80::1%2]:5555"),
            ("tcp://[FEBF::1%2147483647]:5555", "tcp://[febf::1%2147483647]:5555"),
            ("tcp://Node-1.Example.COM:80", "tcp://node-1.example.com:80"),
            ("tcp://node-1.example.com.:80", "tcp://node-1.example.com.:80"),
            ("tcp://LOCALHOST:80", "tcp://localhost:80"),
            ("tcp://prefill_0.svc_a:80", "tcp://prefill_0.svc_a:80"),
            ("tcp://_x_:80", "tcp://_x_:80"),
            ("tcp://xn--bcher-kva.example:80", "tcp://xn--bcher-kva.example:80"),
            ("tcp://1a.2:80", "tcp://1a.2:80"),
            ("tcp://0xyz:80", "tcp://0xyz:80"),
            ("tcp://10.0.0.1.example:80", "tcp://10.0.0.1.example:80"),
            ("ipc:///tmp/x", "ipc:///tmp/x"),
            ("ipc:///tmp//x/", "ipc:///tmp//x/"),
            ("ipc://X.sock", "ipc://X.sock"),
            ("ipc://@abstract", "ipc://@abstract"),
            ("ipc://*x", "ipc://*x"),
            ("ipc:///tmp/a b\u{e9};@?#", "ipc:///tmp/a b\u{e9};@?#"),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn refusals_name_the_part_and_the_remedy() {
        let table = [
            // scheme
            ("", "'' has no scheme: write tcp://host:port or ipc://path"),
            ("10.0.0.1:5555", "'10.0.0.1:5555' has no scheme"),
            ("tcp:/10.0.0.1:5555", "has no scheme"),
            ("TCP://10.0.0.1:5555", "the scheme 'TCP' must be written tcp, in lower case"),
            (" tcp://10.0.0.1:5555", "the scheme ' tcp' must be written tcp"),
            ("Ipc:///tmp/x", "must be written ipc"),
            ("inproc://x", "the scheme 'inproc' is not supported"),
            ("http://host:80", "the scheme 'http' is not supported"),
            ("://host:80", "the scheme '' is not supported"),
            // what does not belong there
            ("tcp://10.0.0.1:5555 ", "'10.0.0.1:5555 ' contains a blank"),
            ("tcp:// 10.0.0.1:5555", "blank"),
            ("tcp://10.0. 0.1:5555", "blank"),
            ("tcp://10.0.0.1:55\u{a0}55", "blank"),
            ("tcp://10.0.0.1:5555\n", "control character"),
            ("tcp://host\0:5555", "control character"),
            ("tcp://0.0.0.0:0;10.0.0.1:5555", "has a source address"),
            ("tcp://10.0.0.1:5555;", "has a source address"),
            ("tcp://user@host:5555", "has a user name"),
            ("tcp://host:5555/", "has a path"),
            ("tcp://host:5555?a=b", "has a query"),
            ("tcp://host:5555#a", "has a fragment"),
            // port
            ("tcp://host", "the port is missing"),
            ("tcp://10.0.0.1", "the port is missing"),
            ("tcp://[::1]", "the port is missing"),
            ("tcp://host:", "the port is empty"),
            ("tcp://host:0", "port 0 cannot be dialled"),
            ("tcp://host:*", "port * cannot be dialled"),
            ("tcp://10.0.0.1:0", "port 0 cannot be dialled"),
            ("tcp://[::1]:0", "port 0 cannot be dialled"),
            ("tcp://host:65536", "port '65536' is not a decimal number from 1 to 65535"),
            ("tcp://host:99999", "port '99999' is not"),
            ("tcp://host:18446744073709551617", "is not a decimal number"),
            ("tcp://host:05555", "without sign or leading zeros"),
            ("tcp://host:00", "port '00' is not"),
            ("tcp://host:+1", "port '+1' is not"),
            ("tcp://host:-1", "port '-1' is not"),
            ("tcp://host:5555x", "port '5555x' is not"),
            ("tcp://host:0x50", "port '0x50' is not"),
            ("tcp://host:\u{661}", "is not a decimal number"),
            ("tcp://[::1]5555", "'5555' stands between the address and its port"),
            ("tcp://[::1]]:5555", "']:5555' stands between"),
            // addresses nobody can be dialled at
            ("tcp://0.0.0.0:5555", "0.0.0.0 is an address to listen on, not to dial"),
            ("tcp://*:5555", "* is an address to listen on"),
            ("tcp://*:*", "* is an address to listen on"),
            ("tcp://[::]:5555", ":: is an address to listen on"),
            ("tcp://[0::0]:5555", ":: is an address to listen on"),
            ("tcp://[::ffff:0.0.0.0]:5555", "0.0.0.0 is an address to listen on"),
            ("tcp://255.255.255.255:5555", "multicast or broadcast"),
            ("tcp://[::ffff:255.255.255.255]:5555", "multicast or broadcast"),
            ("tcp://224.0.0.1:5555", "224.0.0.1 is a multicast"),
            ("tcp://239.255.255.255:5555", "multicast"),
            ("tcp://[ff02::1]:5555", "multicast"),
            // IPv4 that is not four decimal numbers
            ("tcp://127.1:5555", "'127.1' is not an IPv4 address: write four decimal numbers"),
            ("tcp://2130706433:5555", "is not an IPv4 address"),
            ("tcp://0x7f.1:5555", "is not an IPv4 address"),
            ("tcp://0X7F000001:5555", "is not an IPv4 address"),
            ("tcp://127.0.0.01:5555", "without leading zeros"),
            ("tcp://127.0.0.256:5555", "is not an IPv4 address"),
            ("tcp://127.0.0.1.:5555", "is not an IPv4 address"),
            ("tcp://1.2.3.4.5:5555", "is not an IPv4 address"),
            // IPv6
            ("tcp://::1:5555", "write an IPv6 address in brackets"),
            ("tcp://fe80::1%2:5555", "write an IPv6 address in brackets"),
            ("tcp://host:55:55", "more than one ':'"),
            ("tcp://[::1:5555", "has no closing bracket"),
            ("tcp://[10.0.0.1]:5555", "'10.0.0.1' in brackets is not an IPv6 address"),
            ("tcp://[localhost]:5555", "'localhost' in brackets is not"),
            ("tcp://[]:5555", "in brackets is not an IPv6 address"),
            ("tcp://[1::2::3]:5555", "is not an IPv6 address"),
            // zone
            ("tcp://[fe80::1]:5555", "needs a zone: write the interface to use, as in [fe80::1%eth0]"),
            ("tcp://[::1%lo]:5555", "zone 'lo' does not apply, ::1 is not link-local"),
            ("tcp://[::ffff:10.0.0.1%2]:5555", "zone '2' does not apply"),
            ("tcp://[fe80::1%]:5555", "zone '' is not an interface"),
            ("tcp://[fe80::1%0]:5555", "zone '0' is not the index of an interface"),
            ("tcp://[fe80::1%02]:5555", "zone '02' is not the index"),
            ("tcp://[fe80::1%2147483648]:5555", "is not the index"),
            ("tcp://[fe80::1%25eth0]:5555", "write %2 or %eth0 (not %25eth0)"),
            ("tcp://[fe80::1%no-such-interface]:5555", "is not an interface of this host"),
            ("tcp://[fe80::1%2%2]:5555", "zone '2%2' is not"),
            // names
            ("tcp://", "the host is missing"),
            ("tcp://:5555", "the host is missing"),
            ("tcp://.:5555", "the host is missing"),
            ("tcp://a..b:5555", "host name 'a..b' has an empty label"),
            ("tcp://.a:5555", "has an empty label"),
            ("tcp://a..:5555", "has an empty label"),
            ("tcp://-a.b:5555", "has '-' at the edge of the label '-a'"),
            ("tcp://a.b-:5555", "has '-' at the edge of the label 'b-'"),
            ("tcp://a+b:5555", "host name 'a+b' contains '+': use letters"),
            ("tcp://localhost%lo:5555", "contains '%'"),
            ("tcp://127.0.0.1]:5555", "contains ']'"),
            ("tcp://b\u{fc}cher.example:5555", "its xn-- form"),
            // ipc
            ("ipc://", "the ipc path is empty"),
            ("ipc://@", "the abstract ipc name is empty"),
            ("ipc://*", "ipc://* is an address to listen on"),
            ("ipc:///tmp/x\0y", "control character"),
            ("ipc:///tmp/x\n", "control character"),
        ];
        for (text, reason) in table {
            assert_refused(text, reason);
        }
    }

    #[test]
    fn lengths() {
        let label = "a".repeat(63);
        let name = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(name.len(), MAX_NAME);
        canonical(&format!("tcp://{label}:1"));
        assert_refused(&format!("tcp://{label}a:1"), "a label of more than 63 bytes");
        canonical(&format!("tcp://{name}:99"));
        assert_refused(&format!("tcp://{name}a:9"), "254 bytes long: write at most 253");
        canonical(&format!("tcp://{name}.:9"));
        assert_eq!(canonical(&format!("tcp://{name}:999")).len(), MAX_ENDPOINT);
        let long = "the endpoint is 264 bytes long: write at most 263";
        assert_refused(&format!("tcp://{name}:9999"), long);

        for start in ["/", "@", "x"] {
            let path = format!("{start}{}", "p".repeat(106));
            canonical(&format!("ipc://{path}"));
            assert_refused(&format!("ipc://{path}p"), "the ipc path is 108 bytes long");
        }
    }

    #[test]
    fn errors_are_short_even_if_the_part_is_long() {
        for part in ["+", "1", "a", ":", "\u{e9}", "\u{1}", ".", "-"] {
            for start in ["", "tcp://", "tcp://a:", "tcp://[", "tcp://[fe80::1%", "tcp://[::1]"] {
                check(&format!("{start}{}", part.repeat(120)));
            }
        }
    }

    #[test]
    fn a_zone_by_name_is_the_zone_by_index() {
        // SAFETY: the name is NUL-terminated.
        let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let by_name = Endpoint::parse("tcp://[fe80::1%lo]:5555").unwrap();
        let by_index = Endpoint::parse(&format!("tcp://[fe80::1%{index}]:5555")).unwrap();
        assert_eq!(by_name, by_index);
        let Target::Address(SocketAddr::V6(address)) = by_name.target() else {
            panic!("{by_name} is no IPv6 address");
        };
        assert_eq!(address.scope_id(), index);
    }

    #[test]
    fn a_name_and_its_address_are_two_endpoints() {
        let parse = |text| Endpoint::parse(text).unwrap();
        let distinct: HashSet<Endpoint> = [
            "tcp://localhost:5555",
            "tcp://localhost.:5555",
            "tcp://127.0.0.1:5555",
            "tcp://[::1]:5555",
            "tcp://[::ffff:127.0.0.1]:5555",
            "tcp://LocalHost:5555",
        ]
        .map(parse)
        .into();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn targets() {
        let target = |text| Endpoint::parse(text).unwrap().target().clone();
        assert_eq!(target("tcp://10.0.0.1:899"), Target::Address("10.0.0.1:899".parse().unwrap()));
        assert_eq!(target("tcp://Host.:899"), Target::Name { host: "host.".to_owned(), port: 899 });
        assert_eq!(target("ipc://@x"), Target::Ipc { path: "@x".to_owned() });
    }

    #[test]
    fn shown_as_the_canonical_text() {
        let endpoint = Endpoint::parse("tcp://[0::1]:5555").unwrap();
        assert_eq!(format!("{endpoint} {endpoint:?}"), "tcp://[::1]:5555 tcp://[::1]:5555");
        assert_eq!(format!("{endpoint:>18}"), "  tcp://[::1]:5555");
    }

    /// Addresses, more often than by chance near the borders of the special ranges.
    fn addresses() -> impl Strategy<Value = SocketAddr> {
        let v4 = (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from);
        let v6 = (any::<[u16; 8]>(), any::<u16>()).prop_map(SocketAddr::from);
        let mapped =
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| (Ipv4Addr::from(ip).to_ipv6_mapped(), port).into());
        let sparse =
            (proptest::array::uniform8(prop_oneof![Just(0), any::<u16>()]), 0..3_u16).prop_map(SocketAddr::from);
        let local = (any::<[u16; 8]>(), any::<u16>(), 0..4_u32).prop_map(|(mut ip, port, zone)| {
            ip[0] = 0xfe00 | (ip[0] & 0xff);
            SocketAddrV6::new(ip.into(), port, 0, zone).into()
        });
        prop_oneof![v4, v6, mapped, sparse, local]
    }

    /// Texts that are, or nearly are, endpoints.
    fn near_endpoints() -> impl Strategy<Value = String> {
        let mutation = (any::<prop::sample::Index>(), 0..3, "[ -~\\PC\u{0}]");
        let endpoints = prop_oneof![
            addresses().prop_map(|address| format!("tcp://{address}")),
            "tcp://[A-Za-z0-9_-]{1,8}(\\.[a-z0-9_-]{1,8}){0,3}\\.?:[0-9]{1,5}",
            "tcp://[0-9x.]{1,12}:[0-9]{1,5}",
            "tcp://\\[[0-9a-f:%.]{1,20}\\]:[0-9]{1,5}",
            "ipc://[/@*a-z. ]{0,12}",
        ];
        let mutations = prop::collection::vec(mutation, 0..3);
        (endpoints, mutations).prop_map(|(text, mutations)| {
            let mut text: Vec<char> = text.chars().collect();
            for (place, kind, sign) in mutations {
                let place = place.index(text.len() + 1);
                let sign = sign.chars();
                match kind {
                    0 => text.truncate(place),
                    1 => drop(text.splice(place..place, sign)),
                    _ => drop(text.splice(place..text.len().min(place + 1), sign)),
                }
            }
            text.into_iter().collect()
        })
    }

    /// What must hold for any text at all.
    fn check(text: &str) {
        match Endpoint::parse(text) {
            Ok(endpoint) => {
                assert!(endpoint.as_str().len() <= MAX_ENDPOINT);
                let again = Endpoint::parse(endpoint.as_str()).unwrap();
                assert_eq!(again, endpoint);
                assert_eq!(again.as_str(), endpoint.as_str());
                assert_eq!(again.target(), endpoint.target());
                if let Target::Address(address) = endpoint.target() {
                    let ip = address.ip();
                    assert!(address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast());
                    assert_eq!(ip, ip.to_canonical());
                }
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.is_ascii() && error.len() <= EndpointError::MAX_TEXT, "{error}");
                assert!(!error.contains(|sign: char| sign.is_control()), "{error:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_parses_or_is_refused(text in any::<String>(), scheme in "(tcp|ipc)://") {
            check(&text);
            check(&(scheme + &text));
        }

        #[test]
        fn nearly_an_endpoint_parses_or_is_refused(text in near_endpoints()) {
            check(&text);
        }

        #[test]
        fn equal_text_is_equal_target(a in near_endpoints(), b in near_endpoints()) {
            if let (Ok(a), Ok(b)) = (Endpoint::parse(&a), Endpoint::parse(&b)) {
                prop_assert_eq!(a == b, a.target() == b.target());
                prop_assert_eq!(a == b, a.as_str() == b.as_str());
                prop_assert_eq!(a == b, a.cmp(&b) == Ordering::Equal);
            }
        }

        #[test]
        fn an_address_comes_back_or_is_refused_for_a_reason(address in addresses()) {
            let ip = address.ip().to_canonical();
            let (link_local, zone) = match (ip, address) {
                (IpAddr::V6(ip), SocketAddr::V6(address)) => {
                    (ip.segments()[0] & 0xffc0 == 0xfe80, address.scope_id())
                }
                _ => (false, 0),
            };
            let dialable = address.port() != 0
                && !ip.is_unspecified()
                && !ip.is_multicast()
                && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
                && link_local == (zone != 0);
            match Endpoint::parse(&format!("tcp://{address}")) {
                Ok(endpoint) => {
                    prop_assert!(dialable, "{} was accepted", address);
                    let mut expected = address;
                    expected.set_ip(ip);
                    prop_assert_eq!(endpoint.target(), &Target::Address(expected));
                    prop_assert_eq!(endpoint.as_str(), format!("tcp://{expected}"));
                }
                Err(error) => prop_assert!(!dialable, "{}: {}", address, error),
            }
        }

        #[test]
        fn case_of_a_name_does_not_matter(name in "[a-z_][a-z0-9_]{0,9}(\\.[a-z][a-z0-9]{0,9}){0,3}\\.?", port in 1..=u16::MAX) {
            let lower = Endpoint::parse(&format!("tcp://{name}:{port}")).unwrap();
            let upper = Endpoint::parse(&format!("tcp://{}:{port}", name.to_uppercase())).unwrap();
            prop_assert_eq!(&lower, &upper);
            prop_assert_eq!(upper.target(), &Target::Name { host: name, port });
        }

        #[test]
        fn an_ipc_path_is_kept_as_it_is(path in "[/@a-zA-Z. ][^\\p{Cc}]{1,20}") {
            prop_assume!(path.len() <= MAX_IPC);
            let endpoint = Endpoint::parse(&format!("ipc://{path}")).unwrap();
            prop_assert_eq!(endpoint.target(), &Target::Ipc { path });
        }
    }
}
