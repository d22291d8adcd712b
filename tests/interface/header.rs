//! The header is fresh, wholly documented, and taken by every C and C++ that an engine is built with.

use std::ffi::CStr;
use std::process::Command;
use std::{env, fs};

use kvconn::capi;
use kvconn::error::STATUSES;
use kvconn::events::{Event, EventKind};
use xtask::parse::{Kind, functions, items, parameter_name, said_once};
use xtask::{SECTIONS, documents, header, root};

#[test]
fn every_generated_file_is_fresh() {
    let stale: Vec<String> = documents().iter().filter_map(|document| document.difference()).collect();
    assert!(stale.is_empty(), "{}", stale.join("\n\n"));
}

/// A reader finds the main calls without scrolling.
#[test]
fn the_header_stays_short() {
    let header = header();
    let prototype = header.lines().position(|line| line.contains("kvconn_status_t kvconn_")).unwrap() + 1;
    assert!(prototype < 60, "the first prototype is in line {prototype}");
    assert!(header.lines().count() < 1300, "{} lines", header.lines().count());
    let long: Vec<&str> = header.lines().filter(|line| line.chars().count() > 132).collect();
    assert!(long.is_empty(), "lines that do not fit on a screen:\n{}", long.join("\n"));
}

/// "At a glance" names every function once, and shows the main ones as they are declared.
#[test]
fn at_a_glance_is_complete() {
    let header = header();
    let (_, rest) = header.split_once("== At a glance ==").unwrap();
    let glance = rest.split_once(" * == Example ==\n").unwrap().0;
    let words: Vec<&str> = glance.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let joined = |text: &str| text.replace(" *  ", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let glance = joined(glance);
    for item in functions(&header) {
        let name = item.name();
        let shown = words.iter().filter(|word| **word == name).count();
        let Kind::Function { returns, parameters, .. } = &item.kind else { unreachable!() };
        let returns = returns.trim_start_matches("KVCONN_NODISCARD").trim();
        let prototype = format!("{returns} {name}({});", parameters.join(", "));
        let main = ["kvconn_connect", "kvconn_send", "kvconn_disconnect_endpoint", "kvconn_handle_failure"];
        if main.contains(&name) {
            assert!(glance.contains(&prototype), "{prototype}\nis not in\n{glance}");
        } else {
            // The text of a line may refer to another function.
            assert!(shown >= 1, "{name} is missing");
        }
    }
    for word in words.iter().filter(|word| word.starts_with("kvconn_") && !word.ends_with("_t")) {
        assert!(functions(&header).any(|item| item.name() == *word), "there is no {word}");
    }
}

#[test]
fn every_section_of_the_c_layer_is_in_the_header() {
    for entry in fs::read_dir(root().join("src/capi")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let exports = fs::read_to_string(&path).unwrap().contains("no_mangle");
        assert!(!exports || SECTIONS.contains(&name), "{} exports, and is no section", path.display());
    }
}

/// One search finds an event in the header, in a program and in the log.
#[test]
fn the_log_calls_events_as_the_header_does() {
    use EventKind::*;
    let header = header();
    let kinds = [None, Ready, ConnectFailed, PeerLost, Disconnected, Evicted, Stalled, Recovered, NodeFailed, Overflow];
    for kind in kinds {
        let constant = format!("    KVCONN_EVENT_{} = {},", Event::new(kind, ""), kind as i32);
        assert!(header.contains(&constant), "{constant}");
    }
    assert_eq!(header.matches("    KVCONN_EVENT_").count(), kinds.len());
}

#[test]
fn every_item_is_documented() {
    for item in items(&header()) {
        let name = item.name();
        // The include guard, and the branches of macros whose comment stands before their #ifdef.
        if ["KVCONN_H", "KVCONN_NODISCARD", "KVCONN_INT32"].contains(&name) {
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
            Kind::Enum { variants, .. } => {
                for variant in variants {
                    assert!(!variant.doc.is_empty(), "{} has no comment", variant.name);
                }
            }
            Kind::Function { parameters, returns, .. } => {
                for parameter in parameters.iter().filter(|p| !said_once(p)).map(|p| parameter_name(p)) {
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
    let header = header();
    let number = |name: &str, status: &str| {
        let row = STATUSES.iter().find(|row| row.name == status);
        row.unwrap_or_else(|| panic!("{name}: there is no {status}")).status as i32
    };
    for item in functions(&header) {
        let Kind::Function { name, returns, parameters } = &item.kind else { unreachable!() };
        if !returns.ends_with("kvconn_status_t") {
            continue;
        }
        assert_eq!(parameters.last().map(String::as_str), Some("kvconn_error_t *error"), "{name}: error comes last");
        let own: Vec<i32> = item.own_statuses().iter().map(|status| number(name, status)).collect();
        assert!(own.is_sorted_by(|a, b| a > b), "{name}: not in the order of the table, or one twice: {own:?}");
        // With the shared lists that it refers to.
        let all = item.statuses(&header);
        assert!(all.contains("KVCONN_OK"), "{name} does not list KVCONN_OK");
        assert!(all.iter().all(|status| number(name, status) <= 0));
    }
}

/// A list that several functions share is taken whole: a send lists what every send lists.
#[test]
fn the_shared_lists_reach_the_functions_that_refer_to_them() {
    let header = header();
    let listed = |name: &str| functions(&header).find(|item| item.name() == name).unwrap().statuses(&header);
    for send in ["kvconn_send", "kvconn_send_packed", "kvconn_send_to", "kvconn_send_packed_to", "kvconn_send_owned"] {
        for status in ["OK", "INVALID", "STALE", "TIMEOUT", "STALLED", "CONNECT_FAILED", "PEER_LOST", "DISCONNECTED"] {
            assert!(listed(send).contains(&format!("KVCONN_{status}")), "{send}: {status}");
        }
        let evicted = listed(send).contains("KVCONN_EVICTED");
        assert!(listed(send).contains("KVCONN_NODE_FAILED") && listed(send).contains("KVCONN_LIMIT"), "{send}");
        assert_eq!((evicted, listed(send).contains("KVCONN_BACKOFF")), (!send.ends_with("to"), send.ends_with("to")));
    }
    for call in ["kvconn_node_untrack_request", "kvconn_node_add_endpoints", "kvconn_handle_failure"] {
        assert!(listed(call).contains("KVCONN_NODE_FAILED") && listed(call).contains("KVCONN_DISCONNECTED"), "{call}");
    }
    assert!(!listed("kvconn_find").contains("KVCONN_NODE_FAILED"));
}

/// The lines of the example in the first chapter.
fn example(header: &str) -> String {
    let (_, rest) = header.split_once(" * == Example ==\n").expect("there is an example");
    rest.lines()
        .skip_while(|l| !l.starts_with(" *     "))
        .map_while(|l| l.strip_prefix(" *     "))
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_header_is_taken_by_every_language_standard() {
    let directory = env::temp_dir().join(format!("kvconn-header-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let header = header();
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

/// What the C compiler says about a program, which is C for every `-std` of the list.
fn warnings(name: &str, program: &str, standard: &str) -> String {
    let source = env::temp_dir().join(format!("kvconn-{name}-{}.c", std::process::id()));
    fs::write(&source, program).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-c", "-o", "/dev/null", standard, "-I"]).arg(root().join("include")).arg(&source);
    let output = cc.output().unwrap();
    fs::remove_file(source).unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_ignored_result_is_a_warning_where_that_is_a_mistake() {
    let program = "#include \"kvconn.h\"\nvoid f(void) {\n    kvconn_send(1, 0, 0, 0, 0, 0);\n    kvconn_flush(1, 0, 0, 0, 0);\n    \
                   kvconn_next_event(0, 0, 0, 0);\n    kvconn_take_failure(0, 0, 0, 0);\n    \
                   kvconn_node_untrack_request(1, 0, 0, 0);\n    kvconn_disconnect(1, 0);\n}\n";
    for standard in ["-std=c11", "-std=c2x"] {
        let said = warnings("ignored", program, standard);
        // The name alone, and not the beginning of another one.
        let mentions =
            |line: &str, name: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
        let warned =
            |function: &str| said.lines().any(|line| line.contains("error: ignoring") && mentions(line, function));
        for function in ["send", "flush", "next_event", "take_failure", "node_untrack_request"] {
            let name = format!("kvconn_{function}");
            assert!(warned(&name), "{name}: {said}");
        }
        assert!(!said.contains("kvconn_disconnect"), "{standard}: {said}");
    }
}

/// The constants are enums, so the compiler knows which of them a switch leaves out.
#[test]
fn a_switch_that_leaves_out_a_kind_is_a_warning() {
    let switch = |cases: &str| {
        format!(
            "#include \"kvconn.h\"\nint f(kvconn_event_t event) {{\n    switch ((enum kvconn_event_kind)event.kind) {{\n    \
             {cases}return 1;\n    }}\n    return 0;\n}}\n"
        )
    };
    let kinds =
        header().lines().filter_map(|line| line.strip_prefix("    KVCONN_EVENT_")).fold(Vec::new(), |mut all, line| {
            all.push(format!("case KVCONN_EVENT_{}: ", line.split(' ').next().unwrap()));
            all
        });
    assert_eq!(warnings("switch", &switch(&kinds.concat()), "-std=c11"), "");
    let said = warnings("switch", &switch(&kinds[1..].concat()), "-std=c11");
    assert!(said.contains("KVCONN_EVENT_NONE") && said.contains("-Werror=switch"), "{said}");
}

/// With `panic = "abort"` a panic could not become KVCONN_INTERNAL, and the host would die of it.
#[test]
fn the_library_refuses_to_be_built_without_unwinding() {
    let build = |panic: &str| {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition=2024", "--crate-type=rlib", "--emit=metadata", "-o", "/dev/null", "-C"]);
        let output = rustc.arg(format!("panic={panic}")).arg(root().join("src/lib.rs")).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Without its dependencies it does not compile either way; what counts is the reason.
    assert!(build("abort").contains("kvconn needs panic = \"unwind\""), "{}", build("abort"));
    assert!(!build("unwind").contains("kvconn needs panic"));
}

#[test]
fn the_version_is_the_same_everywhere() {
    // SAFETY: kvconn_version returns a static C string.
    let library = unsafe { CStr::from_ptr(capi::kvconn_version()) }.to_str().unwrap();
    assert_eq!(library, env!("CARGO_PKG_VERSION"));
    let header = header();
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
