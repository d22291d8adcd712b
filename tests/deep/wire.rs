//! A network whose every packet goes through this process: two or three hosts, each a network namespace with a TUN
//! device, and a thread between them that loses, delays, repeats, reorders, forges and misdirects packets.
//!
//! ```text
//!   the test, 10.9.0.1 ── the thread ──┬── peer, 10.9.0.2
//!                                      └── another host with the same address
//! ```
//!
//! The kernel needs TUN for this and nothing else: no netem, no iptables.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::mem::zeroed;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::packets::{Packet, RST};
use crate::common::namespace::in_new_namespace;
use crate::common::own_process::network_available;
use crate::common::process::locked;
use crate::common::{Random, RawPeer};

pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// What happens to packets. Chances are out of 1,000, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub lost: u64,
    pub repeated: u64,
    /// Held back for a few milliseconds, so that later ones overtake it.
    pub overtaken: u64,
    /// One of its bytes is changed.
    pub damaged: u64,
    /// Each is held back so long, and up to that much longer.
    pub delay: Duration,
    pub jitter: Duration,
    /// Longer ones vanish, without an ICMP answer.
    pub longest: Option<usize>,
    /// A NAT gives each flow another port.
    pub nat: bool,
}

/// What the thread was told, and what it did.
#[derive(Default)]
struct Orders {
    weather: Weather,
    reset_here: bool,
    reset_there: bool,
    /// Packets go to the other host.
    taken_over: bool,
    /// The NAT's table: the flow's own port, and the port outside.
    ports: HashMap<u16, u16>,
    next_port: u16,
    counts: Counts,
}

/// What happened to how many packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub passed: u64,
    pub lost: u64,
    pub repeated: u64,
    pub overtaken: u64,
    pub damaged: u64,
    pub too_long: u64,
    pub forged: u64,
    pub unknown_to_nat: u64,
}

pub struct Wire {
    orders: Arc<Mutex<Orders>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    peer: Arc<OwnedFd>,
    other: Arc<OwnedFd>,
}

/// Whether this machine lets us make one.
pub fn available() -> Result<(), String> {
    network_available()?;
    let tried = in_new_namespace(|_| tun(HERE).map(drop)).map_err(|error| error.to_string())?;
    tried
        .map_err(|error| format!("this process cannot make a TUN device ({error}); load the kernel's tun, run as root"))
}

impl Wire {
    /// In the network of the calling process, which must be its own (`OwnProcess::network`).
    #[track_caller]
    pub fn new(seed: u64) -> Wire {
        let host = || {
            let made = in_new_namespace(|own| (own, tun(THERE).expect("a TUN device"))).expect("a network namespace");
            (made.0, made.1)
        };
        let here = tun(HERE).expect("a TUN device");
        let ((peer, at_peer), (other, at_other)) = (host(), host());
        let orders = Arc::new(Mutex::new(Orders { next_port: 20_000, ..Orders::default() }));
        let stopped = Arc::new(AtomicBool::new(false));
        let (told, ends) = (orders.clone(), stopped.clone());
        let thread = std::thread::spawn(move || {
            let mut carrier = Carrier { here, at_peer, at_other, held: BinaryHeap::new(), random: Random::new(seed) };
            while !ends.load(Ordering::SeqCst) {
                carrier.turn(&told);
            }
        });
        Wire { orders, stopped, thread: Some(thread), peer, other }
    }

    pub fn set(&self, weather: Weather) {
        locked(&self.orders).weather = weather;
    }

    pub fn counts(&self) -> Counts {
        locked(&self.orders).counts
    }

    /// With the next packet of ours, forges a reset to these sides.
    pub fn reset(&self, here: bool, there: bool) {
        let mut orders = locked(&self.orders);
        (orders.reset_here, orders.reset_there) = (here, there);
    }

    /// From now on another host has the peer's address.
    pub fn take_over(&self) {
        locked(&self.orders).taken_over = true;
    }

    /// The NAT forgets every flow.
    pub fn forget(&self) {
        locked(&self.orders).ports.clear();
    }

    /// A peer at the peer's address; on the port, or any.
    #[track_caller]
    pub fn raw_peer(&self, port: u16) -> RawPeer {
        RawPeer::bind_in(&format!("{THERE}:{port}"), Some(self.peer.clone()))
    }

    /// The same on the host that takes the address over.
    #[track_caller]
    pub fn raw_peer_of_other_host(&self, port: u16) -> RawPeer {
        RawPeer::bind_in(&format!("{THERE}:{port}"), Some(self.other.clone()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Here,
    Peer,
    Other,
}

/// A packet that is held back: until when, its number, where it goes.
type Held = Reverse<(Instant, u64, Side, Vec<u8>)>;

struct Carrier {
    here: File,
    at_peer: File,
    at_other: File,
    held: BinaryHeap<Held>,
    random: Random,
}

impl Carrier {
    /// Waits for packets for a moment, and carries what there is.
    fn turn(&mut self, orders: &Mutex<Orders>) {
        let readable = |file: &File| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut items = [readable(&self.here), readable(&self.at_peer), readable(&self.at_other)];
        let wait = self.held.peek().map_or(Duration::from_millis(20), |Reverse((due, ..))| {
            due.saturating_duration_since(Instant::now()).min(Duration::from_millis(20))
        });
        let wait = libc::timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as libc::c_long };
        // SAFETY: three initialised items; no signal mask.
        unsafe { libc::ppoll(items.as_mut_ptr(), 3, &wait, std::ptr::null()) };
        let mut orders = locked(orders);
        for _ in 0..64 {
            let mut any = false;
            for side in [Side::Here, Side::Peer, Side::Other] {
                let mut buffer = [0; 2048];
                if let Ok(size) = self.file(side).read(&mut buffer) {
                    any = true;
                    self.carry(side, Packet(buffer[..size].to_vec()), &mut orders);
                }
            }
            if !any {
                break;
            }
        }
        let now = Instant::now();
        while self.held.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((_, _, side, bytes))) = self.held.pop() else { break };
            self.write(side, &bytes);
        }
    }

    fn file(&mut self, side: Side) -> &mut File {
        match side {
            Side::Here => &mut self.here,
            Side::Peer => &mut self.at_peer,
            Side::Other => &mut self.at_other,
        }
    }

    fn write(&mut self, side: Side, bytes: &[u8]) {
        // A write to a TUN device is a packet. A queue that is full loses it, as a router's would.
        self.file(side).write_all(bytes).ok();
    }

    fn carry(&mut self, from: Side, mut packet: Packet, orders: &mut Orders) {
        let peer = if orders.taken_over { Side::Other } else { Side::Peer };
        // The host that lost its address is cut off. IPv6 and others are of no account.
        if !packet.is_tcp() || (from != Side::Here && from != peer) {
            return;
        }
        let weather = orders.weather;
        let to = if from == Side::Here { peer } else { Side::Here };
        if weather.longest.is_some_and(|longest| packet.0.len() > longest) {
            return orders.counts.too_long += 1;
        }
        if weather.nat && !translate(from, &mut packet, orders) {
            return orders.counts.unknown_to_nat += 1;
        }
        let chances = [weather.lost, weather.repeated, weather.overtaken, weather.damaged];
        let [lost, repeated, overtaken, damaged] = chances.map(|of| of > 0 && self.random.below(1000) < of);
        if lost {
            return orders.counts.lost += 1;
        }
        let forged = (from == Side::Here && !packet.has(RST)).then(|| (packet.reset_back(), packet.reset_behind()));
        if damaged {
            orders.counts.damaged += 1;
            let at = 20 + self.random.below(packet.0.len() as u64 - 20) as usize;
            packet.0[at] ^= 0x10;
        }
        let mut delay = weather.delay;
        if !weather.jitter.is_zero() {
            delay += Duration::from_nanos(self.random.below(weather.jitter.as_nanos() as u64));
        }
        if overtaken {
            orders.counts.overtaken += 1;
            delay += Duration::from_millis(1 + self.random.below(5));
        }
        orders.counts.passed += 1;
        self.deliver(to, &packet.0, delay, orders.counts.passed);
        if repeated {
            orders.counts.repeated += 1;
            let later = Duration::from_millis(self.random.below(3));
            self.deliver(to, &packet.0, delay + later, orders.counts.passed);
        }
        if let Some((back, behind)) = forged.filter(|_| orders.reset_here || orders.reset_there) {
            for (wanted, side, reset) in [(orders.reset_here, Side::Here, back), (orders.reset_there, peer, behind)] {
                if wanted {
                    orders.counts.forged += 1;
                    self.write(side, &reset.0);
                }
            }
            (orders.reset_here, orders.reset_there) = (false, false);
        }
    }

    fn deliver(&mut self, to: Side, bytes: &[u8], delay: Duration, number: u64) {
        if delay.is_zero() {
            self.write(to, bytes);
        } else {
            self.held.push(Reverse((Instant::now() + delay, number, to, bytes.to_vec())));
        }
    }
}

/// What a NAT does with a packet; false if it belongs to no flow that is known.
fn translate(from: Side, packet: &mut Packet, orders: &mut Orders) -> bool {
    if from == Side::Here {
        let own = packet.source_port();
        let outside = *orders.ports.entry(own).or_insert_with(|| {
            orders.next_port += 1;
            orders.next_port
        });
        packet.set_ports(outside, packet.destination_port());
        return true;
    }
    let outside = packet.destination_port();
    let Some(own) = orders.ports.iter().find(|(_, port)| **port == outside).map(|(own, _)| *own) else { return false };
    packet.set_ports(packet.source_port(), own);
    true
}

/// A TUN device of the calling thread's network, up and with this address in 10.9.0.0/24.
fn tun(address: Ipv4Addr) -> std::io::Result<File> {
    let done = |result: libc::c_int| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) };
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
    // SAFETY: an ifreq of zeroes is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"wire0") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the ioctl reads and writes only the request.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let name = |address: Ipv4Addr| {
        // SAFETY: a sockaddr of zeroes is valid.
        let mut name: libc::sockaddr = unsafe { zeroed() };
        name.sa_family = libc::AF_INET as libc::sa_family_t;
        // The address is behind the port, of two bytes.
        name.sa_data[2..6].copy_from_slice(&address.octets().map(|byte| byte as libc::c_char));
        name
    };
    // SAFETY: each ioctl reads and writes only the request; the socket is closed here.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        done(socket)?;
        request.ifr_ifru.ifru_addr = name(address);
        let mut result = done(libc::ioctl(socket, libc::SIOCSIFADDR, &raw mut request));
        request.ifr_ifru.ifru_netmask = name(Ipv4Addr::new(255, 255, 255, 0));
        result = result.and_then(|()| done(libc::ioctl(socket, libc::SIOCSIFNETMASK, &raw mut request)));
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        result = result.and_then(|()| done(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw mut request)));
        libc::close(socket);
        result?;
    }
    Ok(file)
}
