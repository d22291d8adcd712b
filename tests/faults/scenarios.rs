//! Hosts and limits, each with a process of its own: `scenarios.c`.

use crate::common::Peer;
use crate::common::engine::narrow_peer;
use crate::programs::{compile, run};

#[track_caller]
fn passes(scenario: &str, endpoint: &str) {
    let (output, text) = run(&compile("scenarios.c", scenario), &[scenario, endpoint]);
    assert!(output.status.success(), "{}: {text}", output.status);
}

/// Field report R27.
#[test]
fn a_daemon_keeps_its_standard_descriptors() {
    passes("standard_descriptors", Peer::any().endpoint());
}

/// The kind of field report R27: libzmq's mailboxes have other numbers now, and a host can write to those as well.
#[test]
fn a_host_that_writes_to_any_descriptor_harms_nobody() {
    passes("foreign_writes", Peer::any().endpoint());
}

/// Field report R29.
#[test]
fn a_start_without_threads_gives_everything_back() {
    passes("few_threads", Peer::any().endpoint());
}

/// Field report R28.
#[test]
fn a_host_that_churns_threads_at_its_limit_gets_limit() {
    passes("churned_threads", Peer::any().endpoint());
}

/// Field report R36.
#[test]
fn a_name_that_no_thread_can_look_up_is_limit() {
    passes("no_resolver", Peer::any().endpoint());
}

/// Field reports R3 and R28.
#[test]
fn used_up_watches_of_epoll_are_an_error() {
    passes("no_watches", Peer::any().endpoint());
}

/// Field report R34.
#[test]
fn a_thread_that_waits_in_a_send_can_be_cancelled() {
    let peer = narrow_peer(1);
    peer.pause_reading();
    passes("cancelled", peer.endpoint());
}

/// The kind of field report R34: in a send that need not wait.
#[test]
fn a_thread_that_is_to_be_cancelled_is_not_cancelled_inside_a_send() {
    let peer = narrow_peer(1);
    peer.pause_reading();
    passes("cancelled_early", peer.endpoint());
}
