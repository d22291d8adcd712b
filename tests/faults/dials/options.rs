//! Socket options that the kernel refuses (field report R17).

use std::time::Duration;

use crate::common::engine::{canonical, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, ms, wait_until};
use crate::refusing_kernel::{Rule, available, refuse};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// What an MPTCP socket answers to TCP_USER_TIMEOUT, and other kernels to others.
#[test]
fn a_connection_goes_on_without_a_socket_option_that_the_kernel_refuses_and_the_log_names_it() {
    skip_unless!(available());
    let log = std::env::temp_dir().join(format!("kvconn-options-{}", std::process::id()));
    let setting = format!("warn:{}", log.display());
    if OwnProcess::new(test_name!()).env("KVCONN_LOG", &setting).env("KVCONN_TEST_LOG", log.to_str().unwrap()).parent()
    {
        std::fs::remove_file(&log).ok();
        return;
    }
    let peer = Peer::any();
    let options = [libc::TCP_USER_TIMEOUT, libc::TCP_KEEPIDLE, libc::TCP_NODELAY];
    let arguments = options.map(|option| [(1, libc::IPPROTO_TCP as u32), (2, option as u32)]);
    let refused =
        arguments.each_ref().map(|arguments| Rule { call: libc::SYS_setsockopt, arguments, errno: libc::ENOPROTOOPT });
    refuse(&refused);
    let engine = Engine::new();
    let watch = Stopwatch::start();
    let conn = engine.ready(peer.endpoint());
    watch.at_most(ms(500), "a dial");
    send(&conn, &[b"x"], LIMIT).expect("sent");
    peer.wait_received(1, LIMIT);
    let (flushed, acknowledged) = conn.flush(0, kvconn::timeout::Timeout::After(LIMIT));
    assert_eq!((flushed.map_err(|error| error.status), acknowledged), (Ok(()), 1));

    let path = std::env::var("KVCONN_TEST_LOG").expect("given above");
    let logged = || std::fs::read_to_string(&path).unwrap_or_default();
    wait_until("the log has a line", LIMIT, || logged().ends_with('\n'));
    for name in ["TCP_USER_TIMEOUT", "keepalive", "TCP_NODELAY", "Protocol not available", &canonical(peer.endpoint())]
    {
        assert!(logged().contains(name), "{name} in {path}: {}", logged());
    }
}
