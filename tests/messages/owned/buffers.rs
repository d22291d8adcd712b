//! Zero-copy buffers as these tests send them, and the calls of their release function.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::delivery::Outcome;
use kvconn::delivery::Release;
use kvconn::error::Result;
use kvconn::ids::ConnId;

use crate::common::engine::after;

pub const LONG: Duration = Duration::from_secs(20);

/// One call of a release function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub conn: ConnId,
    pub sequence: u64,
    pub outcome: Outcome,
    pub thread: Option<String>,
}

/// Sends buffers and keeps them until they are released. Then they are overwritten, so that the peer sees one that
/// libzmq reads too late.
pub struct Buffers {
    tell: Sender<Released>,
    releases: Receiver<Released>,
    /// The buffers, also the released ones.
    kept: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Buffers {
    pub fn new() -> Buffers {
        let (tell, releases) = channel();
        Buffers { tell, releases, kept: Arc::default() }
    }

    /// Sends these frames without copying them.
    pub fn send(&self, conn: &Arc<Connection>, frames: Vec<Vec<u8>>, timeout: Duration) -> Result<u64> {
        let frames: Vec<Box<[u8]>> = frames.into_iter().map(Vec::into_boxed_slice).collect();
        let raw: Vec<*const [u8]> = frames.iter().map(|frame| &raw const **frame).collect();
        let place = {
            let mut kept = self.kept.lock().unwrap();
            kept.extend(frames);
            kept.len() - raw.len()..kept.len()
        };
        let called = AtomicBool::new(false);
        let (tell, kept, range) = (self.tell.clone(), self.kept.clone(), place.clone());
        let release: Release = Box::new(move |conn, sequence, outcome| {
            assert!(!called.swap(true, Ordering::Relaxed), "released twice");
            overwrite(&kept, range);
            let thread = std::thread::current().name().map(str::to_string);
            tell.send(Released { conn, sequence, outcome, thread }).ok();
        });
        // SAFETY: the buffers are kept, unchanged, until they are released or refused.
        let sent = unsafe { conn.send_owned(&raw, Some(release), after(timeout)) };
        if sent.is_err() {
            overwrite(&self.kept, place);
        }
        sent
    }

    /// The next call of a release function.
    #[track_caller]
    pub fn released(&self) -> Released {
        self.releases.recv_timeout(LONG).expect("a release")
    }

    /// Those that have come.
    pub fn released_so_far(&self) -> Vec<Released> {
        self.releases.try_iter().collect()
    }
}

fn overwrite(kept: &Mutex<Vec<Box<[u8]>>>, range: std::ops::Range<usize>) {
    for frame in &mut kept.lock().unwrap()[range] {
        frame.fill(0xdd);
    }
}
