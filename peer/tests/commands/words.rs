//! The help, and what is said about mistakes.

use crate::rank::{Rank, run};

#[test]
fn the_help_names_every_command_kind_and_option() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    for command in ["report", "pause", "resume", "freeze", "die", "goodbye", "refuse", "accept", "restart"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}");
    }
    for kind in ["pull", "rep", "mute", "http", "garbage"] {
        assert!(help.contains(&format!("\n  {kind} ")), "{kind}");
    }
    for option in ["--as KIND", "--curve ", "--curve-secret-file FILE", "--record FILE", "--rcvhwm N", "--help"] {
        assert!(help.contains(&format!("\n  {option}")), "{option}");
    }
    assert!(help.contains("exit status: 0"));
}

#[test]
fn a_wrong_command_is_an_error_and_nothing_else() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("stop"), "error: there is no command \"stop\"");
    assert_eq!(rank.ask(""), "error: there is no command \"\"");
    assert_eq!(rank.ask("pause now"), "error: pause: \"now\" is one word too many");
    assert_eq!(rank.ask("restart ftp"), "error: there is no kind \"ftp\": it is one of pull, rep, mute, http, garbage");
    assert_eq!(rank.ask("report"), "report messages=0 bytes=0 connections=0 accepted=0");
}

#[test]
fn a_wrong_command_line_is_status_2() {
    for (arguments, text) in [
        (&["--speed", "3"][..], "there is no option --speed"),
        (&["--rcvhwm"], "--rcvhwm needs a value"),
        (&["--as", "ftp"], "there is no kind \"ftp\": it is one of pull, rep, mute, http, garbage"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{error}");
        assert!(error.starts_with(&format!("kvconn-peer: {text}\n")) && error.contains("usage: "), "{error}");
    }
}

#[test]
fn an_endpoint_that_cannot_be_had_is_status_1() {
    for arguments in [
        &["tcp://nowhere"][..],
        &["--as", "mute", "tcp://nowhere"],
        &["ipc:///no/such/directory/socket"],
        &["--record", "/no/such/directory/record"],
        &["--curve-secret-file", "/no/such/key"],
    ] {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{error}");
        assert!(error.starts_with("kvconn-peer: ") && error.lines().count() == 1, "{error}");
        let named = arguments.last().unwrap();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    for kind in ["pull", "mute"] {
        let output = run(&["--as", kind, &endpoint]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(error.starts_with(&format!("kvconn-peer: cannot listen at {endpoint}: ")), "{error}");
    }
}
