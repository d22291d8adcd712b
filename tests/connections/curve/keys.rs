//! Key pairs, and peers that have one.

use crate::common::{Peer, PeerOptions};

/// Backoff that is over at once, where a test dials again and again.
pub const QUICK: [(&str, &str); 2] = [("backoff_ms", "1"), ("backoff_max_ms", "1")];

/// A pair of keys, in Z85.
#[derive(Clone, Debug)]
pub struct Pair {
    pub public: String,
    pub secret: String,
}

impl Pair {
    pub fn new() -> Pair {
        let pair = zmq::CurveKeyPair::new().expect("libzmq has CURVE");
        let text = |key: [u8; 32]| zmq::z85_encode(&key).expect("a key of 32 bytes");
        Pair { public: text(pair.public_key), secret: text(pair.secret_key) }
    }

    /// The settings of a client with this pair, for that server.
    pub fn settings<'a>(&'a self, server: &'a Pair) -> [(&'a str, &'a str); 3] {
        [("curve_server_key", &server.public), ("curve_public_key", &self.public), ("curve_secret_key", &self.secret)]
    }

    /// All that no text may contain: both keys as Z85, and as bytes.
    pub fn traces(&self) -> Vec<Vec<u8>> {
        let texts = [&self.public, &self.secret];
        let bytes = texts.map(|text| zmq::z85_decode(text).expect("a key"));
        texts.map(|text| text.clone().into_bytes()).into_iter().chain(bytes).collect()
    }
}

/// A peer with this pair on any port.
#[track_caller]
pub fn peer(server: &Pair) -> Peer {
    peer_at(server, "tcp://127.0.0.1:0")
}

/// The same at an endpoint.
#[track_caller]
pub fn peer_at(server: &Pair, bind: &str) -> Peer {
    Peer::with(PeerOptions { bind: bind.into(), curve_secret: Some(server.secret.clone()), ..PeerOptions::default() })
}

/// Whether the bytes contain the part.
pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
