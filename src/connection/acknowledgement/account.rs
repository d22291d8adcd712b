//! What one connection has accepted, what of it is still in flight, and what that takes of the budgets.
//!
//! Over TCP, kvconn asks the kernel what the peer's kernel has acknowledged (`ledger/`). Where acknowledgements are
//! unknown, the bytes that libzmq has freed take their place (`release_tracker.rs`), but only for the budgets and for
//! progress.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use socket2::{Protocol, SockRef};

use super::ledger::{Ledger, Mechanism};
use super::release_tracker::FreedBytes;
use crate::budget::bytes::Reservation;
use crate::connection::acknowledgement::tcp_info::{self, TcpInfo};
use crate::connection::message::{Message, Wire};
use crate::options::{Key, Values};

/// The bytes of a ZMTP greeting, which a peer sends before anything else.
const GREETING: u64 = 64;

/// The account of one connection. Guarded by its lock. What every message needs comes first, and is close together.
#[repr(C)]
pub(in crate::connection) struct Account {
    /// The last message accepted.
    accepted: u64,
    /// How many bytes may be in flight, and what is reserved for them of the process's budget.
    max_queued: u64,
    reservation: Reservation,
    mechanism: Mechanism,
    /// `None` where acknowledgements are unknown, and once the connection has ended.
    kernel: Option<KernelAccount>,
    freed: FreedBytes,
    /// Bytes of a long message that is being handed over. They are reserved, and not accepted yet.
    handed_over: u64,
}

/// The ledger, and the connection's own TCP descriptor for asking the kernel.
#[repr(C)]
struct KernelAccount {
    ledger: Ledger,
    tcp: OwnedFd,
}

/// The result of one update.
#[derive(Clone, Copy)]
pub(in crate::connection) struct Observation {
    /// What the kernel reports.
    pub(in crate::connection) info: Option<TcpInfo>,
    /// More was acknowledged (where that is unknown: freed by libzmq) than at the update before.
    pub(in crate::connection) progress: bool,
}

/// Whether the budgets have room for a message.
pub(in crate::connection) enum Room {
    Yes,
    /// Not in this connection's budget.
    Full,
    /// Not in the process's budget, of which `taken` bytes are used.
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

    /// The handshake has succeeded. Nothing was accepted before.
    pub(in crate::connection) fn begin(&mut self, tcp: Option<OwnedFd>) {
        self.kernel = tcp.and_then(|tcp| {
            // TCP_INFO of an MPTCP socket is that of its first path, which does not carry everything.
            if SockRef::from(&tcp).protocol().is_ok_and(|protocol| protocol == Some(Protocol::MPTCP)) {
                return None;
            }
            let info = tcp_info::read(tcp.as_fd()).ok()?;
            // At READY the peer's greeting has been received, and our SYN, which counts as a byte, acknowledged. A
            // kernel whose counters say otherwise (gVisor's are always 0) cannot be asked about messages either. Of our
            // greeting nothing is known yet: a peer may say all of its handshake before it reads.
            let counts = info.counters.acked > 0 && info.counters.received >= GREETING;
            if !counts {
                return None;
            }
            Some(KernelAccount { ledger: Ledger::new(self.mechanism, info.counters.received), tcp })
        });
    }

    /// The descriptor for asking the kernel.
    pub(in crate::connection) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().map(|kernel| kernel.tcp.as_fd())
    }

    /// The last message accepted.
    #[inline(always)]
    pub(in crate::connection) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The last message acknowledged, as of the last update. `None`: unknown.
    pub(in crate::connection) fn acknowledged(&self) -> Option<u64> {
        match &self.kernel {
            Some(kernel) => Some(kernel.ledger.acknowledged()),
            // Nothing was sent, so nothing is unknown.
            None => (self.accepted == 0).then_some(0),
        }
    }

    /// Bytes on the wire that were accepted and, as of the last update, not acknowledged (where that is unknown: not
    /// freed by libzmq).
    pub(in crate::connection) fn queued(&self) -> u64 {
        match &self.kernel {
            Some(kernel) => kernel.ledger.bytes_in_flight(),
            None => self.freed.queued(),
        }
    }

    /// Whether everything accepted is known to be acknowledged: an update would find nothing new.
    pub(in crate::connection) fn is_settled(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.ledger.bytes_in_flight() == 0)
    }

    /// Asks the kernel. Where acknowledgements are unknown, checks what libzmq has freed.
    pub(in crate::connection) fn refresh(&mut self) -> Observation {
        let update = match &mut self.kernel {
            Some(kernel) => kernel.refresh(),
            None => Observation { info: None, progress: self.freed.refresh() },
        };
        if update.progress {
            self.reservation.keep(self.queued() + self.handed_over);
        }
        update
    }

    /// The watcher's update. It also detects PONGs that were expected and never sent.
    pub(in crate::connection) fn refresh_at_rest(&mut self) -> Observation {
        let update = self.refresh();
        if let (Some(TcpInfo { counters, written: Some(written), .. }), Some(KernelAccount { ledger, .. })) =
            (update.info, &mut self.kernel)
            && ledger.has_pings(counters.received)
            && ledger.check_rest(counters, written, Instant::now())
        {
            let again = self.refresh();
            return Observation { progress: update.progress || again.progress, ..again };
        }
        update
    }

    /// Whether the budgets have room for `bytes` more. If so, they are reserved in the process's budget. The flag says
    /// whether an update was needed and found progress.
    pub(in crate::connection) fn room(&mut self, bytes: u64) -> (Room, bool) {
        let mut progress = false;
        if !self.fits(bytes) {
            progress = self.refresh().progress;
            if !self.fits(bytes) {
                return (Room::Full, progress);
            }
        }
        if self.reservation.reserve(self.queued() + bytes) {
            return (Room::Yes, progress);
        }
        progress |= self.refresh().progress;
        if self.reservation.reserve(self.queued() + bytes) {
            return (Room::Yes, progress);
        }
        let (taken, limit) = self.reservation.state();
        (Room::Spent { taken, limit }, progress)
    }

    /// A message larger than the budget fits when nothing else is in flight.
    fn fits(&self, bytes: u64) -> bool {
        let queued = self.queued();
        queued == 0 || queued + bytes <= self.max_queued
    }

    /// What a message takes on this connection's wire.
    pub(in crate::connection) fn wire_bytes(&self, message: &Message) -> u64 {
        message.wire_bytes(self.mechanism)
    }

    /// Tracks when libzmq frees a message, if that is needed. After an error the message is as it was.
    pub(in crate::connection) fn track(&self, message: &mut Message) -> io::Result<()> {
        if self.kernel.is_some() || message.tracker().is_some() {
            return Ok(());
        }
        match self.freed.due(self.wire_bytes(message)) {
            Some(bytes) => message.track(bytes, self.freed.counter()),
            None => Ok(()),
        }
    }

    /// The bytes on the wire of a message that needs no update, no more of the process's budget, and no tracker. `None`:
    /// it needs one of these. [`accept_short`](Account::accept_short) follows if it is accepted.
    #[inline(always)]
    pub(in crate::connection) fn room_for_short(&self, wire: Wire) -> Option<u64> {
        let bytes = wire.bytes(self.mechanism);
        let queued = self.kernel.as_ref()?.ledger.bytes_in_flight() + bytes;
        (queued <= self.max_queued && self.reservation.covers(queued)).then_some(bytes)
    }

    /// It was accepted. Returns whether the kernel should be asked, to keep the ledger short.
    #[inline(always)]
    pub(in crate::connection) fn accept_short(&mut self, bytes: u64) -> bool {
        self.accepted += 1;
        let Some(KernelAccount { ledger, .. }) = &mut self.kernel else { return false };
        ledger.accept(bytes);
        ledger.wants_trimming()
    }

    /// A message was accepted. Returns whether the kernel should be asked, to keep the ledger short.
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

    /// Returns the bytes of the process's budget that are not needed. An idle connection needs none.
    pub(in crate::connection) fn give_back(&mut self) {
        match self.queued() + self.handed_over {
            0 => self.reservation.close(),
            needed => self.reservation.keep(needed),
        }
    }

    /// A long message is being handed over. There was room for its bytes: they stay reserved until
    /// [`end_handover`](Account::end_handover).
    pub(in crate::connection) fn begin_handover(&mut self, message: &Message) {
        self.handed_over = self.wire_bytes(message);
    }

    /// The long message was accepted, or never will be.
    pub(in crate::connection) fn end_handover(&mut self) {
        self.handed_over = 0;
    }

    /// The connection has ended. Closes our descriptor: while it is open, no FIN is sent.
    pub(in crate::connection) fn close(&mut self) {
        self.kernel = None;
        self.reservation.close();
    }

    /// What a zero-copy message needs: the mechanism, and the counter of freed bytes.
    pub(in crate::connection) fn tracking(&self) -> (Mechanism, Arc<AtomicU64>) {
        (self.mechanism, self.freed.counter().clone())
    }
}

impl KernelAccount {
    fn refresh(&mut self) -> Observation {
        let Ok(info) = tcp_info::read(self.tcp.as_fd()) else { return Observation { info: None, progress: false } };
        if let Some(written) = info.written {
            self.ledger.written(written, info.counters.received);
        }
        Observation { info: Some(info), progress: self.ledger.observe(info.counters) }
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

    fn believed(tcp: impl Into<OwnedFd>) -> bool {
        let mut account = Account::new(&Values::defaults(), Arc::new(ByteBudget::new(1 << 20)).reservation());
        account.begin(Some(tcp.into()));
        account.tcp().is_some()
    }

    #[test]
    fn the_counters_of_an_mptcp_socket_are_not_believed() {
        use socket2::{Domain, Socket, Type};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) else {
            return println!("SKIPPED: this kernel has no MPTCP");
        };
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let mut here = TcpStream::from(socket);
        here.write_all(&[1; 64]).unwrap();
        there.read_exact(&mut [0; 64]).unwrap();
        there.write_all(&[2; 64]).unwrap();
        here.read_exact(&mut [0; 64]).unwrap();
        assert!(!believed(here));
    }

    #[test]
    fn counters_that_do_not_count_the_peers_greeting_are_not_believed() {
        for (bytes, believed) in [(0, false), (63, false), (64, true)] {
            let (here, _there) = connection(bytes);
            assert_eq!(self::believed(here), believed, "{bytes} bytes");
        }
    }
}
