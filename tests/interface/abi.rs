//! The binary interface: what the shared object exports, needs and says about itself, how structs lie in memory, and
//! which numbers the constants have. The files under `abi/` are what callers were compiled against.

#[path = "header/generate.rs"]
mod generate;
#[path = "header/parse.rs"]
mod parse;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use generate::fresh;
use parse::{Kind, items};

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
fn the_exported_symbols_are_fresh() {
    let mut names = Vec::new();
    for (kind, name) in symbols("--defined-only") {
        assert_eq!(kind, "T", "{name} is not a function");
        names.push(name);
    }
    names.sort();
    fresh("abi/kvconn.symbols", &(names.join("\n") + "\n"));
}

#[test]
fn the_exported_symbols_are_those_of_the_header() {
    let header = generate::header();
    let mut declared: Vec<String> = items(&header)
        .iter()
        .filter(|item| matches!(item.kind, Kind::Function { .. }))
        .map(|item| item.name().to_string())
        .collect();
    declared.sort();
    let mut exported: Vec<String> = symbols("--defined-only").into_iter().map(|(_, name)| name).collect();
    exported.sort();
    assert_eq!(exported, declared);
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

/// A directory of this test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = env::temp_dir().join(format!("kvconn-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles and runs a C program against the header as the code makes it now.
fn run(directory: &Path, program: &str) -> String {
    let (source, binary) = (directory.join("program.c"), directory.join("program"));
    fs::write(directory.join("kvconn.h"), generate::header()).unwrap();
    fs::write(&source, program).unwrap();
    output(Command::new("cc").args(["-std=c11", "-Wall", "-Werror", "-o"]).arg(&binary).arg(&source));
    output(&mut Command::new(binary))
}

#[test]
#[cfg(target_pointer_width = "64")]
fn the_layout_of_structs_is_fresh() {
    let mut program = String::from("#include \"kvconn.h\"\n#include <stdio.h>\nint main(void) {\n");
    for item in items(&generate::header()) {
        let Kind::Struct { name, fields } = item.kind else { continue };
        let _ = writeln!(program, "    printf(\"{name} %zu\\n\", sizeof({name}));");
        for (field, _) in fields {
            let size = format!("sizeof((({name} *)0)->{field})");
            let _ = writeln!(program, "    printf(\"    {field} %zu %zu\\n\", offsetof({name}, {field}), {size});");
        }
    }
    let layout = run(&Scratch::new("layout").0, &(program + "    return 0;\n}\n"));
    no_hidden_bytes(&layout);
    let head = "# Public structs on 64-bit machines: name and size, then each field's name, offset and size. A struct grows at its end only.\n";
    fresh("abi/layout.txt", &format!("{head}{layout}"));
}

/// Padding would carry what was in memory before to the caller.
fn no_hidden_bytes(layout: &str) {
    let (mut name, mut size, mut end) = ("", 0, 0);
    for line in layout.lines().chain(["end 0"]) {
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

#[test]
fn the_numbers_of_constants_are_fresh() {
    let mut text = String::from("# The constants of the header. A name may be added; a number never changes.\n");
    for item in items(&generate::header()) {
        if let Kind::Constant { name, value } = item.kind {
            // Not the version, which is meant to change, and not what stands for code.
            let others = ["KVCONN_H", "KVCONN_NODISCARD"];
            if name.starts_with("KVCONN_VERSION") || name.ends_with("_INIT") || others.contains(&name.as_str()) {
                continue;
            }
            let value = match value.trim_matches(['(', ')']) {
                "UINT64_MAX" => i128::from(u64::MAX),
                number => number.parse().unwrap_or_else(|_| panic!("{name} has a value of unknown form: {number}")),
            };
            let _ = writeln!(text, "{name} {value}");
        }
    }
    fresh("abi/constants.txt", &text);
}
