//! Other services are recognised by their first bytes (field report R37).

use std::time::Duration;

use kvconn::error::Status;

use crate::common::engine::refused;
use crate::common::load::Stopwatch;
use crate::common::{Engine, WrongPeer, ms};

const LIMIT: Duration = Duration::from_secs(10);

/// The handshake's time is the default, three seconds.
#[test]
fn a_service_that_speaks_in_text_is_recognised_at_its_first_bytes() {
    let banners: [(&str, &[u8]); 6] = [
        ("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        ("SMTP", b"220 mail.example ESMTP\r\n"),
        ("one byte", b"\x01"),
        ("zeroes", &[0; 64]),
        ("ZMTP 2, a PULL socket", b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x07\0\0"),
    ];
    for (what, banner) in banners {
        let peer = WrongPeer::speaking(banner);
        let engine = Engine::new();
        let watch = Stopwatch::start();
        let error = refused(engine.connect(&peer.endpoint(), LIMIT), Status::ConnectFailed);
        watch.at_most(ms(300), what);
        assert_eq!(error.os_errno, libc::EPROTO, "{what}: {error:?}");
        assert!(error.message.contains("wrong peer"), "{what}: {}", error.message);
        assert_eq!(peer.connections(), 1, "{what}");
    }
}
