//! Checks which libzmq was built, and tells the linker what it has to know about the shared object.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // [patch.crates-io] counts only in the workspace that is built: a program that uses kvconn as a Rust crate must
    // repeat it.
    assert!(
        env::var_os("DEP_ZMQ_COMPLETE").is_some(),
        "zmq-sys was built without kvconn's bundled/zeromq-src: copy [patch.crates-io] of kvconn's Cargo.toml to your workspace"
    );
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    linker("-soname,libkvconn.so.0"); // the number is that of the C ABI
    linker("-z,nodelete"); // dlclose must not unmap the code that libzmq's I/O thread runs
    linker("--build-id=sha1"); // gdb finds the debug symbols by it; not every linker makes one by itself
    // A missing symbol fails the build, not the first call. A sanitizer's symbols come from the executable, though.
    if env::var_os("CARGO_CFG_SANITIZE").is_none() {
        linker("-z,defs");
    }
    link_with_soname();
}

/// Makes the link that the loader looks for, beside the shared object that cargo is about to make. So a program that is
/// linked against `target/release` runs after a plain `cargo build --release`. Where cargo keeps its intermediate files
/// elsewhere, the link is of no use, and `make lib` makes one.
fn link_with_soname() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("a build script has OUT_DIR"));
    // target/release/build/kvconn-…/out
    let Some(build) = out.ancestors().nth(2).filter(|directory| directory.ends_with("build")) else { return };
    let link = build.with_file_name("libkvconn.so.0");
    // It may be there from an earlier build. Where links cannot be made, the library is whole without it.
    let _ = fs::remove_file(&link);
    let _ = std::os::unix::fs::symlink("libkvconn.so", &link);
}

fn linker(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
}
