//! What one connection has accepted and is still on the way, as far as anybody can tell, and what that takes of the budgets.
//!
//! Over TCP the kernel is asked what the peer's has acknowledged (`ledger.rs`). Where nobody can tell, what libzmq has let go
//! stands in for that (`held.rs`), but only for the budgets and for progress.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::ledger::{Ledger, Mechanism};
use super::release_tracker::FreedBytes;
use crate::budget::bytes::Reservation;
use crate::connection::acknowledgement::tcp_info::{self, TcpInfo};
use crate::connection::message::Message;
use crate::options::{Key, Values};

/// The bytes of a ZMTP greeting, which both sides send before anything else.
const GREETING: u64 = 64;

/// The account of one connection. Guarded by its lock.
pub(in crate::connection) struct Account {
    mechanism: Mechanism,
    /// The last message accepted.
    accepted: u64,
    /// None where nobody can tell, and once the connection has ended.
    kernel: Option<KernelAccount>,
    freed: FreedBytes,
    /// How many bytes may be on the way, and what of the process's budget is taken for them.
    max_queued: u64,
    reservation: Reservation,
    /// Bytes of a long message that is being handed over. They are reserved, and not accepted yet.
    handed_over: u64,
}

/// The ledger, and the connection's own descriptor of TCP to ask the kernel on.
struct KernelAccount {
    ledger: Ledger,
    tcp: OwnedFd,
}

/// One look.
#[derive(Clone, Copy)]
pub(in crate::connection) struct Observation {
    /// What the kernel says.
    pub(in crate::connection) info: Option<TcpInfo>,
    /// More was acknowledged or, where nobody can tell, let go, than at the look before.
    pub(in crate::connection) moved: bool,
}

/// Whether the budgets have room for a message.
pub(in crate::connection) enum Room {
    Yes,
    /// Not on this connection.
    Full,
    /// Not in the process, of whose budget so much is taken.
    Spent {
        taken: u64,
        limit: u64,
    },
}

impl Account {
    pub(in crate::connection) fn new(values: &Values, reservation: Reservation) -> Account {
        Account {
            mechanism: if values.is_curve() { Mechanism::Curve } else { Mechanism::Null },
            accepted: 0,
            kernel: None,
            freed: FreedBytes::default(),
            max_queued: values.get(Key::MaxQueuedBytes).unsigned_abs(),
            reservation,
            handed_over: 0,
        }
    }

    /// The handshake has succeeded; nothing was accepted before.
    pub(in crate::connection) fn begin(&mut self, tcp: Option<OwnedFd>) {
        self.kernel = tcp.and_then(|tcp| {
            let info = tcp_info::read(tcp.as_fd()).ok()?;
            // The peer's kernel has acknowledged our greeting, or the peer could not have gone on. A kernel that does not
            // count (gVisor's) says nothing of what comes later either.
            let counts = info.counters.acked >= GREETING && info.counters.received >= GREETING;
            if !counts {
                return None;
            }
            Some(KernelAccount { ledger: Ledger::new(self.mechanism, info.counters.received), tcp })
        });
    }

    /// The descriptor that the kernel is asked on.
    pub(in crate::connection) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().map(|kernel| kernel.tcp.as_fd())
    }

    /// The last message accepted.
    pub(in crate::connection) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The last message acknowledged, as far as it was looked; `None`: nobody can tell.
    pub(in crate::connection) fn acknowledged(&self) -> Option<u64> {
        match &self.kernel {
            Some(kernel) => Some(kernel.ledger.acknowledged()),
            // Nothing was sent: nothing can be unknown.
            None => (self.accepted == 0).then_some(0),
        }
    }

    /// Bytes on the wire that were accepted and are, as far as it was looked, not acknowledged or, where nobody can tell, still
    /// held by libzmq.
    pub(in crate::connection) fn queued(&self) -> u64 {
        match &self.kernel {
            Some(kernel) => kernel.ledger.bytes_on_the_way(),
            None => self.freed.queued(),
        }
    }

    /// Asks the kernel or, where nobody can tell, looks what libzmq has let go.
    pub(in crate::connection) fn look(&mut self) -> Observation {
        let look = match &mut self.kernel {
            Some(kernel) => kernel.look(),
            None => Observation { info: None, moved: self.freed.look() },
        };
        if look.moved {
            self.reservation.keep(self.queued() + self.handed_over);
        }
        look
    }

    /// The watcher's look, which also finds out what an answer to heartbeats is that was never sent.
    pub(in crate::connection) fn look_at_rest(&mut self) -> Observation {
        let look = self.look();
        if let (Some(TcpInfo { counters, written: Some(written), .. }), Some(KernelAccount { ledger, .. })) =
            (look.info, &mut self.kernel)
            && ledger.has_pings(counters.received)
            && ledger.rests(counters, written, Instant::now())
        {
            let again = self.look();
            return Observation { moved: look.moved || again.moved, ..again };
        }
        look
    }

    /// Whether the budgets have room for so many bytes more, which are then taken of the process's; and whether a look that
    /// this needed found that something has moved.
    pub(in crate::connection) fn room(&mut self, bytes: u64) -> (Room, bool) {
        let mut moved = false;
        if !self.fits(bytes) {
            moved = self.look().moved;
            if !self.fits(bytes) {
                return (Room::Full, moved);
            }
        }
        if self.reservation.reserve(self.queued() + bytes) {
            return (Room::Yes, moved);
        }
        moved |= self.look().moved;
        if self.reservation.reserve(self.queued() + bytes) {
            return (Room::Yes, moved);
        }
        let (taken, limit) = self.reservation.state();
        (Room::Spent { taken, limit }, moved)
    }

    /// One message larger than the budget goes when nothing else is on the way.
    fn fits(&self, bytes: u64) -> bool {
        let queued = self.queued();
        queued == 0 || queued + bytes <= self.max_queued
    }

    /// What a message takes on the wire here.
    pub(in crate::connection) fn wire_bytes(&self, message: &Message) -> u64 {
        message.wire_bytes(self.mechanism)
    }

    /// Tracks when libzmq frees a message, if that is needed. After an error the message must not be sent.
    pub(in crate::connection) fn track(&self, message: &mut Message) -> io::Result<()> {
        if self.kernel.is_some() || message.tracker().is_some() {
            return Ok(());
        }
        match self.freed.due(self.wire_bytes(message)) {
            Some(bytes) => message.track(bytes, self.freed.counter()),
            None => Ok(()),
        }
    }

    /// A message was accepted: whether the kernel should be asked, so that the ledger stays short.
    pub(in crate::connection) fn accept(&mut self, message: &mut Message) -> bool {
        self.accepted += 1;
        let bytes = self.wire_bytes(message);
        let tracked = message.accepted(self.accepted);
        match &mut self.kernel {
            Some(KernelAccount { ledger, .. }) => {
                ledger.accept(bytes);
                ledger.wants_trimming()
            }
            None => {
                self.freed.accept(bytes, tracked);
                false
            }
        }
    }

    /// Gives back what is not needed of the process's budget. What is idle needs nothing.
    pub(in crate::connection) fn give_back(&mut self) {
        match self.queued() + self.handed_over {
            0 => self.reservation.close(),
            needed => self.reservation.keep(needed),
        }
    }

    /// A long message is being handed over, for whose bytes there was room: they stay reserved until
    /// [`end_handover`](Account::end_handover).
    pub(in crate::connection) fn begin_handover(&mut self, message: &Message) {
        self.handed_over = self.wire_bytes(message);
    }

    /// It was accepted, or never will be.
    pub(in crate::connection) fn end_handover(&mut self) {
        self.handed_over = 0;
    }

    /// The connection has ended. Our descriptor is given up: while it is open, no FIN leaves.
    pub(in crate::connection) fn close(&mut self) {
        self.kernel = None;
        self.reservation.close();
    }

    /// What a message of zero-copy buffers needs: the mechanism, and the counter of freed bytes.
    pub(in crate::connection) fn tracking(&self) -> (Mechanism, Arc<AtomicU64>) {
        (self.mechanism, self.freed.counter().clone())
    }
}

impl KernelAccount {
    fn look(&mut self) -> Observation {
        let Ok(info) = tcp_info::read(self.tcp.as_fd()) else { return Observation { info: None, moved: false } };
        if let Some(written) = info.written {
            self.ledger.written(written, info.counters.received);
        }
        Observation { info: Some(info), moved: self.ledger.observe(info.counters) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::bytes::ByteBudget;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A connection on which each side has sent and read so many bytes.
    fn connection(bytes: usize) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        here.write_all(&vec![1; bytes]).unwrap();
        there.read_exact(&mut vec![0; bytes]).unwrap();
        // The answer carries the acknowledgement.
        there.write_all(&vec![2; bytes]).unwrap();
        here.read_exact(&mut vec![0; bytes]).unwrap();
        (here, there)
    }

    #[test]
    fn counters_that_do_not_count_the_greeting_are_not_believed() {
        for (bytes, believed) in [(0, false), (63, false), (64, true)] {
            let (here, _there) = connection(bytes);
            let mut account = Account::new(&Values::defaults(), Arc::new(ByteBudget::new(1 << 20)).reservation());
            account.begin(Some(here.into()));
            assert_eq!(account.tcp().is_some(), believed, "{bytes} bytes");
        }
    }
}
