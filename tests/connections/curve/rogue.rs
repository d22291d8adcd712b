//! A malicious peer that holds the right key.

use std::ffi::{c_int, c_ulonglong};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use kvconn::error::Status;

use super::keys::Pair;
use super::recorder::greeting;
use crate::common::engine::refused;
use crate::common::{Engine, OwnProcess};
use crate::test_name;

unsafe extern "C" {
    /// libsodium's, as libzmq uses it: the first 32 bytes of the message are zeroes, and the first 16 of the box.
    fn crypto_box(
        boxed: *mut u8,
        message: *const u8,
        length: c_ulonglong,
        nonce: *const u8,
        public: *const u8,
        secret: *const u8,
    ) -> c_int;
}

/// The WELCOME of a server whose short-term key is all zeroes: nothing can be encrypted for it.
fn weak_welcome(server: &Pair, client_key: &[u8]) -> Vec<u8> {
    let secret = zmq::z85_decode(&server.secret).expect("a key");
    let nonce = b"WELCOME-0123456789abcdef";
    let (message, mut boxed) = ([0_u8; 32 + 128], [0_u8; 32 + 128]);
    // SAFETY: message and box are of that length, the nonce has 24 bytes, the keys 32.
    let rc = unsafe {
        let length = message.len() as c_ulonglong;
        let (to, from) = (client_key.as_ptr(), secret.as_ptr());
        crypto_box(boxed.as_mut_ptr(), message.as_ptr(), length, nonce.as_ptr(), to, from)
    };
    assert_eq!(rc, 0);
    [&[4, 168, 7][..], b"WELCOME", &nonce[8..], &boxed[16..]].concat()
}

/// libzmq asserts that such a key cannot be, and aborts the process: corrected in the libzmq that is built in.
#[test]
fn a_short_term_key_that_is_none_fails_the_handshake() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let (server, client) = (Pair::new(), Pair::new());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
    let of_server = server.clone();
    let peer = std::thread::spawn(move || {
        let (mut visitor, _) = listener.accept().expect("a visitor");
        visitor.write_all(&greeting(3, "CURVE")).expect("said");
        // Our greeting, and a HELLO whose short-term key is behind its 82nd byte.
        let mut recorded = [0; 64 + 2 + 200];
        visitor.read_exact(&mut recorded).expect("a HELLO");
        assert_eq!(&recorded[64..72], b"\x04\xc8\x05HELLO");
        visitor.write_all(&weak_welcome(&of_server, &recorded[66 + 80..66 + 112])).expect("said");
        let mut rest = Vec::new();
        visitor.read_to_end(&mut rest).ok();
        rest
    });
    let engine = Engine::with(&client.settings(&server));
    let error = refused(engine.connect(&endpoint, Duration::from_secs(10)), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::EACCES, "{}", error.message);
    assert_eq!(peer.join().expect("the peer"), [], "something was said to it after its WELCOME");
}
