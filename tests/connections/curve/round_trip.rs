//! Messages through CURVE arrive as they were.

use std::time::Duration;

use kvconn::error::Status;

use super::keys::{Pair, contains, peer, peer_at};
use super::recorder::Recorder;
use crate::common::engine::{refused, send};
use crate::common::{Engine, Message, Peer, PeerOptions, ms, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Frames of every size where the framing changes, and some far from it.
fn messages() -> Vec<Message> {
    let frame = |size: usize| -> Vec<u8> { (0..size).map(|place| (place * 31 + size) as u8).collect() };
    // A frame of n bytes is one of n + 33 on the wire, whose length has one byte up to 255.
    // One of 32 KiB or more on the wire is not copied as a whole.
    let sizes = [
        0, 1, 2, 32, 33, 34, 221, 222, 223, 224, 254, 255, 256, 4095, 8191, 8192, 24_543, 32_734, 32_735, 32_768,
        40_927, 65_535, 65_536, 1_048_576,
    ];
    let mut messages: Vec<Message> = sizes.iter().map(|size| vec![frame(*size)]).collect();
    messages.push(sizes.iter().map(|size| frame(*size)).collect());
    messages.push((0..64).map(frame).collect());
    messages.push(vec![Vec::new(); 64]);
    messages.push(vec![frame(16 << 20), frame(1)]);
    messages
}

#[track_caller]
fn round_trip(peer: &Peer, settings: &[(&str, &str)]) {
    let engine = Engine::with(settings);
    let conn = engine.ready(peer.endpoint());
    let messages = messages();
    for (place, message) in messages.iter().enumerate() {
        let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
        let sequence = send(&conn, &frames, LIMIT).expect("accepted");
        assert_eq!(sequence, place as u64 + 1);
    }
    peer.wait_received(messages.len() as u64, LIMIT);
    for (place, (arrived, sent)) in peer.messages().iter().zip(&messages).enumerate() {
        let sizes: Vec<_> = sent.iter().map(Vec::len).collect();
        assert!(arrived == sent, "message {place} with frames of {sizes:?} bytes is not what was sent");
    }
    assert_eq!(peer.received().messages, messages.len() as u64);
    if peer.endpoint().starts_with("tcp") {
        // The ledger knows how long a frame is once it is encrypted.
        let all = Some(messages.len() as u64);
        wait_until("all is acknowledged", LIMIT, || conn.info().acknowledged == all);
    }
}

#[test]
fn messages_of_many_sizes_arrive_byte_for_byte() {
    let (server, client) = (Pair::new(), Pair::new());
    round_trip(&peer(&server), &client.settings(&server));
}

#[test]
fn ipc_is_encrypted_as_well() {
    let (server, client) = (Pair::new(), Pair::new());
    let path = std::env::temp_dir().join(format!("kvconn-curve-{}", std::process::id()));
    let endpoint = format!("ipc://{}", path.display());
    let peer = peer_at(&server, &endpoint);
    round_trip(&peer, &client.settings(&server));
    let error = refused(Engine::new().connect(&endpoint, LIMIT), Status::ConnectFailed);
    assert!(error.message.contains("CURVE"), "{}", error.message);
    drop(peer);

    let plain = Peer::with(PeerOptions { bind: endpoint.clone(), ..PeerOptions::default() });
    let engine = Engine::with(&client.settings(&server));
    let error = refused(engine.connect(&endpoint, LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::EACCES, "{}", error.message);
    assert_eq!((plain.received().handshakes, plain.received().messages), (0, 0));
    std::fs::remove_file(path).ok();
}

#[test]
fn many_connections_with_keys_of_their_own_do_not_mix() {
    let servers: Vec<Pair> = (0..8).map(|_| Pair::new()).collect();
    let peers: Vec<Peer> = servers.iter().map(peer).collect();
    let client = Pair::new();
    let engine = Engine::new();
    std::thread::scope(|scope| {
        for (server, peer) in servers.iter().zip(&peers) {
            let (engine, client) = (&engine, &client);
            scope.spawn(move || {
                let conn = engine.ready_with(peer.endpoint(), &client.settings(server));
                for _ in 0..500 {
                    send(&conn, &[server.public.as_bytes(), &[0; 300]], LIMIT).expect("accepted");
                }
            });
        }
    });
    for (server, peer) in servers.iter().zip(&peers) {
        peer.wait_received(500, LIMIT);
        assert!(peer.messages().iter().all(|message| message[0] == server.public.as_bytes()));
    }
}

/// The recorder finds what is plain, so that it is not for its own fault when it finds nothing.
#[test]
fn nothing_goes_over_the_wire_in_clear() {
    let (server, client) = (Pair::new(), Pair::new());
    let marker = b"a message that nobody else may read".as_slice();
    for curve in [false, true] {
        let peer = if curve { peer(&server) } else { Peer::any() };
        let recorder = Recorder::before(peer.port());
        let settings = client.settings(&server);
        let engine = Engine::with(if curve { &settings } else { &[] });
        let conn = engine.ready(&recorder.endpoint());
        for _ in 0..50 {
            send(&conn, &[marker, &marker.repeat(500)], ms(5000)).expect("accepted");
        }
        peer.wait_received(50, LIMIT);
        assert_eq!(peer.messages()[49], [marker.to_vec(), marker.repeat(500)]);
        let recorded = recorder.recorded();
        assert!(recorded.len() > 50 * 500 * marker.len());
        assert_eq!(contains(&recorded, marker), !curve);
        for trace in server.traces().iter().chain(&client.traces()) {
            assert!(!contains(&recorded, trace), "a key went over the wire");
        }
    }
}
