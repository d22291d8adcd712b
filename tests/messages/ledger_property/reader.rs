//! The peer at the other end of a random run.

use std::time::Duration;

use crate::common::{Peer, PeerOptions, Random, RawPeer, ms};

pub enum Reader {
    /// libzmq's PULL, with heartbeats or without.
    Libzmq(Peer),
    /// One that tells exactly what its kernel gave it.
    Raw(RawPeer),
}

/// What a reader does, or is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Stop,
    Resume,
    PauseReading,
    ResumeReading,
    Kill,
    /// Closes: a PULL at once, a raw peer once its kernel has nothing left.
    Close,
    /// Says that it is done, and reads to the end; a raw peer only.
    Finish,
}

impl Reader {
    pub fn random(random: &mut Random) -> Reader {
        if random.below(2) == 0 {
            return Reader::Raw(RawPeer::bind("127.0.0.1:0"));
        }
        Reader::Libzmq(Peer::with(PeerOptions {
            heartbeat: random.one_of(&[Duration::ZERO, ms(3), ms(20)]),
            rcvhwm: random.one_of(&[1, 10, 1000]),
            log: false,
            ..PeerOptions::default()
        }))
    }

    pub fn endpoint(&self) -> String {
        match self {
            Reader::Libzmq(peer) => peer.endpoint().to_string(),
            Reader::Raw(peer) => peer.endpoint(),
        }
    }

    pub fn does(&self, action: Action) {
        match (self, action) {
            (Reader::Libzmq(peer), Action::Stop) => peer.stop(),
            (Reader::Libzmq(peer), Action::Resume) => peer.resume(),
            (Reader::Libzmq(peer), Action::PauseReading) => peer.pause_reading(),
            (Reader::Libzmq(peer), Action::ResumeReading) => peer.resume_reading(),
            (Reader::Libzmq(peer), Action::Kill) => peer.kill(),
            (Reader::Libzmq(peer), Action::Close | Action::Finish) => peer.terminate(),
            (Reader::Raw(peer), Action::Stop) => peer.stop(),
            (Reader::Raw(peer), Action::Resume) => peer.resume(),
            (Reader::Raw(peer), Action::PauseReading) => peer.pause_reading(),
            (Reader::Raw(peer), Action::ResumeReading) => peer.resume_reading(),
            (Reader::Raw(peer), Action::Kill) => peer.kill(),
            (Reader::Raw(peer), Action::Close) => peer.close(),
            (Reader::Raw(peer), Action::Finish) => peer.finish(),
        }
    }
}
