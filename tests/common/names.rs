//! What names resolve to, for the calling thread and the threads it starts: a mount namespace of their own, with other
//! files in /etc. To be used in a process of one's own (`OwnProcess`), before its first connection; with a network of
//! its own (`OwnProcess::network`) there can be a name server, too.

use std::ffi::CString;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether this machine lets us: root, with mount namespaces.
pub fn available() -> Result<(), String> {
    let tried = std::thread::spawn(|| leave_mounts().map_err(|error| error.to_string()));
    let tried = tried.join().expect("a thread that tries");
    tried.map_err(|error| format!("this process cannot make a mount namespace ({error}); run as root"))
}

/// Names are these lines of /etc/hosts and nothing else: the name server is asked for nothing.
#[track_caller]
pub fn only_hosts(lines: &str) {
    leave_mounts().expect("a mount namespace");
    replace("/etc/nsswitch.conf", "hosts: files\n");
    replace("/etc/hosts", lines);
}

/// Among the addresses of a name those of IPv4 come first: against the system's usual order. Where there is no
/// /etc/gai.conf to be replaced this cannot be had.
pub fn prefer_ipv4() -> Result<(), String> {
    if !Path::new("/etc/gai.conf").exists() {
        return Err("this machine has no /etc/gai.conf".into());
    }
    leave_mounts().expect("a mount namespace");
    replace("/etc/gai.conf", "precedence ::ffff:0:0/96 100\n");
    Ok(())
}

/// Names are these lines of /etc/hosts, and what this name server says, at 127.0.0.1. It says nothing until `answer`
/// is called.
#[track_caller]
pub fn hosts_and_server(lines: &str) -> NameServer {
    hosts_and_absent_server(lines);
    NameServer::start()
}

/// The same with nobody at 127.0.0.1: every question is refused at once.
#[track_caller]
pub fn hosts_and_absent_server(lines: &str) {
    leave_mounts().expect("a mount namespace");
    replace("/etc/nsswitch.conf", "hosts: files dns\n");
    replace("/etc/hosts", lines);
    replace("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n");
}

/// Gives the calling thread mounts of its own, which others do not see.
fn leave_mounts() -> std::io::Result<()> {
    // SAFETY: unshare changes only this thread; the texts end with NUL.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        match libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// Puts a file of this content over `path`.
#[track_caller]
fn replace(path: &str, content: &str) {
    let name = format!("kvconn-{}-{}", std::process::id(), Path::new(path).file_name().expect("a name").display());
    let source = std::env::temp_dir().join(name);
    std::fs::write(&source, content).expect("a file in the temporary directory");
    let text = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let (from, over) = (text(&source), text(Path::new(path)));
    // SAFETY: the texts end with NUL.
    let result =
        unsafe { libc::mount(from.as_ptr(), over.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null()) };
    assert_eq!(result, 0, "mounting over {path}: {}", std::io::Error::last_os_error());
    // The mount keeps the file.
    std::fs::remove_file(&source).expect("removing the name of the file");
}

/// A name server that answers nothing until it is told to.
pub struct NameServer {
    socket: UdpSocket,
    held: Arc<Mutex<Vec<Question>>>,
    /// Names that begin like this have this address, at once.
    known: Arc<Mutex<Option<(String, Ipv4Addr)>>>,
}

/// The address of the client, and the whole question.
type Question = (SocketAddr, Vec<u8>);

impl NameServer {
    fn start() -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("port 53 of a network of one's own");
        let held = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::new(Mutex::new(None::<(String, Ipv4Addr)>));
        let (listening, keeping) = (socket.try_clone().expect("the socket again"), held.clone());
        let looking = known.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((size, from)) = listening.recv_from(&mut buffer) {
                let question = &buffer[..size];
                let known = locked(&looking).clone();
                // The first label is behind its length.
                match known.filter(|(begin, _)| question[13..].starts_with(begin.as_bytes())) {
                    Some((_, address)) => drop(listening.send_to(&answer(question, address), from)),
                    None => locked(&keeping).push((from, question.to_vec())),
                }
            }
        });
        NameServer { socket, held, known }
    }

    /// From now on, at once.
    pub fn answer_names_that_begin_with(&self, begin: &str, address: Ipv4Addr) {
        *locked(&self.known) = Some((begin.into(), address));
    }

    /// How many questions wait for an answer.
    pub fn held(&self) -> usize {
        locked(&self.held).len()
    }

    /// Answers what waits: every name has this IPv4 address.
    pub fn answer(&self, address: Ipv4Addr) {
        for (from, question) in locked(&self.held).drain(..) {
            self.socket.send_to(&answer(&question, address), from).expect("answering");
        }
    }
}

/// An answer: the name has this IPv4 address, and no other.
fn answer(question: &[u8], address: Ipv4Addr) -> Vec<u8> {
    // The question's end: after the root label that ends the name come type and class.
    let name_end = question[12..].iter().position(|&byte| byte == 0).expect("a name") + 13;
    let is_a = question[name_end..name_end + 2] == [0, 1];
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    answer.extend(&question[12..name_end + 4]);
    if is_a {
        // The name of the question, type A, class IN, for no time at all, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
