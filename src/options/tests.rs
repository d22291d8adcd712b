use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::Status;

fn options(pairs: &[(&str, &str)]) -> Options {
    let mut options = Options::default();
    for (name, value) in pairs {
        options.set(name, value).unwrap();
    }
    options
}

#[test]
fn every_setting_is_at_its_key_and_its_default_is_in_range() {
    for (place, s) in SETTINGS.iter().enumerate() {
        assert_eq!(s.key as usize, place, "{}", s.name);
        let text = match s.kind {
            Kind::Number { .. } | Kind::Flag => s.default.to_string(),
            Kind::Word(words) => words[s.default as usize].to_string(),
            Kind::Text { .. } | Kind::PublicKey | Kind::Secret => String::new(),
        };
        assert_eq!(s.parse(&text).unwrap(), s.default_value(), "{}", s.name);
    }
}

#[test]
fn bad_names_and_values_are_refused_and_change_nothing() {
    let mut o = options(&[("send_hwm", "7")]);
    for (name, value) in [
        ("send_hwm", "0"),
        ("send_hwm", "x"),
        ("send_hwm", "+5"),
        ("send_hwm", " 5"),
        ("send_hwm", ""),
        ("send_hwm", "99999999999999999999"),
        ("connect_retry", "2"),
        ("node_loss", "ALL"),
        ("no_such", "1"),
    ] {
        let e = o.set(name, value).unwrap_err();
        assert_eq!(e.status, Status::Invalid);
        assert!(e.message.contains(name), "{}", e.message);
    }
    assert_eq!(o, options(&[("send_hwm", "7")]));
}

#[test]
fn the_environment_gives_defaults_and_its_errors_name_the_variable() {
    let values = Values::from_environment(|v| (v == "KVCONN_SEND_TIMEOUT_MS").then(|| "250".into()));
    assert_eq!(values.unwrap().ms(Key::SendTimeoutMs), Duration::from_millis(250));
    let e = Values::from_environment(|v| (v == "KVCONN_STALL_MS").then(|| "soon".into()));
    assert!(e.unwrap_err().message.contains("KVCONN_STALL_MS"));
}

#[test]
fn only_given_settings_that_differ_are_a_conflict() {
    let live = Values::defaults().with(&options(&[("send_hwm", "5")])).unwrap();
    assert!(live.conflict(&options(&[("send_hwm", "5"), ("connect_retry", "1")])).is_none());
    assert_eq!(live.conflict(&options(&[("send_hwm", "6")])).unwrap(), "the live connection has send_hwm = 5");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    assert!(Values::defaults().with(&options(&[("backoff_ms", "5000")])).is_err());
}

#[test]
fn a_call_refuses_settings_that_act_elsewhere() {
    let o = options(&[("max_nodes", "5")]);
    let e = o.only(&[Reach::Connection, Reach::Call], "kvconn_connect").unwrap_err();
    assert!(e.message.contains("max_nodes"));
}

// ---- texts and keys ------------------------------------------------------------------------------------------------

const SERVER: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
const PUBLIC: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const SECRET: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

fn curve() -> Options {
    options(&[("curve_server_key", SERVER), ("curve_public_key", PUBLIC), ("curve_secret_key", SECRET)])
}

/// Also not as numbers, as a derived `Debug` would show bytes.
fn shows_no_secret(text: &str) {
    let bytes = SECRET.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    for part in [&SECRET[..10], &SECRET[10..20], &SECRET[30..], &bytes[..40]] {
        assert!(!text.contains(part), "{part:?} is in: {text}");
    }
}

#[test]
fn the_empty_text_is_none() {
    let none =
        options(&[("curve_server_key", ""), ("curve_secret_key", ""), ("source_address", ""), ("interface", "")]);
    let values = Values::defaults().with(&curve()).unwrap();
    assert!(values.is_curve());
    let values = values.with(&none).unwrap();
    assert!(!values.is_curve());
    assert_eq!((values.source_address(), values.interface()), (None, None));
}

#[test]
fn malformed_keys_are_refused_without_being_shown() {
    let long = format!("{SECRET}{SECRET}");
    let quoted = format!("\"{SECRET}\"");
    let foreign = SECRET.replace('D', "ü").replace("cs", "c");
    let overflowing = format!("#####{}", &SECRET[5..]);
    for bad in [&SECRET[1..], &SECRET[..39], &long, &quoted, &foreign, &overflowing, &SECRET.replace('D', " ")] {
        for name in ["curve_server_key", "curve_public_key", "curve_secret_key"] {
            let mut o = options(&[("send_hwm", "7")]);
            let e = o.set(name, bad).unwrap_err();
            assert_eq!(e.status, Status::Invalid);
            assert!(e.message.contains(name) && e.message.contains("40 characters"), "{}", e.message);
            shows_no_secret(&format!("{e} {e:?}"));
            assert_eq!(o, options(&[("send_hwm", "7")]));
        }
    }
    let e = Values::from_environment(|v| (v == "KVCONN_CURVE_SECRET_KEY").then(|| SECRET[1..].into())).unwrap_err();
    assert!(e.message.contains("KVCONN_CURVE_SECRET_KEY"), "{}", e.message);
    shows_no_secret(&format!("{e} {e:?}"));
}

#[test]
fn no_text_shows_a_secret() {
    let values = Values::defaults().with(&curve()).unwrap();
    shows_no_secret(&format!("{:?} {values:?}", curve()));
    // The keys are mixed up: the secret one is given as the public one.
    let mixed_up = options(&[("curve_server_key", SERVER), ("curve_public_key", SECRET), ("curve_secret_key", PUBLIC)]);
    let e = Values::defaults().with(&mixed_up).unwrap_err();
    shows_no_secret(&format!("{e} {e:?} {mixed_up:?}"));
    assert!(e.message.contains("curve_public_key and curve_secret_key"), "{}", e.message);
    let other = options(&[("curve_secret_key", SERVER)]);
    let text = values.conflict(&other).unwrap();
    assert_eq!(text, "the live connection has another curve_secret_key");
    assert_eq!(
        values.conflict(&options(&[("curve_server_key", "")])).unwrap(),
        "the live connection has another curve_server_key"
    );
    let plain = Values::defaults();
    assert_eq!(plain.conflict(&curve()).unwrap(), "the live connection has no curve_server_key");
    assert_eq!(values.conflict(&curve()), None);
}

#[test]
fn a_server_key_needs_both_keys_of_the_client() {
    let without = |name: &str, message: &str| {
        let mut o = curve();
        o.set(name, "").unwrap();
        let e = Values::defaults().with(&o).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains(message), "{}", e.message);
    };
    without("curve_public_key", "no curve_public_key");
    without("curve_secret_key", "no curve_secret_key");
    // The client's own pair may be configured, and each endpoint may have its server key.
    let client = Values::defaults().with(&options(&[("curve_public_key", PUBLIC), ("curve_secret_key", SECRET)]));
    let client = client.unwrap();
    assert!(!client.is_curve());
    assert!(client.of_connection(Some(&options(&[("curve_server_key", SERVER)]))).unwrap().is_curve());
    assert!(!client.of_connection(Some(&options(&[("send_hwm", "5")]))).unwrap().is_curve());
}

#[test]
fn a_client_key_without_a_server_key_is_refused_unless_plain_is_explicit() {
    let keys = [("curve_public_key", PUBLIC), ("curve_secret_key", SECRET)];
    let e = Values::defaults().of_connection(Some(&options(&keys))).unwrap_err();
    assert!(e.message.contains("curve_server_key"), "{}", e.message);
    let plain = options(&[keys[0], keys[1], ("curve_server_key", "")]);
    assert!(!Values::defaults().of_connection(Some(&plain)).unwrap().is_curve());
}

#[test]
fn keys_of_the_environment_are_defaults() {
    let keys = [("CURVE_SERVER_KEY", SERVER), ("CURVE_PUBLIC_KEY", PUBLIC), ("CURVE_SECRET_KEY", SECRET)];
    let find = |keys: &'static [(&str, &str)]| {
        move |v: &str| keys.iter().find(|(name, _)| v == format!("KVCONN_{name}")).map(|(_, value)| (*value).into())
    };
    let keys: &'static _ = Box::leak(Box::new(keys));
    assert!(Values::from_environment(find(keys)).unwrap().is_curve());
    let e = Values::from_environment(find(&keys[..2])).unwrap_err();
    assert!(e.message.contains("curve_secret_key"), "{}", e.message);
}

#[test]
fn require_curve_forbids_only_plain_dials() {
    let required = Values::defaults().with(&options(&[("require_curve", "1")])).unwrap();
    assert_eq!(required.check_dial().unwrap_err().status, Status::Invalid);
    required.with(&curve()).unwrap().check_dial().unwrap();
    Values::defaults().check_dial().unwrap();
}

#[test]
fn the_last_value_of_each_setting_is_remembered() {
    let old = Arc::new(curve());
    let new = options(&[("send_hwm", "5"), ("connect_retry", "1")]).over(Some(&old)).unwrap();
    let mut both = curve();
    both.set("send_hwm", "5").unwrap();
    assert_eq!(*new, both, "all but the settings of the call");
    assert!(Arc::ptr_eq(
        &options(&[("connect_retry", "1"), ("curve_public_key", PUBLIC)]).over(Some(&old)).unwrap(),
        &old
    ));
    assert_eq!(options(&[("connect_retry", "1")]).over(None), None);
    assert_eq!(*options(&[("curve_server_key", "")]).over(Some(&new)).unwrap().over(None).unwrap(), {
        both.set("curve_server_key", "").unwrap();
        both
    });
}

#[test]
fn a_source_address_must_be_one_that_an_interface_can_have() {
    for (text, canonical) in [
        ("127.0.0.2", "127.0.0.2:0"),
        ("::ffff:10.0.0.1", "10.0.0.1:0"),
        ("FD00:0:0:1::A", "[fd00:0:0:1::a]:0"),
        ("fe80::1%2", "[fe80::1%2]:0"),
        ("fe80::1%lo", &format!("[fe80::1%{}]:0", loopback())),
    ] {
        let values = Values::defaults().with(&options(&[("source_address", text)])).unwrap();
        assert_eq!(values.source_address().unwrap().to_string(), canonical, "{text}");
        // Two spellings are not a conflict.
        let spelled = canonical.trim_end_matches(":0").trim_matches(['[', ']']);
        assert_eq!(values.conflict(&options(&[("source_address", spelled)])), None, "{text}");
    }
    for bad in [
        "localhost",
        "10.0.0",
        "10.0.0.256",
        "010.0.0.1",
        "10.0.0.1:0",
        "[::1]",
        "::1%2",
        "fe80::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1%2",
        "255.255.255.255",
        " 10.0.0.1",
        "10.0.0.1;10.0.0.2",
        "*",
        "lo",
        "fe80::1%nosuch0",
    ] {
        let e = Options::default().set("source_address", bad).unwrap_err();
        assert!(e.message.contains("source_address") && e.message.contains(bad), "{}", e.message);
    }
}

fn loopback() -> u32 {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::if_nametoindex(c"lo".as_ptr()) }
}

#[test]
fn interface_names_are_those_that_the_kernel_allows() {
    for good in ["lo", "eth0", "mlx5_0", "fifteen-bytes-1", "br-1.100@x"] {
        let values = Values::defaults().with(&options(&[("interface", good)])).unwrap();
        assert_eq!(values.interface().map(|name| &**name), Some(good));
    }
    for bad in ["sixteen-bytes-12", ".", "..", "a/b", "a b", "eth0:1", "a\nb", "tab\t"] {
        assert!(Options::default().set("interface", bad).is_err(), "{bad:?}");
    }
}
