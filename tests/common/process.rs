//! Child processes of a test: this test binary started again, running one entry, driven over a socket pair.
//!
//! The child gets one end of the pair as descriptor 0 and none of the test's other descriptors. It ends when the pair
//! closes, and the kernel kills it when the test process dies, even while it is stopped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use super::wait_until;

/// Set in a peer's process; its value is the peer's role.
pub const ROLE: &str = "KVCONN_PEER";
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A lock that survives a failed assertion in another thread of the same test.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts `command` on one thread that lives as long as the test process. The parent-death signal goes off when the
/// *thread* that forked ends, and tests start peers from short-lived threads.
pub fn spawn(command: Command) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("test-spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    answer.send(command.spawn()).ok();
                }
            })
            .expect("starting the spawner thread");
        Mutex::new(jobs)
    });
    let (answer, result) = mpsc::channel();
    let program = format!("{:?}", command.get_program());
    locked(spawner).send((command, answer)).expect("the spawner thread lives");
    match result.recv().expect("the spawner thread answers") {
        Ok(child) => child,
        Err(error) => panic!("starting {program}: {error}"),
    }
}

/// This test binary, set to run the one test `name` alone, to die with us and to inherit no descriptor.
pub fn this_binary(name: &str) -> Command {
    let program = std::env::current_exe().expect("the test binary's own path");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--include-ignored", "--nocapture"]);
    dies_with_us(&mut command);
    command
}

/// Makes the child of `command` die with this process and close every inherited descriptor above 2.
pub fn dies_with_us(command: &mut Command) {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: only async-signal-safe system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            if libc::getppid() != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            // Fails on kernels before 5.11; then only descriptors opened without CLOEXEC leak into the child.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 4 /* CLOEXEC */);
            Ok(())
        })
    };
}

/// Makes the child of `command` run in the network namespace `namespace`.
pub fn enter_namespace(command: &mut Command, namespace: Arc<OwnedFd>) {
    // SAFETY: setns is a plain system call; the descriptor lives in the closure.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Running,
    Stopped,
    Dead,
}

/// A child process that answers one line for each line.
pub struct Process {
    role: &'static str,
    pid: u32,
    state: Mutex<State>,
    child: Mutex<Child>,
    pipe: Mutex<BufReader<UnixStream>>,
}

impl Process {
    pub fn start(role: &'static str, namespace: Option<Arc<OwnedFd>>) -> Process {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(ANSWER_LIMIT)).expect("a read timeout");
        let mut command = this_binary(&super::peer_main::entry());
        command.env(ROLE, role).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(namespace) = namespace {
            enter_namespace(&mut command, namespace);
        }
        let child = spawn(command);
        Process {
            role,
            pid: child.id(),
            state: Mutex::new(State::Running),
            child: Mutex::new(child),
            pipe: Mutex::new(BufReader::new(ours)),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends one command line and returns the answer's text; panics when the child refuses it or is gone.
    #[track_caller]
    pub fn ask(&self, command: &str) -> String {
        self.try_ask(command).unwrap_or_else(|error| panic!("{} {}: {command}: {error}", self.role, self.pid))
    }

    #[track_caller]
    pub fn try_ask(&self, command: &str) -> Result<String, String> {
        self.try_ask_then(command, |text, _| text.to_string())
    }

    /// As `ask`, for an answer that binary data follows.
    #[track_caller]
    pub fn ask_then<T>(&self, command: &str, read: impl FnOnce(&str, &mut dyn Read) -> T) -> T {
        self.try_ask_then(command, read)
            .unwrap_or_else(|error| panic!("{} {}: {command}: {error}", self.role, self.pid))
    }

    #[track_caller]
    fn try_ask_then<T>(&self, command: &str, read: impl FnOnce(&str, &mut dyn Read) -> T) -> Result<T, String> {
        let state = *locked(&self.state);
        if state != State::Running {
            return Err(format!("the process is {state:?} and cannot answer"));
        }
        let mut pipe = locked(&self.pipe);
        let mut line = String::new();
        pipe.get_mut()
            .write_all(format!("{command}\n").as_bytes())
            .and_then(|()| pipe.read_line(&mut line))
            .map_err(|error| format!("no answer: {error}"))?;
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ok", text) => Ok(read(text, &mut *pipe)),
            ("error", text) => Err(text.to_string()),
            _ => Err("the process ended (its message is on standard error)".to_string()),
        }
    }

    /// SIGSTOP; returns when every thread of the child has stopped.
    #[track_caller]
    pub fn stop(&self) {
        let mut state = locked(&self.state);
        assert_ne!(*state, State::Dead, "{} {} is dead", self.role, self.pid);
        self.signal(libc::SIGSTOP);
        wait_until("every thread of the peer has stopped", STOP_LIMIT, || {
            thread_states(self.pid).iter().all(|&state| state == 'T')
        });
        *state = State::Stopped;
    }

    /// SIGCONT; returns when no thread of the child is stopped.
    #[track_caller]
    pub fn resume(&self) {
        let mut state = locked(&self.state);
        assert_ne!(*state, State::Dead, "{} {} is dead", self.role, self.pid);
        self.signal(libc::SIGCONT);
        wait_until("no thread of the peer is stopped", STOP_LIMIT, || {
            thread_states(self.pid).iter().all(|&state| state != 'T')
        });
        *state = State::Running;
    }

    /// SIGKILL; returns when the process is gone, and with it every descriptor and listening port.
    pub fn kill(&self) {
        let mut state = locked(&self.state);
        if *state != State::Dead {
            let mut child = locked(&self.child);
            child.kill().ok();
            child.wait().ok();
            *state = State::Dead;
        }
    }

    /// Waits for the child to end by itself.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> ExitStatus {
        let mut status = None;
        wait_until("the peer's process has ended", limit, || {
            status = locked(&self.child).try_wait().expect("waiting for a child");
            status.is_some()
        });
        *locked(&self.state) = State::Dead;
        status.expect("the wait ended with a status")
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child is ours and not yet waited for (the state says so), so the id is still its own.
        let result = unsafe { libc::kill(self.pid as libc::pid_t, signal) };
        assert_eq!(result, 0, "signal {signal} to {} {}", self.role, self.pid);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The state letter of each thread of a process.
fn thread_states(pid: u32) -> Vec<char> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| {
            let mut text = String::new();
            let stat = File::open(task.path().join("stat"));
            stat.ok()?.read_to_string(&mut text).ok()?;
            text.rsplit_once(") ")?.1.chars().next()
        })
        .collect()
}
