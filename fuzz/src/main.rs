//! Fuzz targets: what parses bytes of others. `KVCONN_FUZZ_TARGET` names the one that runs; see `run.py`.
//!
//! What a peer sends is parsed by libzmq: `tests/deep/hostile.rs` attacks it over real sockets.
#![no_main]

use std::ffi::CString;
use std::net::TcpListener;
use std::ptr::null_mut;
use std::sync::OnceLock;

use kvconn::capi;
use kvconn::net::endpoint::Endpoint;
use kvconn::options::{Options, SETTINGS, Values};
use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 6] = [
    ("endpoint", endpoint),
    ("options", options),
    ("environment", environment),
    ("texts", texts),
    ("packed", packed),
    ("monitor", kvconn::monitor_events),
];

fuzz_target!(|bytes: &[u8]| {
    static TARGET: OnceLock<Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("KVCONN_FUZZ_TARGET").expect("KVCONN_FUZZ_TARGET names a target");
        TARGETS.iter().find(|(known, _)| *known == name).expect("a known target").1
    });
    target(bytes);
});

/// An endpoint's canonical form is a fixed point, and not longer than the header says.
fn endpoint(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(parsed) = Endpoint::parse(text) {
        let canonical = parsed.as_str().to_owned();
        assert!(canonical.len() <= 263, "{canonical}");
        let again = Endpoint::parse(&canonical).unwrap_or_else(|error| panic!("{canonical}: {error}"));
        assert_eq!((again.as_str(), &again), (&*canonical, &parsed));
    }
}

/// Some settings, each a place in the table and a text. A value that is refused changes nothing.
fn options(bytes: &[u8]) {
    let mut options = Options::default();
    for part in bytes.split(|byte| *byte == b'\n') {
        let [place, value @ ..] = part else { continue };
        let name = SETTINGS[usize::from(*place) % SETTINGS.len()].name;
        let Ok(value) = std::str::from_utf8(value) else { continue };
        let before = format!("{:?}", options.given().map(|(setting, _)| setting.name).collect::<Vec<_>>());
        if options.set(name, value).is_err() {
            assert_eq!(before, format!("{:?}", options.given().map(|(s, _)| s.name).collect::<Vec<_>>()));
        }
    }
    let _ = Values::defaults().with(&options);
}

fn environment(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == b'\n');
    let values: Vec<Option<String>> =
        SETTINGS.iter().map(|_| parts.next().filter(|part| !part.is_empty()).map(|p| String::from_utf8_lossy(p).into())).collect();
    let _ = Values::from_environment(|name| {
        values[SETTINGS.iter().position(|setting| setting.variable() == name)?].clone()
    });
}

/// Names, reasons, option names: any text that C can pass.
fn texts(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0).map(|part| CString::new(part).expect("no NUL"));
    let mut next = || parts.next().unwrap_or_default();
    let (name, endpoint, reason, option, value) = (next(), next(), next(), next(), next());
    // SAFETY: texts end with NUL, out-parameters are NULL or a place of their own, and the report is freed once.
    unsafe {
        let mut node = 0;
        if capi::kvconn_node_open(0, name.as_ptr(), &mut node, null_mut(), null_mut()) == 0 {
            let endpoints = [endpoint.as_ptr()];
            let _ = capi::kvconn_node_add_endpoints(node, endpoints.as_ptr(), 1, std::ptr::null(), null_mut());
            let mut failure = null_mut();
            let _ = capi::kvconn_handle_failure(node, reason.as_ptr(), &mut failure, null_mut());
            capi::kvconn_failure_free(failure);
        }
        let options = capi::kvconn_options_new();
        let _ = capi::kvconn_options_set(options, option.as_ptr(), value.as_ptr(), null_mut());
        capi::kvconn_options_free(options);
        let _ = capi::kvconn_disconnect_endpoint(0, endpoint.as_ptr(), null_mut());
    }
}

/// Flat arrays as callers make them: the buffer is as long as the sizes say, and may be wrong in every other way.
fn packed(bytes: &[u8]) {
    let [count, bytes @ ..] = bytes else { return };
    let count = usize::from(*count);
    let mut numbers = bytes.chunks(2).map(|two| u16::from(two[0]) << 8 | u16::from(*two.get(1).unwrap_or(&0)));
    let mut number = || numbers.next().unwrap_or(0);
    let live = connecting();
    let conns: Vec<u64> = (0..count).map(|_| [live, 0, u64::MAX, 7][usize::from(number() % 4)]).collect();
    let frame_counts: Vec<u32> = (0..count).map(|_| [1, 2, 0, 3, 129, 65_536, 65_537, u32::MAX][usize::from(number() % 8)]).collect();
    let frames: usize = frame_counts.iter().map(|count| *count as usize).filter(|count| *count <= 65_536).sum();
    if frames > 200_000 {
        return;
    }
    let sizes: Vec<u32> = (0..frames).map(|_| u32::from(number() % 300)).collect();
    let buffer = vec![7_u8; sizes.iter().map(|size| *size as usize).sum()];
    let (mut sequences, mut statuses) = (vec![0; count], vec![0; count]);
    // SAFETY: each array has as many elements as are said, and the buffer as many bytes as the sizes together.
    unsafe {
        let _ = capi::kvconn_send_batch_packed(
            conns.as_ptr(),
            frame_counts.as_ptr(),
            count,
            buffer.as_ptr().cast(),
            sizes.as_ptr(),
            0,
            sequences.as_mut_ptr(),
            statuses.as_mut_ptr(),
            null_mut(),
        );
        let few = sizes.len().min(300);
        let _ = capi::kvconn_send_packed(live, buffer.as_ptr().cast(), sizes.as_ptr(), few, 0, null_mut(), null_mut());
    }
    assert!(statuses.iter().all(|status| *status <= 0));
}

/// A connection that never becomes READY: a message is copied and then refused.
fn connecting() -> u64 {
    static CONN: OnceLock<(u64, TcpListener)> = OnceLock::new();
    let (conn, _) = CONN.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = CString::new(format!("tcp://{}", listener.local_addr().expect("bound"))).expect("no NUL");
        let mut conn = 0;
        // SAFETY: texts end with NUL; out-parameters are NULL or a place of their own.
        unsafe {
            let options = capi::kvconn_options_new();
            for name in [c"handshake_timeout_ms", c"connect_timeout_ms"] {
                assert_eq!(capi::kvconn_options_set(options, name.as_ptr(), c"86400000".as_ptr(), null_mut()), 0);
            }
            assert_eq!(capi::kvconn_connect(0, endpoint.as_ptr(), options, 0, &mut conn, null_mut()), 0);
            capi::kvconn_options_free(options);
        }
        (conn, listener)
    });
    *conn
}
