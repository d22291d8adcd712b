//! A peer behind a network that can drop packets.
//!
//! Three places: the test, a router, the peer. The router forwards between two veth pairs; `cut` switches its
//! forwarding off, and packets in both directions vanish without RST, ICMP or a lost carrier, as behind a dead switch.
//! The namespaces have no names: they live as descriptors of this process and are gone with it, however it ends.
//!
//! ```text
//!   test  10.213.a.b ── 10.213.a.b+1  router  10.213.a.b+4 ── 10.213.a.b+5  peer
//! ```

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::own_process::raise_loopback;
use super::peer::{Peer, PeerOptions};
use super::process::enter_namespace;
use super::wrong_peer::WrongPeer;

pub struct Namespace {
    router: Arc<OwnedFd>,
    inside: Arc<OwnedFd>,
    device: String,
    here: Ipv4Addr,
    there: Ipv4Addr,
}

impl Namespace {
    /// Whether this machine lets us make one; the reason when it does not. Skip with `skip_unless!`.
    pub fn available() -> Result<(), String> {
        static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
        let try_it = || {
            let place = in_new_namespace(|own| own)
                .map_err(|error| format!("cannot make a network namespace ({error}); run as root"))?;
            let pair = ["link", "add", "kva", "type", "veth", "peer", "name", "kvb"];
            try_ip(Some(&place), &pair).map_err(|error| format!("cannot make a veth pair with iproute2: {error}"))
        };
        ANSWER.get_or_init(try_it).clone()
    }

    #[track_caller]
    pub fn new() -> Namespace {
        Namespace::available().expect("call Namespace::available first");
        let make = || in_new_namespace(|own| own).expect("a network namespace");
        let (router, inside) = (make(), make());
        let (slot, base) = free_subnet();
        let address = |last: u32| Ipv4Addr::from(base + last);
        let (here, gateway) = (address(1), address(2));
        let (gateway_inside, there) = (address(5), address(6));
        let device = format!("kvc{slot:x}a");
        let far = format!("kvc{slot:x}b");

        ip(None, &format!("link add {device} type veth peer name {far}"));
        let namespace = Namespace { router, inside, device: device.clone(), here, there };
        let (router, inside) = (&namespace.router, &namespace.inside);
        ip(None, &format!("link set {far} netns {}", path_of(router)));
        ip(None, &format!("addr add {here}/30 dev {device}"));
        ip(None, &format!("link set {device} up"));
        ip(Some(router), &format!("addr add {gateway}/30 dev {far}"));
        ip(Some(router), &format!("link set {far} up"));

        ip(Some(router), "link add inner type veth peer name eth0");
        let target = path_of(inside);
        ip(Some(router), &format!("link set eth0 netns {target}"));
        ip(Some(router), &format!("addr add {gateway_inside}/30 dev inner"));
        ip(Some(router), "link set inner up");
        ip(Some(inside), &format!("addr add {there}/30 dev eth0"));
        ip(Some(inside), "link set eth0 up");
        ip(Some(inside), &format!("route add default via {gateway_inside}"));

        let subnet = address(4);
        ip(None, &format!("route add {subnet}/30 via {gateway} dev {device}"));
        namespace.restore();
        namespace
    }

    /// Drops every packet in both directions, silently.
    #[track_caller]
    pub fn cut(&self) {
        self.forward("0");
    }

    /// Lets packets pass again.
    #[track_caller]
    pub fn restore(&self) {
        self.forward("1");
    }

    /// Lets no more than that through to the peer, in megabits a second.
    #[track_caller]
    pub fn narrow(&self, megabits: u32) {
        let rate = format!("{megabits}mbit");
        let words =
            ["qdisc", "replace", "dev", "inner", "root", "tbf", "rate", &rate, "burst", "64kb", "latency", "50ms"];
        try_tool("tc", Some(&self.router), &words).unwrap_or_else(|error| panic!("tc {}: {error}", words.join(" ")));
    }

    fn forward(&self, value: &'static str) {
        within_namespace(&self.router, move || std::fs::write("/proc/sys/net/ipv4/ip_forward", value))
            .expect("entering the router's namespace")
            .expect("switching the router's forwarding");
    }

    /// A peer inside, at this namespace's address. `options.bind` is `tcp://0.0.0.0:0` or has the address `there()`;
    /// the endpoint always names the address.
    #[track_caller]
    pub fn peer(&self, mut options: PeerOptions) -> Peer {
        options.bind = options.bind.replace("127.0.0.1", &self.there.to_string());
        Peer::start(options, Some(self.inside.clone()))
    }

    /// Whether a link can be made narrow here (`narrow`); the reason when it cannot.
    pub fn narrow_available() -> Result<(), String> {
        Namespace::available()?;
        let place = in_new_namespace(|own| own).map_err(|error| error.to_string())?;
        let words = ["qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "64kb", "latency", "50ms"];
        try_tool("tc", Some(&place), &words).map_err(|error| format!("tc has no tbf here: {error}"))
    }

    /// A wrong peer inside, see `WrongPeer::start`.
    #[track_caller]
    pub fn wrong_peer(&self, mode: &str) -> WrongPeer {
        let bind = format!("{}:0", self.there);
        WrongPeer::start(mode, &bind, Some(self.inside.clone()))
    }

    /// A listener inside, for a thread of the test to be the peer.
    #[track_caller]
    pub fn listener(&self) -> TcpListener {
        let there = self.there;
        within_namespace(&self.inside, move || TcpListener::bind((there, 0)))
            .expect("entering the namespace")
            .expect("a port inside")
    }

    /// The address of the test's side.
    pub fn here(&self) -> Ipv4Addr {
        self.here
    }

    /// The address of the peer's side.
    pub fn there(&self) -> Ipv4Addr {
        self.there
    }

    /// The network device of the test's side.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Makes `command` run inside.
    pub fn enter(&self, command: &mut Command) {
        enter_namespace(command, self.inside.clone());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The rest goes with the descriptors; the device at once, so that the address is free for the next.
        let delete = ["link", "del", self.device.as_str()];
        try_ip(None, &delete).ok();
    }
}

/// Makes a network namespace with its loopback up, runs `work` with its descriptor on a thread inside.
pub fn in_new_namespace<T: Send>(work: impl FnOnce(Arc<OwnedFd>) -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: unshare changes only this short-lived thread.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            raise_loopback();
            let own = File::open("/proc/thread-self/ns/net")?;
            Ok(work(Arc::new(own.into())))
        });
        inside.join().expect("the thread in a new namespace")
    })
}

/// Runs `work` on a thread inside `namespace`.
fn within_namespace<T: Send>(namespace: &OwnedFd, work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: setns changes only this short-lived thread; the descriptor is open.
            match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
                0 => Ok(work()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
        inside.join().expect("the thread in a namespace")
    })
}

fn path_of(namespace: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// A /29 of 10.213.0.0/16 that no route of this machine leads to.
fn free_subnet() -> (u32, u32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let routes = std::fs::read_to_string("/proc/net/route").expect("reading /proc/net/route");
    let hex = |text: &str| u32::from_str_radix(text, 16).map(u32::swap_bytes);
    let routes: Vec<(u32, u32)> = routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            Some((hex(fields.get(1)?).ok()?, hex(fields.get(7)?).ok()?))
        })
        .filter(|&(_, mask)| mask != 0)
        .collect();
    for _ in 0..8192 {
        let counter = NEXT.fetch_add(1, Ordering::Relaxed);
        let slot = std::process::id().wrapping_mul(61).wrapping_add(counter) % 8192;
        let base = u32::from(Ipv4Addr::new(10, 213, 0, 0)) + slot * 8;
        let taken = |&(net, mask): &(u32, u32)| (0..8).any(|last| (base + last) & mask == net & mask);
        if !routes.iter().any(taken) {
            return (slot, base);
        }
    }
    panic!("every subnet of 10.213.0.0/16 is routed elsewhere on this machine");
}

#[track_caller]
fn ip(namespace: Option<&Arc<OwnedFd>>, arguments: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    if let Err(error) = try_ip(namespace, &words) {
        panic!("ip {arguments}: {error}");
    }
}

fn try_ip(namespace: Option<&Arc<OwnedFd>>, arguments: &[&str]) -> Result<(), String> {
    try_tool("ip", namespace, arguments)
}

/// Runs a tool of iproute2.
fn try_tool(tool: &str, namespace: Option<&Arc<OwnedFd>>, arguments: &[&str]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tool);
    command.args(arguments).env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    if let Some(namespace) = namespace {
        enter_namespace(&mut command, namespace.clone());
    }
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}
