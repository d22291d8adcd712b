//! The files under `abi/`: what callers were compiled against. All of them follow from the header.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use crate::parse::{Kind, items};

/// The functions of the header, sorted. A test compares them with what the shared object exports.
pub(crate) fn symbols(header: &str) -> String {
    let functions = items(header).into_iter().filter(|item| matches!(item.kind, Kind::Function { .. }));
    let mut names: Vec<String> = functions.map(|item| item.name().to_string() + "\n").collect();
    names.sort();
    names.concat()
}

/// The constants of the header with their numbers.
pub(crate) fn constants(header: &str) -> String {
    let mut out = String::from("# The constants of the header. A name may be added; a number never changes.\n");
    for item in items(header) {
        match item.kind {
            Kind::Enum { variants, .. } => {
                for variant in variants {
                    let _ = writeln!(out, "{} {}", variant.name, variant.value);
                }
            }
            Kind::Constant { name, value } => {
                // Not the version, which is meant to change, and not macros that stand for code.
                let others = ["KVCONN_H", "KVCONN_NODISCARD", "KVCONN_INT32"];
                if name.starts_with("KVCONN_VERSION") || name.ends_with("_INIT") || others.contains(&name.as_str()) {
                    continue;
                }
                let value = match value.trim_matches(['(', ')']) {
                    "UINT64_MAX" => i128::from(u64::MAX),
                    number => number.parse().unwrap_or_else(|_| panic!("{name} has a value of unknown form: {number}")),
                };
                let _ = writeln!(out, "{name} {value}");
            }
            _ => {}
        }
    }
    out
}

/// How the structs of the header lie in memory, as the C compiler says.
pub(crate) fn layout(header: &str) -> String {
    let mut program = String::from("#include \"kvconn.h\"\n#include <stdio.h>\nint main(void) {\n");
    for item in items(header) {
        let Kind::Struct { name, fields } = item.kind else { continue };
        let _ = writeln!(program, "    printf(\"{name} %zu\\n\", sizeof({name}));");
        for (field, _) in fields {
            let size = format!("sizeof((({name} *)0)->{field})");
            let _ = writeln!(program, "    printf(\"    {field} %zu %zu\\n\", offsetof({name}, {field}), {size});");
        }
    }
    let head = "# Public structs on 64-bit machines: name and size, then each field's name, offset and size. A struct grows at its end only.\n";
    format!("{head}{}", run(header, &(program + "    return 0;\n}\n")))
}

/// Compiles a C program with this header, runs it and returns what it prints.
fn run(header: &str, program: &str) -> String {
    let directory =
        env::temp_dir().join(format!("kvconn-xtask-{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::create_dir_all(&directory).unwrap();
    let (source, binary) = (directory.join("program.c"), directory.join("program"));
    fs::write(directory.join("kvconn.h"), header).unwrap();
    fs::write(&source, program).unwrap();
    let output = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    output(Command::new("cc").args(["-std=c11", "-Wall", "-Werror", "-o"]).arg(&binary).arg(&source));
    let printed = output(&mut Command::new(&binary));
    fs::remove_dir_all(directory).unwrap();
    printed
}
