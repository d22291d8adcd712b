//! Which libsodium libzmq is linked with: always the one whose sources `libsodium-sys-stable` carries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::{find_crate, map_paths, variable};

/// The crate that carries the sources, and its version as in Cargo.toml.
const CRATE: &str = "libsodium-sys-stable";
const VERSION: &str = "1.24.3";
/// The file with the sources, and the directory in it.
const ARCHIVE: &str = "LATEST.tar.gz";
const DIRECTORY: &str = "libsodium-stable";

/// A libsodium for the machine that libzmq is built for.
pub(crate) struct Sodium {
    /// Where its headers are.
    pub(crate) include: PathBuf,
    /// Where libsodium.a is.
    pub(crate) library: PathBuf,
}

impl Sodium {
    /// The libsodium that Cargo has built, or for another target one that is built now, in `out`.
    ///
    /// A dependency of a build script is built for the host, so what Cargo has built serves native builds only.
    pub(crate) fn for_target(out: &Path) -> Self {
        if variable("TARGET") == variable("HOST") {
            return Self { include: env!("DEP_SODIUM_INCLUDE").into(), library: env!("DEP_SODIUM_LIB").into() };
        }
        let installed = out.join("sodium");
        cross_compile(out, &installed);
        Self { include: installed.join("include"), library: installed.join("lib") }
    }
}

/// Configures and builds as libsodium-sys-stable does. That crate's build script has verified the archive's signature
/// already, when it built for the host.
fn cross_compile(out: &Path, installed: &Path) {
    let unpacked = out.join("sodium-source");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).expect("the build directory can be written");
    run(Command::new("tar").arg("-xzf").arg(find_crate(CRATE, VERSION).join(ARCHIVE)).arg("-C").arg(&unpacked));

    let mut build = cc::Build::new();
    map_paths(&mut build, out);
    let compiler = build.get_compiler();
    let archiver = build.get_archiver().get_program().to_owned();
    let ranlib = build.get_ranlib().get_program().to_owned();
    let source = unpacked.join(DIRECTORY);
    run(Command::new(source.join("configure"))
        .current_dir(&source)
        .env("CC", compiler.path())
        .env("CFLAGS", compiler.cflags_env())
        .env("AR", archiver)
        .env("RANLIB", ranlib)
        .arg(format!("--host={}", variable("TARGET")))
        .arg(format!("--prefix={}", installed.display()))
        .args(["--disable-ssp", "--disable-shared", "--disable-dependency-tracking"]));
    let mut make = Command::new("make");
    // Flags of a make that runs cargo are not for this one.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        make.env_remove(name);
    }
    run(make.current_dir(&source).arg(format!("-j{}", variable("NUM_JOBS"))).arg("install"));
}

/// Runs a command, or ends the build with what it printed.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
