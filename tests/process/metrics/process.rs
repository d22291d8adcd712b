//! What the process has one of is in the text of its own manager.

use std::time::Duration;

use kvconn::ids::ManagerId;
use kvconn::process::Process;

use super::text::Metrics;
use crate::common::engine::after;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn descriptors_and_managers_are_in_the_text_of_manager_0_and_go_back_to_nothing() {
    if OwnProcess::new(test_name!()).descriptors(2000).parent() {
        return;
    }
    let default = Process::current().and_then(|process| process.manager(ManagerId::NONE)).expect("always there");
    let before = Metrics::of(&default);
    assert_eq!(before.exactly("kvconn_descriptors_in_use"), 0.0);
    assert_eq!(before.exactly("kvconn_descriptors_limit"), 2000.0);
    assert_eq!(before.exactly("kvconn_managers"), 1.0);
    let build = format!("kvconn_build_info{{version=\"{}\",libzmq=\"4.3.5\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(before.exactly(&build), 1.0);
    assert_eq!(before.get("dials_total"), 0.0);

    let peer = Peer::with(PeerOptions { endpoints: 3, ..PeerOptions::default() });
    let engine = Engine::new();
    peer.endpoints().iter().for_each(|endpoint| _ = engine.ready(endpoint));
    let metrics = Metrics::of(&default);
    // As option max_endpoints says: three for each.
    assert_eq!(metrics.exactly("kvconn_descriptors_in_use"), 9.0);
    assert_eq!(metrics.exactly("kvconn_managers"), 2.0);
    assert_eq!(metrics.get("dials_total"), 0.0, "they are the other manager's");
    let other = Metrics::of(&engine);
    assert_eq!(other.get("dials_total"), 3.0);
    for absent in ["kvconn_descriptors", "kvconn_managers", "kvconn_build", "manager=\"0\""] {
        assert!(!other.has(absent), "{absent}:\n{}", other.text);
    }

    engine.disconnect_all(after(LONG)).expect("closed");
    wait_until("descriptors are given back", LONG, || {
        Metrics::of(&default).exactly("kvconn_descriptors_in_use") == 0.0
    });
    drop(engine);
    assert_eq!(Metrics::of(&default).exactly("kvconn_managers"), 1.0);
}

#[test]
fn a_limit_of_descriptors_that_was_set_is_the_one_told() {
    if OwnProcess::new(test_name!()).env("KVCONN_MAX_DESCRIPTORS", "123").parent() {
        return;
    }
    let default = Process::current().and_then(|process| process.manager(ManagerId::NONE)).expect("always there");
    assert_eq!(Metrics::of(&default).exactly("kvconn_descriptors_limit"), 123.0);
}
