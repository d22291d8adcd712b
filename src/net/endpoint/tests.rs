//! Endpoints as written, and as parsed.

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
        // parts that do not belong there
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
        // addresses that cannot be dialled
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

/// Addresses. Those near the borders of the special ranges are more frequent than by chance.
fn addresses() -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from);
    let v6 = (any::<[u16; 8]>(), any::<u16>()).prop_map(SocketAddr::from);
    let mapped =
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| (Ipv4Addr::from(ip).to_ipv6_mapped(), port).into());
    let sparse = (proptest::array::uniform8(prop_oneof![Just(0), any::<u16>()]), 0..3_u16).prop_map(SocketAddr::from);
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

/// What must hold for every text.
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
