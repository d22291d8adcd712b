//! Makes `include/kvconn.h` from `src/capi/`: cbindgen for the items of each file, this for everything around them.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::enums::Enums;
use crate::{read, root};

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

/// Structs that need no initialiser, because only kvconn writes them.
const NO_INIT: &[&str] = &["kvconn_failed_endpoint_t"];

/// The whole header.
pub(crate) fn make() -> String {
    let enums = Enums::new();
    let mut out = preamble();
    for section in SECTIONS {
        let path = root().join("src/capi").join(format!("{section}.rs"));
        let source = read(&path);
        out += &chapter(&prose(&source));
        out += &ids_in_two_forms(&items(&path, &source, &enums));
    }
    out += "\n#ifdef __cplusplus\n} // extern \"C\"\n#endif\n\n#endif // KVCONN_H\n";
    out
}

/// The version of the library.
fn version() -> &'static str {
    // SAFETY: kvconn_version returns a static C string.
    unsafe { CStr::from_ptr(kvconn::capi::kvconn_version()) }.to_str().expect("a version is ASCII")
}

/// Everything before the first section.
fn preamble() -> String {
    let version = version();
    let [major, minor, patch] = version.split('.').collect::<Vec<_>>()[..] else { panic!("{version}: three numbers") };
    let overview = chapter(&prose(&read(&root().join("src/capi/mod.rs"))));
    format!(
        "/* kvconn.h: the outbound ZeroMQ connections of LLM inference engines, as a C ABI shared library.\n \
         * SPDX-License-Identifier: Apache-2.0\n \
         * Made from src/capi/ by `make bless`; change it there. */\n\
         #ifndef KVCONN_H\n#define KVCONN_H\n\n#include <stddef.h>\n#include <stdint.h>\n{overview}\n\
         /** The version of this header; kvconn_version() is that of the library. */\n\
         #define KVCONN_VERSION \"{version}\"\n\
         #define KVCONN_VERSION_MAJOR {major} /**< The first number of KVCONN_VERSION. */\n\
         #define KVCONN_VERSION_MINOR {minor} /**< The second number. */\n\
         #define KVCONN_VERSION_PATCH {patch} /**< The third number. */\n\n\
         /** Marks functions whose result must not be ignored. Define it empty before including this header to disable it. */\n\
         #ifndef KVCONN_NODISCARD\n\
         #if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)\n\
         #define KVCONN_NODISCARD [[nodiscard]]\n\
         #elif defined(__GNUC__)\n\
         #define KVCONN_NODISCARD __attribute__((warn_unused_result))\n\
         #else\n#define KVCONN_NODISCARD\n#endif\n#endif\n\n\
         /** Makes int32_t the underlying type of the enums in C++, where a number that a newer library adds would else be undefined. */\n\
         #ifdef __cplusplus\n#define KVCONN_INT32 : int32_t\n#else\n#define KVCONN_INT32\n#endif\n\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n",
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
            lines.push(format!("== {title} =="));
        } else {
            lines.push(line.into());
        }
    }
    lines
}

/// A comment that stands before a section.
fn chapter(lines: &[String]) -> String {
    let (title, lines) = lines.split_first().expect("a chapter has a title");
    let mut out = format!("\n/* {title:=<117}\n");
    for line in lines {
        assert!(!line.contains("*/") && !line.contains("/*"), "this would end the comment: {line}");
        let _ = writeln!(out, "{}", format!(" * {line}").trim_end());
    }
    out + " */\n"
}

/// A `/** */` comment with this indentation.
pub(crate) fn comment(indent: &str, lines: &[String]) -> String {
    assert!(!lines.iter().any(|l| l.contains("*/")), "this would end the comment: {lines:?}");
    let mut out = String::new();
    for (place, line) in lines.iter().enumerate() {
        let (begin, end) = (if place == 0 { "/** " } else { " * " }, if place + 1 == lines.len() { " */" } else { "" });
        let _ = writeln!(out, "{indent}{}", format!("{begin}{line}{end}").trim_end());
    }
    out
}

/// The settings of cbindgen.toml.
pub(crate) fn config() -> cbindgen::Config {
    cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap_or_else(|e| panic!("cbindgen.toml: {e}"))
}

/// What cbindgen makes of these files.
pub(crate) fn generate(config: cbindgen::Config, files: &[PathBuf]) -> String {
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = files.iter().fold(builder, |builder, file| builder.with_src(file));
    let mut text = Vec::new();
    builder.generate().unwrap_or_else(|e| panic!("{files:?}: {e}")).write(&mut text);
    String::from_utf8(text).expect("cbindgen writes UTF-8")
}

/// The items of one section.
fn items(path: &Path, source: &str, enums: &Enums) -> String {
    let mut config = config();
    // Types that no function of the same file uses would be left out.
    config.export.include = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct ").or(line.strip_prefix("pub type ")))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .map(String::from)
        .collect();
    let text = generate(config, &[path.to_path_buf()]);
    let mut out = String::from("\n");
    let mut fields = Vec::new();
    // The comment that belongs to the next item.
    let mut pending = String::new();
    let lines: Vec<&str> = text.trim().lines().collect();
    let mut rest = lines.as_slice();
    while let [line, after @ ..] = rest {
        rest = after;
        if line.trim() == "/**" {
            let end = rest.iter().position(|l| l.trim() == "*/").expect("a comment has an end");
            let mut text: Vec<String> = rest[..end].iter().map(|l| l.trim()[1..].replacen(' ', "", 1)).collect();
            // Parameters and statuses follow the description without an empty line.
            if let Some(tag) = text.iter().position(|line| line.starts_with('@'))
                && tag > 0
                && text[tag - 1].is_empty()
            {
                text.remove(tag - 1);
            }
            let indent = &line[..line.len() - line.trim_start().len()];
            pending = comment(indent, &text);
            rest = &rest[end + 1..];
            continue;
        }
        let field = line.strip_prefix("    ").filter(|l| l.ends_with(';') && !l.starts_with(' '));
        let typedef = line.strip_prefix("typedef int32_t ").and_then(|l| l.strip_suffix(';'));
        if let Some(text) = typedef.and_then(|name| enums.behind(name)) {
            let _ = writeln!(out, "{}{text}{line}", std::mem::take(&mut pending));
            continue;
        }
        if !line.starts_with([' ', '#', '}']) && line.contains('(') {
            // A function, or a pointer to one: its parameters may be in further lines.
            let mut whole = line.to_string();
            while !whole.ends_with(';') {
                let [next, after @ ..] = rest else { panic!("{line} has no end") };
                whole = whole + " " + next.trim();
                rest = after;
            }
            let declaration = plain(&whole);
            let (marker, declaration) = match declaration.trim_end().strip_prefix("KVCONN_NODISCARD ") {
                Some(declaration) => ("KVCONN_NODISCARD\n", declaration),
                None => ("", declaration.trim_end()),
            };
            out = out + &pending + marker + &wrapped(declaration);
            pending.clear();
            continue;
        }
        let code = plain(line);
        match behind(&code, &pending) {
            Some(one) => out += &one,
            None => out = out + &pending + &code,
        }
        pending.clear();
        if let Some(field) = field {
            fields.push(field);
        } else if let Some(name) = line.strip_prefix("} ").and_then(|l| l.strip_suffix(';')) {
            if fields.first().is_some_and(|f| f.ends_with("struct_size;")) && !NO_INIT.contains(&name) {
                out += &initialiser(name, &fields);
            }
            fields.clear();
        }
    }
    // Constants of one line each stand together, and so do simple types.
    for kind in ["#define ", "typedef "] {
        let lines: Vec<&str> = out.lines().collect();
        let simple = |line: &str| line.starts_with(kind) && line.ends_with([';', '/']);
        let joins = |place: usize| match &lines[place.max(1) - 1..] {
            [before, "", comment, after, ..] if simple(before) && comment.starts_with("/** ") => {
                simple(after) && comment.ends_with("*/")
            }
            [before, "", after, ..] => simple(before) && simple(after),
            _ => false,
        };
        let kept = (0..lines.len()).filter(|place| *place == 0 || !joins(*place));
        out = kept.map(|place| format!("{}\n", lines[place])).collect();
    }
    out
}

/// Adds a second form to the types of ids, which stand together: types that the compiler tells apart.
fn ids_in_two_forms(section: &str) -> String {
    let is_id = |line: &&str| line.starts_with("typedef uint64_t kvconn_");
    let lines: Vec<&str> = section.lines().collect();
    let Some(first) = lines.iter().position(&is_id) else { return section.into() };
    let begin = lines[..first].iter().rposition(|line| line.starts_with("/**")).expect("an id has a comment");
    let end = lines.iter().rposition(&is_id).map_or(0, |last| last + 1);
    let mut out: String = lines[..begin].iter().map(|line| format!("{line}\n")).collect();
    out += "/* An id is a number. If KVCONN_STRICT_IDS is defined before this header is included, ids are pointers to different\n \
            * structs instead: the compiler then rejects a node where a connection is expected. See docs/guide.md, \"Ids\". */\n\
            #if !defined(KVCONN_STRICT_IDS) || UINTPTR_MAX != UINT64_MAX\n";
    out.extend(lines[begin..end].iter().map(|line| format!("{line}\n")));
    out += "#else\n";
    for name in lines[begin..end].iter().filter(|line| is_id(line)).filter_map(|line| line.split([' ', ';']).nth(2)) {
        let _ = writeln!(out, "typedef struct {} *{name};", name.replace("_t", "_id"));
    }
    out += "#endif\n";
    out.extend(lines[end..].iter().map(|line| format!("{line}\n")));
    out
}

/// A declaration whose parameters fill its lines.
fn wrapped(declaration: &str) -> String {
    let open = declaration.rfind('(').map_or(0, |place| place + 1);
    let (head, parameters) = declaration.split_at(open);
    let mut out = head.to_string();
    let mut width = open;
    for parameter in parameters.split_inclusive(", ") {
        if width + parameter.trim_end().len() > 120 && width > open {
            out.truncate(out.trim_end().len());
            let _ = write!(out, "\n{}", " ".repeat(open));
            width = open;
        }
        out += parameter;
        width += parameter.len();
    }
    out + "\n"
}

/// A field or constant with its comment behind it, when both fit into one line.
fn behind(code: &str, pending: &str) -> Option<String> {
    let text = pending.trim_end().strip_suffix(" */")?.trim_start().strip_prefix("/** ")?;
    let simple = code.starts_with("    ") || code.starts_with("#define ");
    let one = format!("{} /**< {text} */\n", code.trim_end());
    (simple && !text.contains('\n') && one.chars().count() <= 120).then_some(one)
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
    format!("/** An empty {name} with its struct_size set. */\n#define {upper}_INIT {{sizeof({name}){zeros}}}\n")
}
