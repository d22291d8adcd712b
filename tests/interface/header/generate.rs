//! Makes `include/kvconn.h` from `src/capi/`: cbindgen for the items of each file, this for everything around them.
#![allow(dead_code)] // not every test that shares this file needs all of it

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use kvconn::error::STATUSES;

/// The files of `src/capi/` that become sections, in the order in which a reader needs them.
pub const SECTIONS: &[&str] = &[
    "types",
    "library",
    "options",
    "managers",
    "connection",
    "message",
    "batch",
    "owned",
    "node",
    "failure",
    "events",
    "observe",
];

/// Enums of the core whose variants become constants: in which section, under which prefix, and what they are.
const ENUMS: &[(&str, &str, &str, &str)] = &[
    ("types", "Scope", "KVCONN_SCOPE", "How far an error reaches."),
    ("connection", "ConnectionState", "KVCONN_STATE", "Where a connection stands."),
    ("connection", "EndedBy", "KVCONN_ENDED", "How a connection ended, which says what an acknowledgement is worth."),
    ("owned", "Outcome", "KVCONN_OUTCOME", "What became of a message whose buffers are released."),
    ("events", "EventKind", "KVCONN_EVENT", "The kinds of events."),
    ("observe", "Level", "KVCONN_LOG", "The levels of the log."),
];

/// Structs that need no initialiser, because only kvconn writes them.
const NO_INIT: &[&str] = &["kvconn_failed_endpoint_t"];

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with what the code makes of it; with KVCONN_BLESS=1 it is written instead.
pub fn fresh(file: &str, made: &str) {
    let path = root().join(file);
    if env::var_os("KVCONN_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, made).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    if let Some(line) = made.lines().zip(found.lines()).position(|(made, found)| made != found) {
        let show = |text: &str| text.lines().nth(line).unwrap_or_default().to_string();
        panic!(
            "{file}:{} is not fresh (run `make bless`); it is\n{}\nand must be\n{}",
            line + 1,
            show(&found),
            show(made)
        );
    }
    assert!(found == made, "{file} is not fresh (run `make bless`): it has another length");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The whole header.
pub fn header() -> String {
    let mut out = preamble();
    for section in SECTIONS {
        let path = root().join("src/capi").join(format!("{section}.rs"));
        let source = read(&path);
        out += &chapter(&prose(&source));
        if *section == "types" {
            out += &statuses();
        }
        for (_, name, prefix, title) in ENUMS.iter().filter(|e| e.0 == *section) {
            out += &constants(name, prefix, title);
        }
        out += &items(&path, &source);
    }
    out += "\n#ifdef __cplusplus\n} // extern \"C\"\n#endif\n\n#endif // KVCONN_H\n";
    out
}

/// Everything before the first section.
fn preamble() -> String {
    let [major, minor, patch] = ["MAJOR", "MINOR", "PATCH"].map(|part| match part {
        "MAJOR" => env!("CARGO_PKG_VERSION_MAJOR"),
        "MINOR" => env!("CARGO_PKG_VERSION_MINOR"),
        _ => env!("CARGO_PKG_VERSION_PATCH"),
    });
    format!(
        "/*\n * kvconn.h: {about}.\n *\n * SPDX-License-Identifier: Apache-2.0\n *\n * Made from src/capi/ by `make bless`; \
         changes belong there.\n */\n#ifndef KVCONN_H\n#define KVCONN_H\n\n#include <stddef.h>\n#include <stdint.h>\n{overview}\n\
         /** The version of this header; kvconn_version() is that of the library. */\n\
         #define KVCONN_VERSION \"{major}.{minor}.{patch}\"\n\
         /** The first number of KVCONN_VERSION. */\n#define KVCONN_VERSION_MAJOR {major}\n\
         /** The second number of KVCONN_VERSION. */\n#define KVCONN_VERSION_MINOR {minor}\n\
         /** The third number of KVCONN_VERSION. */\n#define KVCONN_VERSION_PATCH {patch}\n\n\
         /**\n * Marks functions whose result must not be ignored: a message that was not accepted, for example, is the caller's to\n \
         * send again. Define it empty before the #include to be free of it.\n */\n\
         #ifndef KVCONN_NODISCARD\n\
         #if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)\n\
         #define KVCONN_NODISCARD [[nodiscard]]\n\
         #elif defined(__GNUC__)\n\
         #define KVCONN_NODISCARD __attribute__((warn_unused_result))\n\
         #else\n#define KVCONN_NODISCARD\n#endif\n#endif\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n",
        about = env!("CARGO_PKG_DESCRIPTION"),
        overview = chapter(&prose(&read(&root().join("src/capi/mod.rs")))),
    )
}

/// The `//!` lines at the beginning of a file, as text.
fn prose(source: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut fenced = false;
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced && !line.is_empty() {
            lines.push(format!("    {line}"));
        } else if let Some(title) = line.strip_prefix("# ").or(line.strip_prefix("## ")) {
            lines.push(title.into());
            lines.push("-".repeat(title.chars().count()));
        } else {
            lines.push(line.into());
        }
    }
    lines
}

/// A comment that stands before a section.
fn chapter(lines: &[String]) -> String {
    let rule = "=".repeat(116);
    let mut out = format!("\n/* {rule}\n");
    for line in lines {
        assert!(!line.contains("*/") && !line.contains("/*"), "this would end the comment: {line}");
        let _ = writeln!(out, "{}", format!(" * {line}").trim_end());
    }
    out + " */\n"
}

/// A documented `#define`.
fn constant(name: &str, value: i64, text: &[&str]) -> String {
    let value = if value < 0 { format!("({value})") } else { value.to_string() };
    let comment = match text {
        [line] => format!("/** {line} */"),
        lines => {
            let lines: String = lines.iter().map(|l| format!(" * {l}").trim_end().to_string() + "\n").collect();
            format!("/**\n{lines} */")
        }
    };
    assert!(!text.iter().any(|l| l.contains("*/")), "this would end the comment: {text:?}");
    format!("{comment}\n#define {name} {value}\n")
}

/// Breaks a sentence into lines.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("begins with one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= 112 {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

/// The constants of the table of statuses.
fn statuses() -> String {
    let mut out = String::from("\n/* The statuses. docs/status.md has them as a table. */\n\n");
    for row in STATUSES {
        let mut text = wrap(row.meaning);
        if row.status as i32 != 0 {
            text.extend(wrap(&format!("What to do: {}", row.what_to_do)));
        }
        let text: Vec<&str> = text.iter().map(String::as_str).collect();
        out += &constant(row.name, row.status as i64, &text);
    }
    out
}

/// The constants of an enum of the core, which may be in any of its files.
fn constants(name: &str, prefix: &str, title: &str) -> String {
    let head = format!("pub enum {name} {{\n");
    let source = sources(&root().join("src"))
        .into_iter()
        .map(|path| read(&path))
        .find(|source| source.contains(&head))
        .unwrap_or_else(|| panic!("no file has `pub enum {name}`"));
    let body = source.split_once(&head).and_then(|(_, rest)| rest.split_once("\n}\n")).expect("an enum has an end").0;
    let mut out = format!("\n/* {title} */\n\n");
    let mut text = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            text.push(doc.trim_start().replace('`', ""));
        } else if let Some((variant, value)) = line.trim_end_matches(',').split_once(" = ") {
            let variant: String = variant
                .char_indices()
                .map(|(i, c)| if i > 0 && c.is_uppercase() { format!("_{c}") } else { c.to_uppercase().to_string() })
                .collect();
            let text: Vec<&str> = text.iter().map(String::as_str).collect();
            out += &constant(&format!("{prefix}_{variant}"), value.parse().expect("a number"), &text);
        }
        if !line.starts_with("///") {
            text.clear();
        }
    }
    out
}

/// Every Rust file under a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What cbindgen makes of one file.
fn items(path: &Path, source: &str) -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Both,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        no_includes: true,
        usize_is_size_t: true,
        line_length: 120,
        tab_width: 4,
        ..Default::default()
    };
    config.function.must_use = Some("KVCONN_NODISCARD".into());
    // Types that no function of the same file uses would be left out.
    config.export.include = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct ").or(line.strip_prefix("pub type ")))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .map(String::from)
        .collect();
    let mut text = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(path)
        .generate()
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .write(&mut text);
    let text = String::from_utf8(text).expect("cbindgen writes UTF-8");
    let mut out = String::from("\n");
    let mut fields = Vec::new();
    let lines: Vec<&str> = text.trim().lines().collect();
    let mut rest = lines.as_slice();
    while let [line, after @ ..] = rest {
        rest = after;
        // A comment of one line takes one line.
        if let ([text, end, after @ ..], "/**") = (rest, line.trim())
            && end.trim() == "*/"
        {
            let _ = writeln!(out, "{line} {} */", text.trim().trim_start_matches("* "));
            rest = after;
            continue;
        }
        out += &plain(line);
        if let Some(field) = line.strip_prefix("    ").filter(|l| l.ends_with(';') && !l.starts_with(' ')) {
            fields.push(field);
        } else if let Some(name) = line.strip_prefix("} ").and_then(|l| l.strip_suffix(';')) {
            if fields.first().is_some_and(|f| f.ends_with("struct_size;")) && !NO_INIT.contains(&name) {
                out += &initialiser(name, &fields);
            }
            fields.clear();
        }
    }
    out
}

/// A line of code as a person would write it: negative numbers in parentheses, types by their short names.
fn plain(line: &str) -> String {
    match line.rsplit_once(" -") {
        Some((define, number)) if line.starts_with("#define") => format!("{define} (-{number})\n"),
        _ if line.starts_with("typedef") => format!("{line}\n"),
        _ => format!("{}\n", line.replace("struct kvconn_", "kvconn_")),
    }
}

/// The macro that starts a struct with its size and zero everywhere else.
fn initialiser(name: &str, fields: &[&str]) -> String {
    let upper = name.strip_suffix("_t").expect("types end with _t").to_uppercase();
    let zeros: String = fields[1..].iter().map(|f| if f.contains('[') { ", {0}" } else { ", 0" }).collect();
    format!(
        "\n/** A {name} that is empty, with its struct_size set. */\n#define {upper}_INIT {{sizeof({name}){zeros}}}\n"
    )
}

/// `docs/status.md`.
pub fn status_document() -> String {
    let mut out = String::from(
        "# Statuses\n\nMade from the table in `src/error.rs`; `make bless` renews it. Every function that can fail returns one of\n\
         these. Numbers are frozen: a status may be added, never renumbered. An error means: nothing was accepted, nothing is half\n\
         made. `KVCONN_PARTIAL` means that of the items it is about. `KVCONN_TIMEOUT` of `kvconn_connect` leaves the dial, which goes on,\n\
         and of `kvconn_disconnect_all`, `kvconn_shutdown` and `kvconn_manager_destroy` it means that everything has ended, but something\n\
         that was accepted was not acknowledged, or sockets were not given up, in time.\n\n\
         * **scope**: how far it reaches: this call only (CALL), this endpoint (PEER), what this life of the node owned (NODE), or\n  \
           everything (PROCESS).\n\
         * **retriable**: the same call can succeed later without the caller changing anything.\n\n\
         | name | number | scope | retriable | meaning | what to do |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for row in STATUSES {
        let retriable = if row.retriable { "yes" } else { "no" };
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {retriable} | {} | {} |",
            row.name,
            row.status as i32,
            row.scope.name(),
            row.meaning,
            row.what_to_do
        );
    }
    out
}
