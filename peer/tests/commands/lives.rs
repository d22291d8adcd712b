//! Refusing, new lives, other protocols, encryption, ipc.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use crate::rank::{Push, Rank, read, run, wait_until};

#[test]
fn it_refuses_and_keeps_its_port() {
    let mut rank = Rank::start(&[]);
    let push = Push::connect(&rank.endpoint);
    push.socket.send("x", 0).unwrap();
    rank.wait_for("messages", 1);
    assert_eq!(rank.ask("refuse"), "refusing");
    push.wait_for_end();
    assert_eq!(TcpStream::connect(rank.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // Neither a listener with SO_REUSEADDR, which the standard library and libzmq set, nor another rank gets it.
    assert_eq!(TcpListener::bind(rank.address()).unwrap_err().kind(), ErrorKind::AddrInUse);
    let socket = zmq::Context::new().socket(zmq::PULL).unwrap();
    assert_eq!(socket.bind(&rank.endpoint), Err(zmq::Error::EADDRINUSE));
    assert_eq!(rank.ask("refuse"), "refusing");
    assert_eq!(rank.ask("report"), "report messages=1 bytes=1 connections=0 accepted=1");
}

#[test]
fn it_accepts_again_as_a_new_life() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("pause"), "paused");
    let first = Push::connect(&rank.endpoint);
    first.socket.send("lost", 0).unwrap();
    rank.wait_for("connections", 1);
    assert_eq!(rank.ask("refuse"), "refusing");
    let accepting = format!("accepting {}", rank.endpoint);
    assert_eq!(rank.ask("accept"), accepting);
    assert_eq!(rank.ask("accept"), accepting, "it goes on");
    let second = Push::connect(&rank.endpoint);
    second.socket.send("x", 0).unwrap();
    rank.wait_for("messages", 1);
    assert_eq!(rank.ask("report"), "report messages=1 bytes=1 connections=1 accepted=2");
}

#[test]
fn a_restart_ends_every_connection() {
    let mut rank = Rank::start(&[]);
    for life in 1..=20 {
        let push = Push::connect(&rank.endpoint);
        push.socket.send("x", 0).unwrap();
        rank.wait_for("messages", life);
        assert_eq!(rank.ask("restart"), format!("restarted {}", rank.endpoint));
        push.wait_for_end();
    }
    assert_eq!(rank.ask("report"), "report messages=20 bytes=20 connections=0 accepted=20");
}

#[test]
fn it_leaves_while_it_refuses() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("refuse"), "refusing");
    assert_eq!(rank.ask("goodbye"), "goodbye");
    assert_eq!(rank.wait().code(), Some(0));
}

#[test]
fn a_mute_one_accepts_and_says_nothing() {
    let mut rank = Rank::start(&["--as", "mute"]);
    let mut visitor = rank.visit();
    visitor.write_all(b"hello").unwrap();
    rank.wait_for("connections", 1);
    visitor.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    assert_eq!(std::io::Read::read(&mut visitor, &mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(visitor);
    rank.wait_for("connections", 0);
    assert_eq!(rank.count("accepted"), 1);
}

#[test]
fn http_answers_what_it_gets_once() {
    let rank = Rank::start(&["--as", "http"]);
    let mut visitor = rank.visit();
    visitor.write_all(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]).unwrap();
    let answer = String::from_utf8(read(&mut visitor, 1 << 20)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn garbage_comes_at_once() {
    let rank = Rank::start(&["--as", "garbage"]);
    let bytes = read(&mut rank.visit(), 256);
    assert!(bytes.len() == 256 && bytes[0] != 0xff);
}

#[test]
fn a_rep_socket_does_not_take_a_sender() {
    let mut rank = Rank::start(&["--as", "rep"]);
    let push = Push::connect(&rank.endpoint);
    push.wait_for_end();
    push.check_is_out();
    assert_eq!(rank.count("accepted"), 1);
}

#[test]
fn it_becomes_another_kind_and_comes_back() {
    let mut rank = Rank::start(&[]);
    for kind in ["http", "mute", "garbage", "rep"] {
        assert_eq!(rank.ask(&format!("restart {kind}")), format!("restarted {}", rank.endpoint));
        rank.visit();
        assert_eq!(rank.ask("accept pull"), "error: it accepts as another kind: refuse before, or restart");
        assert_eq!(rank.ask("refuse"), "refusing");
        assert_eq!(TcpStream::connect(rank.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(rank.ask("accept pull"), format!("accepting {}", rank.endpoint));
    Push::connect(&rank.endpoint).socket.send("x", 0).unwrap();
    rank.wait_for("messages", 1);
}

/// A sender whose keys are right gets in, one without keys or with another server's key does not.
fn check_curve(rank: &mut Rank) {
    let key = zmq::z85_decode(rank.public_key.as_ref().expect("a public key")).unwrap();
    let (pair, other) = (zmq::CurveKeyPair::new().unwrap(), zmq::CurveKeyPair::new().unwrap());
    let curve = |server: Vec<u8>| {
        Push::with(&rank.endpoint, |socket| {
            socket.set_curve_serverkey(&server).unwrap();
            socket.set_curve_publickey(&pair.public_key).unwrap();
            socket.set_curve_secretkey(&pair.secret_key).unwrap();
        })
    };
    curve(key.clone()).socket.send("secret", 0).unwrap();
    let wrong = curve(other.public_key.to_vec());
    wrong.wait_for_end();
    let plain = Push::connect(&rank.endpoint);
    plain.wait_for_end();
    for closed in [&wrong, &plain] {
        closed.check_is_out();
    }
    rank.wait_for("messages", 1);
}

#[test]
fn it_makes_a_key_pair_and_keeps_it_over_a_restart() {
    let mut rank = Rank::start(&["--curve"]);
    check_curve(&mut rank);
    assert_eq!(rank.ask("restart"), format!("restarted {}", rank.endpoint));
    let key = zmq::z85_decode(rank.public_key.as_ref().unwrap()).unwrap();
    let pair = zmq::CurveKeyPair::new().unwrap();
    let push = Push::with(&rank.endpoint, |socket| {
        socket.set_curve_serverkey(&key).unwrap();
        socket.set_curve_publickey(&pair.public_key).unwrap();
        socket.set_curve_secretkey(&pair.secret_key).unwrap();
    });
    push.socket.send("x", 0).unwrap();
    rank.wait_for("messages", 2);
}

#[test]
fn it_takes_its_secret_key_from_a_file() {
    let pair = zmq::CurveKeyPair::new().unwrap();
    let file = std::env::temp_dir().join(format!("kvconn-peer-key-{}", std::process::id()));
    std::fs::write(&file, zmq::z85_encode(&pair.secret_key).unwrap() + "\n").unwrap();
    let mut rank = Rank::start(&["--curve-secret-file", file.to_str().unwrap()]);
    assert_eq!(rank.public_key, Some(zmq::z85_encode(&pair.public_key).unwrap()));
    check_curve(&mut rank);
    std::fs::write(&file, "short").unwrap();
    let output = run(&["--curve-secret-file", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("kvconn-peer: {}: this is no CURVE secret key: 40 characters of Z85\n", file.display());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[test]
fn ipc_endpoints_refuse_and_restart_too() {
    let mut rank = Rank::start(&["ipc://*"]);
    let path = rank.endpoint.strip_prefix("ipc://").expect("an ipc endpoint").to_owned();
    for life in 1..=3 {
        let push = Push::connect(&rank.endpoint);
        push.socket.send("x", 0).unwrap();
        rank.wait_for("messages", life);
        assert_eq!(rank.ask("refuse"), "refusing");
        push.wait_for_end();
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(rank.ask("accept"), format!("accepting ipc://{path}"));
    }
    assert_eq!(rank.ask("restart garbage"), format!("restarted ipc://{path}"));
    let mut first = [0];
    std::io::Read::read_exact(&mut UnixStream::connect(&path).unwrap(), &mut first).unwrap();
    assert_ne!(first, [0xff]);
    rank.close_input();
    assert_eq!(rank.wait().code(), Some(0));
    let directory = std::path::Path::new(&path).parent().unwrap();
    wait_until("nothing is left", || !directory.exists());
}
