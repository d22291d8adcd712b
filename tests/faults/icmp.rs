//! A network that answers with ICMP: its errors become errnos that libzmq took for its own bugs (field reports R1 and
//! R2).

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::Status;

use crate::common::engine::{refused, send, wait_ended};
use crate::common::{Engine, Namespace, Peer, PeerOptions, ms};
use crate::skip_unless;

const LONG: Duration = Duration::from_secs(30);

/// "Destination unreachable" and its codes.
const UNREACHABLE: u8 = 3;
const PROTOCOL: u8 = 2;
const SOURCE_ROUTE: u8 = 5;

/// Answers each TCP packet that leaves for a port, as a router or firewall between the hosts would.
struct Answering {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
}

impl Answering {
    fn start(device: &str, port: u16, code: u8) -> Answering {
        let packets = every_packet(device).expect("a packet socket");
        // SAFETY: takes no pointers; what it returns is ours.
        let icmp = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_ICMP) };
        assert_ne!(icmp, -1, "a raw socket: {}", io::Error::last_os_error());
        // SAFETY: just made.
        let icmp = unsafe { OwnedFd::from_raw_fd(icmp) };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut answered = 0;
            while !stopped.load(Ordering::Relaxed) {
                let mut packet = [0_u8; 2048];
                // SAFETY: `packet` has as many bytes. The socket has a time-out.
                let size = unsafe { libc::recv(packets.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
                let packet = &packet[..usize::try_from(size).unwrap_or(0)];
                if leads_to(packet, port) {
                    answer(&icmp, packet, code);
                    answered += 1;
                }
            }
            answered
        });
        Answering { stop, thread: Some(thread) }
    }

    /// How many packets it has answered.
    fn stop(mut self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("stopped once").join().expect("the answering thread")
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A socket that sees what leaves by a device, from the IP header on.
fn every_packet(device: &str) -> io::Result<OwnedFd> {
    let everything = u16::try_from(libc::ETH_P_ALL).expect("a protocol").to_be();
    let device = CString::new(device).expect("a name");
    // SAFETY: the name is a C string, the address is whole, and the time lives for the call.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, everything.into());
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = everything;
        address.sll_ifindex = libc::if_nametoindex(device.as_ptr()) as i32;
        let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let size = size_of::<libc::sockaddr_ll>() as u32;
        if libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) != 0
            || libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const time).cast(),
                size_of::<libc::timeval>() as u32,
            ) != 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

/// Whether it is a TCP packet to that port.
fn leads_to(packet: &[u8], port: u16) -> bool {
    let header = usize::from(packet.first().map_or(0, |first| first & 15)) * 4;
    packet.first().is_some_and(|first| first >> 4 == 4)
        && packet.get(9) == Some(&6)
        && packet.get(header + 2..header + 4) == Some(&port.to_be_bytes()[..])
}

fn answer(icmp: &OwnedFd, packet: &[u8], code: u8) {
    let header = usize::from(packet[0] & 15) * 4;
    let mut message = vec![UNREACHABLE, code, 0, 0, 0, 0, 0, 0];
    message.extend(&packet[..packet.len().min(header + 8)]);
    let mut sum: u32 = message.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(&packet[12..16]).expect("four bytes"));
    // SAFETY: all zero is an address; message and address live for the call.
    unsafe {
        let mut address: libc::sockaddr_in = zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_ne_bytes(source.octets());
        libc::sendto(
            icmp.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_in>() as u32,
        );
    }
}

/// Field report R1.
#[test]
fn a_dial_to_an_unreachable_protocol_fails_with_its_errno() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    network.cut();
    let network_answers = Answering::start(network.device(), peer.port(), PROTOCOL);
    let engine = Engine::with(&[("connect_timeout_ms", "10000")]);
    let error = refused(engine.connect(peer.endpoint(), LONG), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::ENOPROTOOPT, "{error:?}");
    assert!(network_answers.stop() > 0);
}

/// Field report R2: the kernel keeps the last ICMP error of a live connection, and tells it when its patience is over.
#[test]
fn live_connections_whose_packets_are_refused_are_lost_with_that_errno() {
    skip_unless!(Namespace::available());
    const CONNECTIONS: usize = 16;
    let network = Namespace::new();
    let peer: Peer = network.peer(PeerOptions { log: false, ..PeerOptions::default() });
    let engines: Vec<Engine> = (0..CONNECTIONS).map(|_| Engine::with(&[("user_timeout_ms", "1500")])).collect();
    let conns: Vec<_> = engines.iter().map(|engine| engine.ready(peer.endpoint())).collect();
    std::thread::scope(|scope| {
        for conn in &conns {
            // At full speed, so that some find the error in a send and others in a recv.
            scope.spawn(move || {
                while conn.info().state == ConnectionState::Ready {
                    if send(conn, &[&[7; 3000]], ms(50)).is_err() {
                        // STALLED comes at once: the thread that answers needs the processor.
                        std::thread::sleep(ms(2));
                    }
                }
            });
        }
        std::thread::sleep(ms(100)); // of traffic
        network.cut();
        let network_answers = Answering::start(network.device(), peer.port(), SOURCE_ROUTE);
        let mut refused = 0;
        for conn in &conns {
            let info = wait_ended(conn, LONG);
            assert_eq!(info.status, Status::PeerLost, "{info:?}");
            // The kernel names a timeout where none of the last packets was answered in time.
            assert!([libc::EOPNOTSUPP, libc::ETIMEDOUT].contains(&info.os_errno), "{info:?}");
            refused += usize::from(info.os_errno == libc::EOPNOTSUPP);
        }
        // Whether the kernel keeps an answer until its patience is over is a matter of moments: in one run of six it names
        // none. The fact here is that no answer ends the process, and that each connection ends with the kernel's errno.
        println!("{refused} of {CONNECTIONS} connections name the answer's errno");
        assert!(network_answers.stop() > 0);
    });
}
