//! Reading, and how a rank leaves.

use std::os::unix::process::ExitStatusExt;

use crate::rank::{Push, Rank, read, wait_until};

#[test]
fn it_counts_what_it_has_received() {
    let mut rank = Rank::start(&[]);
    let push = Push::connect(&rank.endpoint);
    push.socket.send_multipart([&b"room"[..], b"", b"17"], 0).unwrap();
    push.socket.send("x", 0).unwrap();
    rank.wait_for("messages", 2);
    assert_eq!(rank.ask("report"), "report messages=2 bytes=7 connections=1 accepted=1");
}

#[test]
fn it_reads_nothing_while_it_is_paused() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("pause"), "paused");
    let push = Push::connect(&rank.endpoint);
    push.socket.send("early", 0).unwrap();
    rank.wait_for("connections", 1);
    assert_eq!(rank.count("messages"), 0);
    assert_eq!(rank.ask("resume"), "resumed");
    rank.wait_for("messages", 1);
}

#[test]
fn it_freezes_until_it_is_told_to_continue() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("freeze"), "frozen");
    wait_until("it has stopped", || rank.state() == 'T');
    rank.signal(libc::SIGCONT);
    assert_eq!(rank.count("messages"), 0);
}

#[test]
fn it_dies_at_once() {
    let mut rank = Rank::start(&[]);
    rank.say("die");
    assert_eq!(rank.wait().signal(), Some(libc::SIGKILL));
}

#[test]
fn it_ends_with_its_input() {
    let mut rank = Rank::start(&[]);
    rank.close_input();
    assert_eq!(rank.wait().code(), Some(0));
}

/// What has been sent before the goodbye is in its record, although it had read nothing then.
#[test]
fn it_leaves_without_loss() {
    let record = std::env::temp_dir().join(format!("kvconn-peer-record-{}", std::process::id()));
    let mut rank = Rank::start(&["--rcvhwm", "0", "--record", record.to_str().unwrap()]);
    assert_eq!(rank.ask("pause"), "paused");
    let push = Push::connect(&rank.endpoint);
    for number in 0..500u32 {
        push.socket.send(&number.to_ne_bytes()[..], 0).unwrap();
    }
    rank.wait_for("connections", 1);
    assert_eq!(rank.ask("goodbye"), "goodbye");
    push.wait_for_end();
    assert_eq!(rank.wait().code(), Some(0));
    let bytes = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    // One frame of four bytes each.
    let numbers: Vec<u32> =
        bytes.chunks(12).map(|message| u32::from_ne_bytes(message[8..].try_into().unwrap())).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "{numbers:?}");
    assert!(!numbers.is_empty());
}

/// A sender that comes back while it leaves does not keep it.
#[test]
fn it_leaves_although_a_sender_comes_back() {
    let mut rank = Rank::start(&["--last-step-ms", "2000"]);
    let push = Push::connect(&rank.endpoint);
    rank.wait_for("connections", 1);
    assert_eq!(rank.ask("goodbye"), "goodbye");
    push.wait_for_end();
    let mut again = rank.visit();
    assert_eq!(read(&mut again, 1 << 20)[0], 0xff, "a greeting, then the end");
    drop(again);
    assert_eq!(rank.wait().code(), Some(0));
}

#[test]
fn sigterm_is_a_goodbye() {
    let mut rank = Rank::start(&[]);
    let push = Push::connect(&rank.endpoint);
    rank.wait_for("connections", 1);
    rank.signal(libc::SIGTERM);
    push.wait_for_end();
    assert_eq!(rank.wait().code(), Some(0));
}
