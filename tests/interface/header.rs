//! The header is fresh, wholly documented, and taken by every C and C++ that an engine is built with.

#[path = "header/generate.rs"]
mod generate;
#[path = "header/parse.rs"]
mod parse;

use std::ffi::CStr;
use std::process::Command;
use std::{env, fs};

use generate::fresh;
use kvconn::error::STATUSES;
use kvconn::events::{Event, EventKind};
use kvconn::{capi, observe::metrics, options};
use parse::{Kind, items, parameter_name};

#[test]
fn the_header_is_fresh() {
    fresh("include/kvconn.h", &generate::header());
}

#[test]
fn the_options_document_is_fresh() {
    fresh("docs/options.md", &options::document());
}

#[test]
fn the_metrics_document_is_fresh() {
    fresh("docs/metrics.md", &metrics::document());
}

#[test]
fn the_status_document_is_fresh() {
    fresh("docs/status.md", &generate::status_document());
}

#[test]
fn every_section_of_the_c_layer_is_in_the_header() {
    for entry in fs::read_dir(generate::root().join("src/capi")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let exports = fs::read_to_string(&path).unwrap().contains("no_mangle");
        assert!(!exports || generate::SECTIONS.contains(&name), "{} exports, and is no section", path.display());
    }
}

/// One search finds an event in the header, in a program and in the log.
#[test]
fn the_log_calls_events_as_the_header_does() {
    use EventKind::*;
    let header = generate::header();
    for kind in [None, Ready, ConnectFailed, PeerLost, Disconnected, Evicted, Stalled, Recovered, NodeFailed, Overflow]
    {
        let constant = format!("#define KVCONN_EVENT_{} {}\n", Event::new(kind, ""), kind as i32);
        assert!(header.contains(&constant), "{constant}");
    }
    assert_eq!(header.matches("#define KVCONN_EVENT_").count(), 11, "ten kinds, and the initialiser");
}

#[test]
fn every_item_is_documented() {
    for item in items(&generate::header()) {
        let name = item.name();
        // The include guard, and the branches of the one macro whose comment stands before its #ifndef.
        if name == "KVCONN_H" || name == "KVCONN_NODISCARD" {
            continue;
        }
        assert!(!item.doc.is_empty(), "{name} has no comment");
        match &item.kind {
            Kind::Struct { fields, .. } => {
                assert!(!fields.is_empty(), "{name} has no fields");
                for (field, doc) in fields {
                    assert!(!doc.is_empty(), "{name}.{field} has no comment");
                }
            }
            Kind::Function { parameters, returns, .. } => {
                for parameter in parameters.iter().map(|p| parameter_name(p)) {
                    let documented = item.doc.lines().any(|line| {
                        let kinds = ["@param ", "@param[out] ", "@param[in,out] "];
                        let line = kinds.iter().find_map(|kind| line.strip_prefix(kind));
                        line.is_some_and(|l| l.split_whitespace().next() == Some(parameter.as_str()))
                    });
                    assert!(documented, "{name}: no @param for {parameter}");
                }
                if returns != "void" && !returns.ends_with("kvconn_status_t") {
                    assert!(item.doc.contains("@return "), "{name}: no @return");
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_function_lists_its_statuses() {
    for item in items(&generate::header()) {
        let Kind::Function { name, returns, parameters } = &item.kind else { continue };
        if !returns.ends_with("kvconn_status_t") {
            continue;
        }
        assert_eq!(parameters.last().map(String::as_str), Some("kvconn_error_t *error"), "{name}: error comes last");
        let listed: Vec<&str> = item
            .doc
            .lines()
            .filter_map(|line| line.strip_prefix("@retval "))
            .map(|line| line.split_whitespace().next().unwrap())
            .collect();
        assert_eq!(listed.first(), Some(&"KVCONN_OK"), "{name}: lists KVCONN_OK first");
        let mut numbers = Vec::new();
        for status in listed {
            let row = STATUSES.iter().find(|row| row.name == status);
            numbers.push(row.unwrap_or_else(|| panic!("{name}: there is no {status}")).status as i32);
        }
        assert!(numbers.is_sorted_by(|a, b| a > b), "{name}: not in the order of the table, or one twice: {numbers:?}");
        // A function that takes an id can be given one that means nothing.
        let takes_id = parameters.iter().any(|p| {
            ["kvconn_manager_t", "kvconn_conn_t", "kvconn_node_t"]
                .iter()
                .any(|id| p.starts_with(id) && !p.contains('*'))
        });
        assert!(!takes_id || numbers.contains(&-2), "{name}: takes an id and does not list KVCONN_STALE");
    }
}

/// The lines of the example in the first chapter.
fn example(header: &str) -> String {
    let (_, rest) = header.split_once(" * Example\n").expect("there is an example");
    rest.lines()
        .skip_while(|l| !l.starts_with(" *     "))
        .map_while(|l| l.strip_prefix(" *     "))
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_header_is_taken_by_every_language_standard() {
    let directory = env::temp_dir().join(format!("kvconn-header-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let header = generate::header();
    fs::write(directory.join("kvconn.h"), &header).unwrap();
    // Alone, and a second time; every INIT macro; the example, which must not lack anything but a function around it.
    let inits: String = items(&header)
        .iter()
        .filter_map(|item| match &item.kind {
            Kind::Constant { name, value } if name.ends_with("_INIT") => {
                let kind = value.strip_prefix("{sizeof(")?.split(')').next()?;
                Some(format!("    {{ {kind} it = {name}; if (it.struct_size != sizeof it) return 1; }}\n"))
            }
            _ => None,
        })
        .collect();
    assert!(inits.lines().count() >= 4, "{inits}");
    let program = format!(
        "#include \"kvconn.h\"\n#include \"kvconn.h\"\n#include <stdio.h>\nint main(void) {{\n{inits}{}    return 0;\n}}\n",
        example(&header)
    );
    for (compiler, suffix, standards) in
        [("cc", "c", ["c99", "c11", "c2x"]), ("c++", "cc", ["c++11", "c++17", "c++20"])]
    {
        let source = directory.join(format!("program.{suffix}"));
        fs::write(&source, &program).unwrap();
        for standard in standards {
            let output = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fsyntax-only"])
                .arg(format!("-std={standard}"))
                .arg(&source)
                .output()
                .unwrap_or_else(|e| panic!("{compiler}: {e}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler} -std={standard}:\n{said}");
        }
    }
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_ignored_send_is_a_warning() {
    let source = env::temp_dir().join(format!("kvconn-ignored-{}.c", std::process::id()));
    fs::write(
        &source,
        "#include \"kvconn.h\"\nvoid f(void) { kvconn_send(1, 0, 0, 0, 0, 0); kvconn_disconnect(1, 0); }\n",
    )
    .unwrap();
    for standard in ["-std=c11", "-std=c2x"] {
        let include = generate::root().join("include");
        let arguments = ["-Werror", "-c", "-o", "/dev/null", standard, "-I"];
        let output = Command::new("cc").args(arguments).arg(include).arg(&source).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let warned = |function| said.lines().any(|line| line.contains("error: ignoring") && line.contains(function));
        assert!(warned("kvconn_send") && !warned("kvconn_disconnect"), "{standard}: {said}");
    }
    fs::remove_file(source).unwrap();
}

#[test]
fn the_version_is_the_same_everywhere() {
    // SAFETY: kvconn_version returns a static C string.
    let library = unsafe { CStr::from_ptr(capi::kvconn_version()) }.to_str().unwrap();
    assert_eq!(library, env!("CARGO_PKG_VERSION"));
    let header = generate::header();
    let value = |wanted: &str| {
        items(&header).into_iter().find_map(|item| match item.kind {
            Kind::Constant { name, value } if name == wanted => Some(value),
            _ => None,
        })
    };
    assert_eq!(value("KVCONN_VERSION").unwrap().trim_matches('"'), library);
    let numbers = ["MAJOR", "MINOR", "PATCH"].map(|part| value(&format!("KVCONN_VERSION_{part}")).unwrap());
    assert_eq!(numbers.join("."), library);
    assert_eq!(value("KVCONN_ABI_VERSION").unwrap(), capi::kvconn_abi_version().to_string());
}
