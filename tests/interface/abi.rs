//! The binary interface: what the shared object exports, needs and says about itself, and how structs lie in memory.
//! The files under `abi/` are what callers were compiled against; tests/interface/header.rs proves them fresh.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use xtask::root;

/// The shared object that cargo has built together with this test.
fn library() -> PathBuf {
    let path = env::current_exe().unwrap().with_file_name("libkvconn.so");
    assert!(path.exists(), "{} was not built: the crate has lost its crate-type cdylib", path.display());
    path
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The dynamic symbols: type, name with version.
fn symbols(which: &str) -> Vec<(String, String)> {
    let text = output(Command::new("nm").args(["-D", "-P", which]).arg(library()));
    let words = text.lines().map(|line| line.split_whitespace());
    words
        .filter_map(|mut words| Some((words.next()?.to_string(), words.next()?.to_string())))
        .map(|(n, t)| (t, n))
        .collect()
}

#[test]
fn the_exported_symbols_are_those_of_the_header() {
    let mut names = Vec::new();
    for (kind, name) in symbols("--defined-only") {
        assert_eq!(kind, "T", "{name} is not a function");
        names.push(name);
    }
    names.sort();
    // The file has the functions of the header.
    let declared = fs::read_to_string(root().join("abi/kvconn.symbols")).unwrap();
    assert_eq!(names, declared.lines().collect::<Vec<_>>());
}

#[test]
fn nothing_is_needed_but_the_c_and_cpp_run_time() {
    let dynamic = output(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let in_brackets = |line: &str| line.split(['[', ']']).nth(1).unwrap_or_default().to_string();
    for needed in dynamic.lines().filter(|l| l.contains("(NEEDED)")).map(in_brackets) {
        let allowed =
            ["libc.so", "libstdc++.so", "libgcc_s.so", "libm.so", "libpthread.so", "librt.so", "libdl.so", "ld-linux"];
        assert!(allowed.iter().any(|a| needed.starts_with(a)), "the shared object needs {needed}");
    }
    for (kind, name) in symbols("--undefined-only") {
        let versioned = ["@GLIBC", "@CXXABI", "@GCC"].iter().any(|v| name.contains(v));
        assert!(versioned || kind == "w", "undefined symbol {name}");
    }
}

#[test]
fn it_has_its_soname_and_is_never_unloaded() {
    let dynamic = output(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let soname = format!("[libkvconn.so.{}]", kvconn::capi::kvconn_abi_version());
    assert!(dynamic.lines().any(|l| l.contains("(SONAME)") && l.contains(&soname)), "{dynamic}");
    assert!(dynamic.lines().any(|l| l.contains("(FLAGS_1)") && l.contains("NODELETE")), "{dynamic}");
    assert!(!dynamic.contains("TEXTREL"), "{dynamic}");
}

/// Padding would carry what was in memory before to the caller.
#[test]
fn structs_have_no_hidden_bytes() {
    let layout = fs::read_to_string(root().join("abi/layout.txt")).unwrap();
    let (mut name, mut size, mut end) = ("", 0, 0);
    for line in layout.lines().filter(|line| !line.starts_with('#')).chain(["end 0"]) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        if line.starts_with(' ') {
            assert_eq!(number(1), end, "padding before {name}.{}", words[0]);
            end += number(2);
        } else {
            assert_eq!(end, size, "padding at the end of {name}");
            (name, size, end) = (words[0], number(1), 0);
        }
    }
}
