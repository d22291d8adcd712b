//! How these tests lend buffers, and what they are told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::connection::loans::Outcome;
use kvconn::error::Result;
use kvconn::ids::ConnId;
use kvconn::release::Release;

use crate::common::engine::after;

pub const LONG: Duration = Duration::from_secs(20);

/// One call of a release function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub conn: ConnId,
    pub sequence: u64,
    pub outcome: Outcome,
    pub thread: Option<String>,
}

/// Lends buffers and keeps them until they are given back: one that is wrongly read later is found out by the peer, for it is
/// overwritten first.
pub struct Lender {
    tell: Sender<Told>,
    told: Receiver<Told>,
    /// Buffers that are lent, and whether each may be read by libzmq.
    lent: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Lender {
    pub fn new() -> Lender {
        let (tell, told) = channel();
        Lender { tell, told, lent: Arc::default() }
    }

    /// Sends these frames without copying them.
    pub fn send(&self, conn: &Arc<Connection>, frames: Vec<Vec<u8>>, timeout: Duration) -> Result<u64> {
        let frames: Vec<Box<[u8]>> = frames.into_iter().map(Vec::into_boxed_slice).collect();
        let raw: Vec<*const [u8]> = frames.iter().map(|frame| &raw const **frame).collect();
        let place = {
            let mut lent = self.lent.lock().unwrap();
            lent.extend(frames);
            lent.len() - raw.len()..lent.len()
        };
        let called = AtomicBool::new(false);
        let (tell, lent, range) = (self.tell.clone(), self.lent.clone(), place.clone());
        let release: Release = Box::new(move |conn, sequence, outcome| {
            assert!(!called.swap(true, Ordering::Relaxed), "released twice");
            overwrite(&lent, range);
            let thread = std::thread::current().name().map(str::to_string);
            tell.send(Told { conn, sequence, outcome, thread }).ok();
        });
        // SAFETY: the buffers are kept, unchanged, until they are released or refused.
        let sent = unsafe { conn.send_owned(&raw, Some(release), after(timeout)) };
        if sent.is_err() {
            overwrite(&self.lent, place);
        }
        sent
    }

    /// The next call of a release function.
    #[track_caller]
    pub fn told(&self) -> Told {
        self.told.recv_timeout(LONG).expect("a release")
    }

    /// Those that have come.
    pub fn told_so_far(&self) -> Vec<Told> {
        self.told.try_iter().collect()
    }
}

fn overwrite(lent: &Mutex<Vec<Box<[u8]>>>, range: std::ops::Range<usize>) {
    for frame in &mut lent.lock().unwrap()[range] {
        frame.fill(0xdd);
    }
}
