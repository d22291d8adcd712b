//! Endpoints: where a peer rank listens, as text that is parsed strictly and kept in one canonical
//! form.
//!
//! The canonical text is the key of the connection cache. So it must be the same for the same endpoint and differ for
//! different ones. libzmq is too lax for that: it takes `tcp://10.0.0.1:99999` and dials port 34463, and it silently
//! takes `tcp://127.1:5`. Every text that `parse` accepts can be dialled and means exactly what it says.
//!
//! | | accepted | canonical form |
//! | --- | --- | --- |
//! | IPv4 | four decimal numbers, no leading zeros | as written |
//! | IPv6 | in brackets, any spelling | RFC 5952 (lower case, shortest); a v4-mapped address becomes the IPv4 address |
//! | zone | on a link-local address, which needs one; by name or index (`%eth0`, `%2`) | the index: `[fe80::1%2]` |
//! | name | labels of letters, digits, `-` and `_`; a final dot marks it as absolute | lower case; the final dot stays, as `host.` and `host` can resolve differently |
//! | port | decimal, 1 to 65535, no leading zeros | as written |
//! | ipc | a path, or `@` and an abstract name | as written: paths compare as text |
//!
//! A name and its address are two endpoints: only a look-up could show that they are the same, and it may have another
//! result tomorrow.

#[cfg(test)]
mod tests;

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

/// Longest host name in bytes, without the final dot (RFC 1035: 255 in wire form).
const MAX_NAME: usize = 253;
/// Longest label of a host name, in bytes (RFC 1035).
const MAX_LABEL: usize = 63;
/// Longest ipc path or abstract name, in bytes: `sun_path` has 108, including a NUL.
const MAX_IPC: usize = 107;

/// Where a peer rank listens. Cheap to clone. Compared, hashed and ordered by its canonical text.
#[derive(Clone)]
pub struct Endpoint {
    parts: Arc<Parts>,
}

struct Parts {
    text: String,
    target: Target,
}

/// What to dial for an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP address. Never a v4-mapped one. It has a zone exactly if it is link-local.
    Address(SocketAddr),
    /// A TCP port of a host whose name must be looked up.
    Name {
        /// The name, in lower case, with its final dot if it had one.
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

/// Why a text is not an endpoint: one sentence that names the wrong part and says what to write
/// instead. At most [`EndpointError::MAX_TEXT`] bytes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError {
    text: String,
}

impl Endpoint {
    /// Parses `text` and brings it into canonical form.
    ///
    /// The result depends on `text` alone, except for a zone that is given by an interface name.
    ///
    /// # Errors
    ///
    /// If `text` is not an endpoint that can be dialled. Refused are addresses and ports to *listen* on, blanks, paths
    /// behind a port, other schemes, and everything else that is not in the module's table.
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

    /// What to dial.
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

/// Lets maps with endpoints as keys be searched by canonical text.
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
            // The standard library writes IPv6 as in RFC 5952, and a zone as its index.
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

/// The error for a text that begins neither with `tcp://` nor with `ipc://`.
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

/// Characters that are not part of a TCP endpoint, and what they suggest.
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

/// Parses a positive decimal number in its canonical spelling: no sign, no leading zero.
fn decimal<N: std::str::FromStr>(text: &str) -> Option<N> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    canonical.then(|| text.parse().ok()).flatten()
}

/// Parses the text in brackets: an IPv6 address, and a zone (0 if there is none).
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
        // The kernel ignores such a zone, so the address with and without it would be the same endpoint.
        (false, Some(zone)) => {
            refuse(format!("zone {} does not apply, {ip} is not link-local: leave it out", quote(zone)))
        }
    }
}

/// The index of a zone that is given by index or by interface name.
///
/// An index is not checked: the interface may appear later.
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
    // Blanks and control characters, including NUL, were refused before.
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
    // getaddrinfo parses 127.1, 2130706433 and 0x7f.1 as IPv4 addresses, even if a name was
    // meant.
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

/// Whether the C library parses `label` as a number of an IPv4 address.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x").or(label.strip_prefix("0X")) {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Checks one label of the name `host`: RFC 1123, plus underscores, which container systems use.
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

/// A part of the text in quotes for an error: printable ASCII, cut where it would make the error
/// too long.
fn quote(part: &str) -> String {
    const MAX: usize = 72;
    let mut shown = part.escape_default().to_string();
    if shown.len() > MAX {
        shown.truncate(MAX);
        shown.push_str("...");
    }
    format!("'{shown}'")
}
