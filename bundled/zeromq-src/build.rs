//! Cargo tells where libsodium was built (`DEP_SODIUM_*`) only to the build script of a direct dependant. libzmq is
//! built later, inside the build script of zmq-sys, so the answer is compiled into this crate.

use std::env;

fn main() {
    // libsodium-sys-stable obeys these and then links whatever the machine has. kvconn ships one known libsodium.
    for name in ["SODIUM_LIB_DIR", "SODIUM_USE_PKG_CONFIG"] {
        println!("cargo:rerun-if-env-changed={name}");
        assert!(env::var_os(name).is_none(), "kvconn links the libsodium it bundles: unset {name}");
    }
    for name in ["DEP_SODIUM_INCLUDE", "DEP_SODIUM_LIB"] {
        let directory = env::var(name).expect("libsodium-sys-stable names its directories");
        println!("cargo:rustc-env={name}={directory}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
