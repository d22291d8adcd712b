//! What may sit at an endpoint instead of a PULL socket: a plain TCP listener in its own process.
//!
//! A ZMTP peer of the wrong socket type is `PeerOptions::socket`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peer_main::Control;
use super::process::Process;

/// A wrong peer's process; dropping it kills it.
pub struct WrongPeer {
    process: Process,
    address: SocketAddr,
}

/// It is stopped, resumed and killed as its process is.
impl std::ops::Deref for WrongPeer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl WrongPeer {
    /// Accepts and reads, never says a byte. Use it too where only `connections()` matters.
    #[track_caller]
    pub fn mute() -> WrongPeer {
        WrongPeer::start("mute", "127.0.0.1:0", None)
    }

    /// `mute` on a port of 127.0.0.1 that someone else had before.
    #[track_caller]
    pub fn mute_on(port: u16) -> WrongPeer {
        WrongPeer::start("mute", &format!("127.0.0.1:{port}"), None)
    }

    /// Speaks first, as an HTTP server does that dislikes the request.
    #[track_caller]
    pub fn http() -> WrongPeer {
        WrongPeer::speaking(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    }

    /// Says these bytes to each visitor, then only reads.
    #[track_caller]
    pub fn speaking(banner: &[u8]) -> WrongPeer {
        let hex: String = banner.iter().map(|byte| format!("{byte:02x}")).collect();
        WrongPeer::start(&format!("speak:{hex}"), "127.0.0.1:0", None)
    }

    /// Accepts and resets.
    #[track_caller]
    pub fn resetting() -> WrongPeer {
        WrongPeer::start("reset", "127.0.0.1:0", None)
    }

    /// Accepts and closes.
    #[track_caller]
    pub fn closing() -> WrongPeer {
        WrongPeer::start("close", "127.0.0.1:0", None)
    }

    /// A listener whose backlog is full: a SYN gets no answer at all, as from a black hole, and no root is needed.
    #[track_caller]
    pub fn black_hole() -> WrongPeer {
        WrongPeer::start("full", "127.0.0.1:0", None)
    }

    /// `mode` is one of mute, reset, close, full and speak:HEX; `bind` an address of loopback or of a namespace.
    #[track_caller]
    pub fn start(mode: &str, bind: &str, namespace: Option<Arc<OwnedFd>>) -> WrongPeer {
        let process = Process::start("tcp", namespace);
        let answer = process.ask(&format!("listen {mode} {bind}"));
        let address = answer.parse().expect("an address");
        WrongPeer { process, address }
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many connections it has accepted so far.
    #[track_caller]
    pub fn connections(&self) -> u64 {
        self.totals().0
    }

    /// How many bytes its visitors have sent so far.
    #[track_caller]
    pub fn bytes(&self) -> u64 {
        self.totals().1
    }

    /// How many of its connections are still open.
    #[track_caller]
    pub fn open(&self) -> u64 {
        self.totals().2
    }

    fn totals(&self) -> (u64, u64, u64) {
        let answer = self.process.ask("report");
        let numbers: Vec<u64> = answer.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [connections, bytes, open] = numbers[..] else {
            panic!("a wrong peer's report: {answer}");
        };
        (connections, bytes, open)
    }
}

/// A port of 127.0.0.1 that refuses connections and cannot be taken while this lives: bound, not listening.
pub struct ClosedPort {
    _socket: OwnedFd,
    port: u16,
}

impl ClosedPort {
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }
}

#[track_caller]
pub fn closed_port() -> ClosedPort {
    let socket = bound_socket("127.0.0.1:0".parse().expect("an address"));
    // SAFETY: the descriptor is open and owned here; the borrowed listener is forgotten, not closed.
    let listener = unsafe { std::mem::ManuallyDrop::new(TcpListener::from_raw_fd(socket.as_raw_fd())) };
    let port = listener.local_addr().expect("a bound address").port();
    ClosedPort { _socket: socket, port }
}

/// A TCP socket bound to an IPv4 address, not listening.
fn bound_socket(address: SocketAddr) -> OwnedFd {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is not an IPv4 address");
    };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    };
    let size = std::mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: the name is a complete sockaddr_in of `size` bytes; the new descriptor has this one owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "socket: {}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(socket);
        let result = libc::bind(socket.as_raw_fd(), (&raw const name).cast(), size);
        assert_eq!(result, 0, "binding {address}: {}", std::io::Error::last_os_error());
        socket
    }
}

/// The child's side.
pub fn run(mut control: Control) {
    let words = control.command();
    let [listen, mode, bind] = &words[..] else {
        return control.error(&format!("not a listen command: {words:?}"));
    };
    assert_eq!(listen, "listen");
    let address: SocketAddr = match bind.parse() {
        Ok(address) => address,
        Err(error) => return control.error(&format!("{bind}: {error}")),
    };
    // Held to the end of the process, so that the full backlog stays full.
    let mut fillers = Vec::new();
    let listener = if mode == "full" {
        full_listener(address, &mut fillers)
    } else {
        match listen_at(address) {
            Ok(listener) => listener,
            Err(error) => return control.error(&format!("binding {address}: {error}")),
        }
    };
    listener.set_nonblocking(true).expect("non-blocking");
    control.ok(&listener.local_addr().expect("bound").to_string());
    serve(control, &listener, mode);
}

/// A listener. A port that was free a moment ago may be in use for another: a dial of any other test may have got it as
/// its source. So an address in use is tried again for a while.
pub fn listen_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn full_listener(address: SocketAddr, fillers: &mut Vec<TcpStream>) -> TcpListener {
    let socket = bound_socket(address);
    // SAFETY: the descriptor is open and bound.
    let result = unsafe { libc::listen(socket.as_raw_fd(), 0) };
    assert_eq!(result, 0, "listen: {}", std::io::Error::last_os_error());
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().expect("bound");
    let begun = Instant::now();
    while let Ok(filler) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        fillers.push(filler);
        assert!(begun.elapsed() < Duration::from_secs(5), "the backlog of {address} does not fill");
    }
    listener
}

fn serve(mut control: Control, listener: &TcpListener, mode: &str) {
    let banner: Vec<u8> = match mode.strip_prefix("speak:") {
        Some(hex) => {
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect()
        }
        None => Vec::new(),
    };
    let (mut connections, mut bytes) = (0u64, 0u64);
    let mut open: Vec<TcpStream> = Vec::new();
    loop {
        let mut items = vec![readable(Control::DESCRIPTOR)];
        if mode != "full" {
            items.push(readable(listener.as_raw_fd()));
            items.extend(open.iter().map(|stream| readable(stream.as_raw_fd())));
        }
        // SAFETY: the items are an initialised array of that length.
        unsafe { libc::poll(items.as_mut_ptr(), items.len() as libc::nfds_t, -1) };
        if mode != "full" {
            while let Ok((mut stream, _)) = listener.accept() {
                connections += 1;
                stream.set_nonblocking(true).expect("non-blocking");
                stream.write_all(&banner).ok();
                match mode {
                    "reset" => reset(&stream),
                    "close" => {}
                    _ => open.push(stream),
                }
            }
            open.retain_mut(|stream| still_open(stream, &mut bytes));
        }
        if items[0].revents != 0 {
            let command = control.command();
            match command[0].as_str() {
                "report" => control.ok(&format!("{connections} {bytes} {}", open.len())),
                other => control.error(&format!("a wrong peer knows no command {other}")),
            }
        }
    }
}

fn readable(fd: libc::c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Reads what is there; false when the visitor has closed.
fn still_open(stream: &mut TcpStream, bytes: &mut u64) -> bool {
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => *bytes += count as u64,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Makes the close that follows send RST.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option is a linger of the given size; the descriptor is open.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            std::mem::size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "SO_LINGER: {}", std::io::Error::last_os_error());
}
