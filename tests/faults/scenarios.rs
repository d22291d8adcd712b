//! Hosts and limits, each with a process of its own: `scenarios.c`.

use crate::common::Peer;
use crate::common::engine::narrow_peer;
use crate::programs::{compile, run};
use crate::skip_unless;

/// RLIMIT_NPROC counts all threads of a user, so the program must be a user of its own.
fn a_user_of_its_own() -> Result<(), String> {
    // SAFETY: no arguments.
    match unsafe { libc::geteuid() } {
        0 => Ok(()),
        _ => Err("only root can become a user that has no other thread; run as root".into()),
    }
}

#[track_caller]
fn passes(scenario: &str, endpoint: &str) {
    passes_with(scenario, &[endpoint]);
}

#[track_caller]
fn passes_with(scenario: &str, arguments: &[&str]) {
    let arguments = [&[scenario], arguments].concat();
    let (output, text) = run(&compile("scenarios.c", scenario), &arguments);
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
    skip_unless!(a_user_of_its_own());
    passes("few_threads", Peer::any().endpoint());
}

/// Field report R28.
#[test]
fn a_host_that_churns_threads_at_its_limit_gets_limit() {
    skip_unless!(a_user_of_its_own());
    passes("churned_threads", Peer::any().endpoint());
}

/// Field report R36.
#[test]
fn a_name_that_no_thread_can_look_up_is_limit() {
    skip_unless!(a_user_of_its_own());
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

/// Which frame of a message is the last that libzmq takes: the last but one, and an earlier one.
const SINGLE_FRAMES: [usize; 2] = [0, 7];

/// An error means that the message was not accepted.
#[test]
fn a_message_in_which_the_peer_dies_is_not_accepted() {
    for singles in SINGLE_FRAMES {
        let peer = Peer::any();
        passes_with("broken_message", &[peer.endpoint(), &peer.pid().to_string(), &singles.to_string()]);
    }
}

#[test]
fn a_message_for_which_memory_runs_out_midway_is_not_accepted() {
    for singles in SINGLE_FRAMES {
        let peer = Peer::any();
        passes_with("broken_message", &[peer.endpoint(), "0", &singles.to_string()]);
        let whole: Vec<_> = b"0123456789abcdef".iter().map(|byte| vec![*byte]).collect();
        let whole = |message: &Vec<Vec<u8>>| [&whole[..1], &whole, &[b"hello".to_vec()]].contains(&message.as_slice());
        let broken: Vec<_> = peer.messages().into_iter().filter(|message| !whole(message)).collect();
        assert!(broken.is_empty(), "{broken:?}");
    }
}
