//! A test whose body needs a process to itself: a descriptor limit, a network of its own, counts that parallel tests
//! would disturb, a fork, an exit.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::process::{spawn, this_binary};

const INSIDE: &str = "KVCONN_OWN_PROCESS";

/// What a child that ran to its end left behind.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// ```ignore
/// #[test]
/// fn survives_few_descriptors() {
///     if OwnProcess::new(test_name!()).descriptors(256).parent() { return }
///     // … runs in a process of its own; a panic here fails the test
/// }
/// ```
pub struct OwnProcess {
    test: String,
    descriptors: Option<u64>,
    network: bool,
    environment: Vec<(String, String)>,
    limit: Duration,
}

impl OwnProcess {
    pub fn new(test: String) -> OwnProcess {
        OwnProcess { test, descriptors: None, network: false, environment: Vec::new(), limit: Duration::from_secs(120) }
    }

    /// Sets RLIMIT_NOFILE (soft and hard).
    pub fn descriptors(mut self, limit: u64) -> OwnProcess {
        self.descriptors = Some(limit);
        self
    }

    /// Gives the process a network namespace of its own, with nothing but a loopback device that is up.
    pub fn network(mut self) -> OwnProcess {
        self.network = true;
        self
    }

    /// The same where this machine allows it. For tests that dial thousands of times: each dial to this host leaves a
    /// port in TIME_WAIT, and among thousands of those the kernel looks for a free one for milliseconds, in every
    /// process of the network.
    pub fn network_if_possible(self) -> OwnProcess {
        if network_available().is_ok() { self.network() } else { self }
    }

    pub fn env(mut self, name: &str, value: &str) -> OwnProcess {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// How long the child may run (120 s).
    pub fn limit(mut self, limit: Duration) -> OwnProcess {
        self.limit = limit;
        self
    }

    /// False in the child, which then runs the body. True in the parent, after the child has passed; panics with the
    /// child's output when it failed.
    #[track_caller]
    pub fn parent(self) -> bool {
        let test = self.test.clone();
        match self.run() {
            None => false,
            Some(child) if child.status.success() => {
                print!("{}", child.stdout);
                true
            }
            Some(child) => panic!("{test} in its own process: {}\n{}\n{}", child.status, child.stdout, child.stderr),
        }
    }

    /// None in the child. In the parent: how the child ended, whatever that was (for tests about exits and aborts).
    #[track_caller]
    pub fn run(self) -> Option<Finished> {
        if std::env::var(INSIDE).is_ok_and(|inside| inside == self.test) {
            if self.network {
                raise_loopback();
            }
            return None;
        }
        let begun = Instant::now();
        let mut command = this_binary(&self.test);
        command
            .env(INSIDE, &self.test)
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (descriptors, network) = (self.descriptors, self.network);
        // SAFETY: only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if let Some(limit) = descriptors {
                    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                    if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                if network && libc::unshare(libc::CLONE_NEWNET) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            })
        };
        let mut child = spawn(command);
        let stdout = drain(child.stdout.take().expect("piped"));
        let stderr = drain(child.stderr.take().expect("piped"));
        let ended = |child: &mut Child| child.try_wait().expect("waiting for a child").is_some();
        while !ended(&mut child) && begun.elapsed() < self.limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_time = ended(&mut child);
        child.kill().ok();
        let status = child.wait().expect("waiting for a child");
        let took = begun.elapsed();
        let (stdout, stderr) = (collect(stdout), collect(stderr));
        assert!(in_time, "{} in its own process did not end within {:?}\n{stdout}\n{stderr}", self.test, self.limit);
        Some(Finished { status, stdout, stderr, took })
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn collect(reader: std::thread::JoinHandle<String>) -> String {
    reader.join().unwrap_or_default()
}

/// Whether this process may make network namespaces.
pub fn network_available() -> Result<(), String> {
    super::namespace::in_new_namespace(|_| ())
        .map_err(|error| format!("this process cannot make a network namespace ({error}); run as root"))
}

/// Sets the loopback device up, in the calling thread's network namespace.
pub fn raise_loopback() {
    // SAFETY: an ifreq of zeroes is valid; the ioctls read and write only it; the socket is ours.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        let mut result = libc::ioctl(socket, libc::SIOCGIFFLAGS, &mut request);
        if result == 0 {
            request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
            result = libc::ioctl(socket, libc::SIOCSIFFLAGS, &mut request);
        }
        libc::close(socket);
        result
    };
    assert_eq!(result, 0, "setting lo up: {}", std::io::Error::last_os_error());
}

/// The test runner's name of the test whose inner function is given; see `test_name!`.
pub fn test_path<T>(inner: &T) -> String {
    fn name_of<T>(_: &T) -> &'static str {
        std::any::type_name::<T>()
    }
    let name = name_of(inner);
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    name.rsplit_once("::").map_or(name, |(test, _)| test).to_string()
}
