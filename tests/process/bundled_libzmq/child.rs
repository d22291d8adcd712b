//! A test in a process of its own, with other functions of the C library if need be.

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, mem, thread};

use super::system::PATIENCE;

pub enum Preload {
    Nothing,
    Interposer,
}

/// Runs `scenario` in a copy of this program that runs only the test `name` of the module above: alone with its
/// descriptors and threads, free to abort or hang, and with other functions of the C library if need be.
pub fn in_child(name: &str, preload: Preload, scenario: fn()) {
    const MARK: &str = "KVCONN_TEST_CHILD";
    if env::var_os(MARK).is_some_and(|child| child == name) {
        return scenario();
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&path_of(name), "--exact"]).env(MARK, name).stdout(Stdio::piped()).stderr(Stdio::piped());
    let interposer = match preload {
        Preload::Nothing => None,
        Preload::Interposer => Some(build_interposer(name)),
    };
    if let Some(path) = &interposer {
        command.env("LD_PRELOAD", path);
    }
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + 2 * PATIENCE; // the copy's own deadline comes first and says more
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    if let Some(path) = interposer {
        let _ = fs::remove_file(path);
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // A wrong name would run no test at all, with success.
    assert!(
        output.status.success() && text.contains("1 passed"),
        "the copy of this program ended with {}:\n{text}",
        output.status
    );
}

/// The test runner's name of that test.
fn path_of(name: &str) -> String {
    let (module, _) = module_path!().rsplit_once("::").expect("a module in a module");
    let (_crate, module) = module.split_once("::").expect("a module of a crate");
    format!("{module}::{name}")
}

pub fn build_interposer(name: &str) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/bundled_libzmq/interpose.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
    let compiler = env::var_os("CC").unwrap_or("cc".into());
    let status =
        Command::new(compiler).args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).arg(source).status();
    assert!(status.expect("a C compiler").success());
    library
}

pub fn interposed_wall_clock_runs_backwards() {
    // SAFETY: interpose.c defines it as `void (void)`.
    let function: extern "C" fn() = unsafe { mem::transmute(interposed(c"interpose_wall_clock_runs_backwards")) };
    function();
}

pub fn interposed_inheritable() -> c_int {
    // SAFETY: interpose.c defines it as `int (void)`.
    let function: extern "C" fn() -> c_int = unsafe { mem::transmute(interposed(c"interpose_inheritable")) };
    function()
}

pub fn interposed(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!symbol.is_null(), "LD_PRELOAD had no effect");
    symbol
}
