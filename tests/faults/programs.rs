//! C programs that use the shared library: their process is all theirs, and they can stand in the way of its system
//! calls.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a program of this directory against the library that was built with this test.
#[track_caller]
pub fn compile(source: &str, test: &str) -> PathBuf {
    // Two tests of one process may use the same program at the same time.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Ordering::SeqCst);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}-{number}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let library = directory.join("libkvconn.so.0");
    let _ = fs::remove_file(&library);
    let built = env::current_exe().expect("this program").with_file_name("libkvconn.so");
    std::os::unix::fs::symlink(built, &library).expect("a link");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join(test);
    // What the program exports is found before the C library's: -rdynamic.
    let compiled = Command::new(env::var_os("CC").unwrap_or("cc".into()))
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fexceptions", "-rdynamic", "-pthread"])
        .arg(format!("-I{}", root.join("include").display()))
        .arg(root.join("tests/faults").join(source))
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .args(["-ldl", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// Runs it, removes it, and gives what it printed and how it ended.
#[track_caller]
pub fn run(program: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(program).args(arguments).output().expect("the program just compiled");
    fs::remove_dir_all(program.parent().expect("its directory")).expect("its directory can be removed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, text)
}
