//! What one connection has accepted, what of it is still in flight, and what that takes of the budgets.
//!
//! Over TCP, kvconn asks the kernel what the peer's kernel has acknowledged (`ledger/`). Where acknowledgements are
//! unknown, the bytes that libzmq has freed take their place (`release_tracker.rs`), but only for the budgets and for
//! progress.

use std::io;
use std::mem::offset_of;
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
    /// How many bytes may be in flight without asking anybody: those of `reservation`, and at most `max_queued`.
    granted: u64,
    /// The connection's own TCP descriptor for asking the kernel. `None` where acknowledgements are unknown, and once the
    /// connection has ended. Then the ledger means nothing.
    tcp: Option<OwnedFd>,
    mechanism: Mechanism,
    ledger: Ledger,
    /// How many bytes may be in flight.
    max_queued: u64,
    /// What is reserved for them of the process's budget.
    reservation: Reservation,
    freed: FreedBytes,
    /// Bytes of a long message that is being handed over. They are reserved, and not accepted yet.
    handed_over: u64,
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
    /// The bytes at its beginning that every message needs.
    pub(in crate::connection) const EVERY_MESSAGE: usize = offset_of!(Account, ledger) + Ledger::EVERY_MESSAGE;

    pub(in crate::connection) fn new(values: &Values, reservation: Reservation) -> Account {
        let mechanism = if values.is_curve() { Mechanism::Curve } else { Mechanism::Null };
        Account {
            accepted: 0,
            granted: 0,
            tcp: None,
            mechanism,
            ledger: Ledger::new(mechanism, 0),
            freed: FreedBytes::default(),
            max_queued: values.get(Key::MaxQueuedBytes).unsigned_abs(),
            reservation,
            handed_over: 0,
        }
    }

    /// The handshake has succeeded. Nothing was accepted before.
    pub(in crate::connection) fn begin(&mut self, tcp: Option<OwnedFd>) {
        let Some(tcp) = tcp else { return };
        // TCP_INFO of an MPTCP socket is that of its first path, which does not carry everything.
        if SockRef::from(&tcp).protocol().is_ok_and(|protocol| protocol == Some(Protocol::MPTCP)) {
            return;
        }
        let Ok(TcpInfo { counters, .. }) = tcp_info::read(tcp.as_fd()) else { return };
        // At READY the peer's greeting has been received, and our SYN, which counts as a byte, acknowledged. A kernel
        // whose counters say otherwise (gVisor's are always 0) cannot be asked about messages either. Of our greeting
        // nothing is known yet: a peer may say all of its handshake before it reads.
        if counters.acked > 0 && counters.received >= GREETING {
            self.ledger = Ledger::new(self.mechanism, counters.received);
            self.tcp = Some(tcp);
        }
    }

    /// The descriptor for asking the kernel.
    pub(in crate::connection) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        self.tcp.as_ref().map(AsFd::as_fd)
    }

    /// The ledger, if acknowledgements are known.
    #[inline(always)]
    fn ledger(&self) -> Option<&Ledger> {
        self.tcp.is_some().then_some(&self.ledger)
    }

    /// The last message accepted.
    #[inline(always)]
    pub(in crate::connection) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The last message acknowledged, as of the last update. `None`: unknown.
    pub(in crate::connection) fn acknowledged(&self) -> Option<u64> {
        match self.ledger() {
            Some(ledger) => Some(ledger.acknowledged()),
            // Nothing was sent, so nothing is unknown.
            None => (self.accepted == 0).then_some(0),
        }
    }

    /// Bytes on the wire that were accepted and, as of the last update, not acknowledged (where that is unknown: not
    /// freed by libzmq).
    pub(in crate::connection) fn queued(&self) -> u64 {
        match self.ledger() {
            Some(ledger) => ledger.bytes_in_flight(),
            None => self.freed.queued(),
        }
    }

    /// Whether everything accepted is known to be acknowledged: an update would find nothing new.
    pub(in crate::connection) fn is_settled(&self) -> bool {
        self.ledger().is_some_and(|ledger| ledger.bytes_in_flight() == 0)
    }

    /// Asks the kernel. Where acknowledgements are unknown, checks what libzmq has freed.
    pub(in crate::connection) fn refresh(&mut self) -> Observation {
        let update = match &self.tcp {
            Some(tcp) => Account::ask_kernel(&mut self.ledger, tcp.as_fd()),
            None => Observation { info: None, progress: self.freed.refresh() },
        };
        if update.progress {
            let needed = self.queued() + self.handed_over;
            self.with_reservation(|reservation| reservation.keep(needed));
        }
        update
    }

    fn ask_kernel(ledger: &mut Ledger, tcp: BorrowedFd<'_>) -> Observation {
        let Ok(info) = tcp_info::read(tcp) else { return Observation { info: None, progress: false } };
        if let Some(written) = info.written {
            ledger.written(written, info.counters.received);
        }
        Observation { info: Some(info), progress: ledger.observe(info.counters) }
    }

    /// Changes the reservation, and with it what is granted. Nothing else may change it.
    fn with_reservation<T>(&mut self, change: impl FnOnce(&mut Reservation) -> T) -> T {
        let result = change(&mut self.reservation);
        self.granted = self.reservation.taken().min(self.max_queued);
        result
    }

    /// The watcher's update. It also detects PONGs that were expected and never sent.
    pub(in crate::connection) fn refresh_at_rest(&mut self) -> Observation {
        let update = self.refresh();
        if let Some(TcpInfo { counters, written: Some(written), .. }) = update.info
            && self.ledger.has_pings(counters.received)
            && self.ledger.check_rest(counters, written, Instant::now())
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
        if self.reserve(bytes) {
            return (Room::Yes, progress);
        }
        progress |= self.refresh().progress;
        if self.reserve(bytes) {
            return (Room::Yes, progress);
        }
        let (taken, limit) = self.reservation.state();
        (Room::Spent { taken, limit }, progress)
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        let needed = self.queued() + bytes;
        self.with_reservation(|reservation| reservation.reserve(needed))
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
        if self.tcp.is_some() || message.tracker().is_some() {
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
        let queued = self.ledger()?.bytes_in_flight() + bytes;
        (queued <= self.granted).then_some(bytes)
    }

    /// It was accepted. Returns whether the kernel should be asked, to keep the ledger short.
    #[inline(always)]
    pub(in crate::connection) fn accept_short(&mut self, bytes: u64) -> bool {
        self.accepted += 1;
        self.ledger.accept(bytes)
    }

    /// A message was accepted. Returns whether the kernel should be asked, to keep the ledger short.
    pub(in crate::connection) fn accept(&mut self, message: &mut Message) -> bool {
        self.accepted += 1;
        let bytes = self.wire_bytes(message);
        let tracked = message.accepted(self.accepted);
        if self.tcp.is_some() {
            return self.ledger.accept(bytes);
        }
        self.freed.accept(bytes, tracked);
        false
    }

    /// Returns the bytes of the process's budget that are not needed. An idle connection needs none.
    pub(in crate::connection) fn give_back(&mut self) {
        let needed = self.queued() + self.handed_over;
        self.with_reservation(|reservation| match needed {
            0 => reservation.close(),
            needed => reservation.keep(needed),
        });
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
        self.tcp = None;
        self.ledger = Ledger::new(self.mechanism, 0);
        self.with_reservation(Reservation::close);
    }

    /// What a zero-copy message needs: the mechanism, and the counter of freed bytes.
    pub(in crate::connection) fn tracking(&self) -> (Mechanism, Arc<AtomicU64>) {
        (self.mechanism, self.freed.counter().clone())
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
