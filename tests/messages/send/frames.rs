//! Scenario 27: any number of frames of any size and content arrive byte for byte.

use std::time::Duration;

use kvconn::connection::message::{MAX_FRAMES, Message};
use kvconn::error::Status;

use crate::common::engine::{after, refused, send};
use crate::common::{Engine, Peer};

const LONG: Duration = Duration::from_secs(60);

/// Bytes that are nowhere the same: each block begins with its number.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    const BLOCK: usize = 4096;
    let mut state = seed | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut block: Vec<u8> = (0..BLOCK / 8).flat_map(|_| random()).collect();
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let part = BLOCK.min(length - bytes.len());
        bytes.extend_from_slice(&block[..part]);
        block[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    bytes
}

#[track_caller]
fn arrives(messages: &[Vec<Vec<u8>>]) {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    for (number, message) in messages.iter().enumerate() {
        let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
        assert_eq!(send(&conn, &frames, LONG).expect("accepted"), number as u64 + 1);
    }
    peer.wait_received(messages.len() as u64, LONG);
    let arrived = peer.messages();
    assert_eq!(arrived.len(), messages.len());
    for (number, (arrived, sent)) in arrived.iter().zip(messages).enumerate() {
        let sizes = |message: &[Vec<u8>]| message.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(arrived), sizes(sent), "the sizes of message {number}");
        assert!(arrived == sent, "the bytes of message {number}");
    }
}

#[test]
fn frames_of_every_size_arrive_byte_for_byte() {
    // Around every border of ZMTP's framing, libzmq's inline messages and its batches.
    let sizes = [0, 1, 2, 29, 30, 31, 32, 33, 63, 64, 65, 254, 255, 256, 257, 4095, 4096, 8191, 8192, 8193, 65_535];
    let larger = [65_536, 65_537, 131_072, 512 * 1024, 512 * 1024 + 1];
    let each: Vec<_> = sizes.iter().chain(&larger).map(|&size| vec![bytes(size, size as u64)]).collect();
    arrives(&each);
    let together = sizes.iter().chain(&larger).map(|&size| bytes(size, size as u64 + 7)).collect();
    arrives(&[together]);
}

#[test]
fn any_number_of_frames_arrives_with_empty_ones_and_nul_bytes() {
    let counts = [1usize, 2, 11, 12, 13, 63, 64, 65, 1000];
    let mut messages: Vec<Vec<Vec<u8>>> =
        counts.iter().map(|&count| (0..count).map(|index| bytes(index % 40, index as u64)).collect()).collect();
    messages.push(vec![vec![]; 64]);
    messages.push(vec![vec![]]);
    messages.push(vec![vec![0], vec![0; 64], b"a\0b".to_vec(), vec![0; 512 * 1024], vec![]]);
    messages.push((0..=255).map(|byte| vec![byte; 3]).collect());
    arrives(&messages);
}

#[test]
fn the_most_frames_arrive_and_more_or_none_are_invalid() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let many = vec![&b"x"[..]; MAX_FRAMES + 1];
    for wrong in [&many[..0], &many] {
        let text = refused(send(&conn, wrong, LONG), Status::Invalid).message;
        assert!(text.contains("frame_count"), "{text}");
        refused(engine.send_to(peer.endpoint(), wrong, LONG), Status::Invalid);
    }
    assert_eq!(conn.info().accepted, 0);
    assert_eq!(send(&conn, &many[..MAX_FRAMES], LONG).expect("accepted"), 1, "what was refused took no number");
    let totals = peer.wait_received(1, LONG);
    assert_eq!(totals.frames, MAX_FRAMES as u64);
}

/// A message that cannot be made is not sent. Its maker is called once, when it is clear that a send can be tried.
#[test]
fn the_message_is_asked_for_once_and_not_for_a_connection_that_has_ended() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let mut asked = 0;
    let mut make = || {
        asked += 1;
        Message::from_frames([&b"x"[..]].into_iter())
    };
    conn.send(&mut make, after(LONG)).expect("accepted");
    conn.disconnect().unwrap();
    refused(conn.send(&mut make, after(LONG)), Status::Disconnected);
    assert_eq!(asked, 1);
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    let mut never = || -> kvconn::error::Result<Message> { panic!("nothing can be sent") };
    refused(engine.manager().send_to(peer.endpoint(), &mut never, after(LONG)), Status::Disconnected);
}

#[test]
fn a_frame_of_64_mib_arrives() {
    arrives(&[vec![b"head".to_vec(), bytes(64 << 20, 3), b"tail".to_vec()]]);
}

/// The largest of the scenario, where the machine has the memory for every copy of it.
#[test]
fn a_frame_of_256_mib_arrives() {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    crate::skip_unless!(match free {
        Some(kib) if kib < 4 << 20 => Err(format!("{kib} KiB of memory are available, 4 GiB are wanted")),
        _ => Ok(()),
    });
    arrives(&[vec![bytes(256 << 20, 5)]]);
}
