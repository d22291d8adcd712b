//! The hosts file, read without the system's resolver.
//!
//! Only asked for names that must wait for a thread, because it cannot hang as a name server can. The system's own
//! look-up has the last word in every other case: it knows the order of sources (`nsswitch.conf`), which nearly always
//! begins with this file.

use std::net::{IpAddr, SocketAddr};

/// The addresses of a name in `/etc/hosts`, in the file's order; `None` if it does not have the name.
pub(super) fn lookup(host: &str) -> Option<Vec<SocketAddr>> {
    find(&std::fs::read_to_string("/etc/hosts").ok()?, host)
}

fn find(text: &str, host: &str) -> Option<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = text.lines().filter_map(|line| address_of(line, host)).collect();
    (!found.is_empty()).then_some(found)
}

/// The address of a line, if it gives the host this address. Names compare as text without case.
fn address_of(line: &str, host: &str) -> Option<SocketAddr> {
    let mut fields = line.split('#').next()?.split_whitespace();
    let address: IpAddr = fields.next()?.parse().ok()?;
    fields.any(|name| name.eq_ignore_ascii_case(host)).then(|| SocketAddr::new(address, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_file_is_read_as_the_system_reads_it() {
        let text =
            "# a comment\n127.0.0.1 localhost Here.Test\n\n::1\tlocalhost # here.test\n10.0.0.1 # all\nfe80::1%lo z";
        let all = |host| find(text, host).map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(all("localhost"), Some(vec!["127.0.0.1:0".into(), "[::1]:0".into()]));
        assert_eq!(all("here.test"), Some(vec!["127.0.0.1:0".into()]));
        for unknown in ["all", "here", "127.0.0.1", "#", "z", ""] {
            assert_eq!(all(unknown), None, "{unknown}");
        }
    }
}
