//! A TCP listener that keeps every byte its visitors send: it answers with a script, or passes all on to a peer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Records until the test's process ends.
pub struct Recorder {
    port: u16,
    recorded: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    /// Says these bytes to each visitor, then only listens.
    pub fn saying(bytes: &[u8]) -> Recorder {
        let bytes = bytes.to_vec();
        Recorder::serve(move |mut visitor, recorded| {
            visitor.write_all(&bytes).ok();
            copy(&mut visitor, None, &recorded);
        })
    }

    /// Passes on to that port of 127.0.0.1, and its answers back.
    pub fn before(port: u16) -> Recorder {
        Recorder::serve(move |mut visitor, recorded| {
            let peer = TcpStream::connect(("127.0.0.1", port)).expect("the peer listens");
            let (mut back, mut to) =
                (peer.try_clone().expect("a second handle"), visitor.try_clone().expect("as well"));
            std::thread::spawn(move || {
                std::io::copy(&mut back, &mut to).ok();
                to.shutdown(Shutdown::Both).ok();
            });
            copy(&mut visitor, Some(peer), &recorded);
        })
    }

    fn serve(visit: impl Fn(TcpStream, Arc<Mutex<Vec<u8>>>) + Send + Sync + 'static) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let (visit, shared) = (Arc::new(visit), recorded.clone());
        std::thread::spawn(move || {
            for visitor in listener.incoming().map_while(Result::ok) {
                let (visit, recorded) = (visit.clone(), shared.clone());
                std::thread::spawn(move || visit(visitor, recorded));
            }
        });
        Recorder { port, recorded }
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Everything that visitors have sent so far.
    pub fn recorded(&self) -> Vec<u8> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn copy(from: &mut TcpStream, mut to: Option<TcpStream>, recorded: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        recorded.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..count]);
        if let Some(to) = &mut to {
            to.write_all(&buffer[..count]).ok();
        }
    }
    if let Some(to) = to {
        to.shutdown(Shutdown::Both).ok();
    }
}

/// A greeting with this revision (0 is ZMTP 1, 1 is ZMTP 2, 3 is ZMTP 3), as a PULL socket says it.
pub fn greeting(revision: u8, mechanism: &str) -> Vec<u8> {
    let mut bytes = b"\xff\0\0\0\0\0\0\0\x01\x7f".to_vec();
    bytes.push(revision);
    match revision {
        // The socket's type, and an empty identity.
        0..=2 => bytes.extend([7, 0, 0]),
        _ => {
            bytes.push(1);
            bytes.extend(mechanism.as_bytes());
            bytes.resize(64, 0);
        }
    }
    bytes
}
