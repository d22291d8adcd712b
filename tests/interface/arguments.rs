//! Guarantee 10: any argument that C can pass gets an error code.
//!
//! A C program is made from the header: it calls every function with every parameter in turn replaced by each bad or
//! unusual value of its kind. It runs in a process of its own, so a crash is a failure that names its case. A parameter
//! that [`kind`] does not know fails the test: a new kind of parameter needs its values here.

use std::fmt::Write as _;
use std::process::Command;
use std::{env, fs};

use crate::common::Peer;
use kvconn::error::STATUSES;
use xtask::parse::{Kind, functions, parameter_name};
use xtask::{header, root};

/// A value as a C expression, and the status it must lead to; `ANY`: whichever the function's description lists.
struct Value(String, &'static str);

const ANY: &str = "1";
const INVALID: &str = "KVCONN_INVALID";
const STALE: &str = "KVCONN_STALE";
const PARTIAL: &str = "KVCONN_PARTIAL";

/// How a parameter is swept.
struct Parameter {
    /// A good argument.
    good: String,
    /// What takes its place, each in a call of its own.
    others: Vec<Value>,
    /// An out-parameter: its type, and whether the first 4 bytes are its struct_size.
    out: Option<(String, bool)>,
}

fn each(expected: &'static str, values: &[&str]) -> Vec<Value> {
    values.iter().map(|v| Value(v.to_string(), expected)).collect()
}

/// What is not an endpoint.
const NO_ENDPOINTS: &[&str] = &[
    "\"\"",
    "\"tcp://\"",
    "\"tcp://127.0.0.1\"",
    "\"127.0.0.1:80\"",
    "\"tcp://127.0.0.1:0\"",
    "\"tcp://127.0.0.1:65536\"",
    "\"tcp://127.0.0.1:99999999999999999999\"",
    "\"tcp://0.0.0.0:80\"",
    "\"tcp://[::]:80\"",
    "\"tcp://::1:80\"",
    "\"tcp://[::1:80\"",
    "\"tcp://a b:80\"",
    "\"tcp://*:80\"",
    "\"tcp://host:80/path\"",
    "\"udp://127.0.0.1:80\"",
    "\"inproc://a\"",
    "\"ipc://\"",
    "\"%s%n%s%n\"",
    "\"tcp://\\xff\\xfe:80\"",
    "long_text(300)",
    "long_text(4096)",
    "long_text(sizeof text_64k - 1)",
];

/// How to sweep one parameter. `text` is its declaration.
fn kind(function: &str, text: &str) -> Parameter {
    let name = parameter_name(text);
    let declared = text.strip_suffix(&name).unwrap().trim();
    let simple = |good: &str, others: Vec<Value>| Parameter { good: good.into(), others, out: None };
    let misaligned = |t: &str| Value(format!("MISALIGNED({t})"), INVALID);
    match (declared, name.as_str()) {
        // Ids: 0, the id of something else, and one that was never given out.
        ("kvconn_manager_t", "m") if function == "kvconn_manager_destroy" => {
            let mut others = each(STALE, &["UINT64_MAX", "good_conn()", "good_node()"]);
            others.push(Value("KVCONN_DEFAULT".into(), INVALID));
            simple("good_manager()", others)
        }
        ("kvconn_manager_t", "m") => {
            simple("KVCONN_DEFAULT", each(STALE, &["UINT64_MAX", "good_conn()", "good_node()"]))
        }
        ("kvconn_conn_t", "conn") => {
            simple("good_conn()", each(STALE, &["0", "UINT64_MAX", "good_node()", "good_manager()"]))
        }
        ("kvconn_node_t", "node") => {
            simple("good_node()", each(STALE, &["0", "UINT64_MAX", "good_conn()", "good_manager()"]))
        }
        // Texts.
        ("const char *", "endpoint") => {
            let mut others = each(INVALID, NO_ENDPOINTS);
            others.extend(each(INVALID, &["NULL"]));
            simple("peer", others)
        }
        ("const char *", "name") if function == "kvconn_options_set" => {
            simple("\"send_hwm\"", each(INVALID, &["NULL", "\"\"", "\"send_hwm \"", "\"\\xff\"", "long_text(5000)"]))
        }
        ("const char *", "value") => {
            simple("\"7\"", each(INVALID, &["NULL", "\"\"", "\"-1\"", "\"1e3\"", "\"\\xff\"", "long_text(5000)"]))
        }
        ("const char *", "name") => {
            let mut others = each(INVALID, &["NULL", "\"\"", "\"\\xff\"", "long_text(256)", "long_text(5000)"]);
            others.extend(each(ANY, &["long_text(255)", "\"\\n\"", "\"%s%n\""]));
            simple("\"a node\"", others)
        }
        ("const char *", "reason") => simple(
            "\"a reason\"",
            each(ANY, &["NULL", "\"\"", "\"\\xff\"", "\"a\\nb\"", "\"%s%n\"", "long_text(65535)"]),
        ),
        ("const char *", "feature") => {
            simple("\"curve\"", each(ANY, &["NULL", "\"\"", "\"\\xff\"", "long_text(65535)"]))
        }
        // Numbers.
        ("int64_t", ms) if ms.ends_with("_ms") => simple("0", each(INVALID, &["-2", "INT64_MIN"])),
        ("size_t", "frame_count") => simple("2", each(INVALID, &["0", "65537", "SIZE_MAX", "SIZE_MAX / 2"])),
        ("size_t", "count") => simple("1", each(INVALID, &["65537", "SIZE_MAX", "SIZE_MAX / 2"])),
        ("size_t", "element_size") => {
            simple("sizeof(kvconn_failed_endpoint_t)", each(INVALID, &["0", "1", "287", "289", "1 << 20", "SIZE_MAX"]))
        }
        ("size_t", "capacity") => simple("16", each(ANY, &["0", "1"])),
        // 0 is all that were accepted; anything else was not sent yet.
        ("uint64_t", "sequence") => simple("0", each(INVALID, &["UINT64_MAX"])),
        ("uint64_t", "request") => simple("17", each(ANY, &["0", "UINT64_MAX"])),
        ("int32_t", "healthy") => simple("1", each(ANY, &["0", "-1", "INT32_MIN"])),
        ("kvconn_log_level_t", "level") => {
            simple("KVCONN_LOG_OFF", each(INVALID, &["-1", "5", "INT32_MAX", "INT32_MIN"]))
        }
        ("kvconn_event_kind_t", "kind") => {
            simple("KVCONN_EVENT_READY", each(ANY, &["-1", "10", "INT32_MAX", "INT32_MIN"]))
        }
        ("kvconn_status_t", "status") => simple("KVCONN_OK", each(ANY, &["1", "-1000", "INT32_MAX", "INT32_MIN"])),
        ("int", "fd") => simple("good_fd()", each(INVALID, &["-1", "1 << 20", "INT32_MIN"])),
        // What is read.
        ("const kvconn_options_t *", "options") => {
            let required = function == "kvconn_configure";
            let mut others = each(if required { INVALID } else { ANY }, &["NULL"]);
            others.push(Value("(const kvconn_options_t *)(void *)1".into(), INVALID));
            simple("good_options()", others)
        }
        ("kvconn_options_t *", "options") if function == "kvconn_options_free" => simple("NULL", vec![]),
        ("kvconn_options_t *", "options") => simple("good_options()", each(INVALID, &["NULL"])),
        ("const kvconn_frame_t *", "frames") => {
            let frames = |f: &str| Value(format!("(const kvconn_frame_t[]){{{{\"a\", 1}}, {f}}}"), INVALID);
            let mut others = vec![frames("{NULL, 1}"), frames("{\"a\", SIZE_MAX}"), frames("{NULL, SIZE_MAX}")];
            // Each could be, and both together cannot.
            others.push(frames("{\"a\", SIZE_MAX / 2}"));
            others.extend([misaligned(declared), Value("NULL".into(), INVALID)]);
            others.push(Value("(const kvconn_frame_t[]){{NULL, 0}, {\"\", 0}}".into(), ANY));
            simple("good_frames", others)
        }
        ("kvconn_batch_item_t *", "items") => {
            let item = |expected, fields: &str| Value(format!("(kvconn_batch_item_t[]){{{{{fields}}}}}"), expected);
            // sequence, status and reserved: whatever they are, kvconn writes them.
            let of = |frames: &str| item(PARTIAL, &format!("good_conn(), {frames}, UINT64_MAX, INT32_MIN, UINT32_MAX"));
            let frame = |f: &str| of(&format!("(const kvconn_frame_t[]){{{f}}}, 1"));
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            others.extend([of("NULL, 1"), of("NULL, 0"), of("good_frames, 0"), of("good_frames, 65537")]);
            others.extend([of("good_frames, SIZE_MAX"), of("MISALIGNED(const kvconn_frame_t *), 1")]);
            others.extend([frame("{NULL, 1}"), frame("{\"a\", SIZE_MAX}"), frame("{NULL, SIZE_MAX}")]);
            for conn in ["UINT64_MAX", "good_node()", "good_manager()"] {
                others.push(item(PARTIAL, &format!("{conn}, good_frames, 2, 0, 0, 0")));
            }
            others.push(item("KVCONN_OK", "0, NULL, SIZE_MAX, 1, 1, 1"));
            simple("good_items()", others)
        }
        ("const void *", "buffer") => simple("\"room\"", each(INVALID, &["NULL"])),
        ("const uint32_t *", "sizes") => {
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            others.push(Value("(const uint32_t[]){0, 0}".into(), ANY));
            simple("good_sizes", others)
        }
        ("const kvconn_conn_t *", "conns") => {
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            for conn in ["UINT64_MAX", "good_node()", "good_manager()"] {
                others.push(Value(format!("(const kvconn_conn_t[]){{{conn}}}"), PARTIAL));
            }
            others.push(Value("(const kvconn_conn_t[]){0}".into(), "KVCONN_OK"));
            simple("good_conns()", others)
        }
        ("const uint32_t *", "frame_counts") => {
            let counts = |count: &str, expected| Value(format!("(const uint32_t[]){{{count}}}"), expected);
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            others.extend([counts("0", PARTIAL), counts("1", ANY)]);
            others.extend([counts("65537", INVALID), counts("UINT32_MAX", INVALID)]);
            simple("(const uint32_t[]){2}", others)
        }
        // What is written for each item.
        ("kvconn_conn_t *", "conns") => {
            simple("(kvconn_conn_t *)(void *)bytes", vec![misaligned(declared), Value("NULL".into(), INVALID)])
        }
        (t @ ("uint64_t *" | "kvconn_status_t *"), "sequences" | "statuses") => {
            let null = Value("NULL".into(), ANY);
            simple(&format!("({t})(void *)bytes"), vec![misaligned(declared), null])
        }
        ("const char *const *", "endpoints") => {
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            others.extend(
                NO_ENDPOINTS.iter().chain(&["NULL"]).map(|e| Value(format!("(const char *[]){{{e}}}"), INVALID)),
            );
            simple("some_endpoints", others)
        }
        ("const kvconn_failure_t *", "failure") => simple("good_failure()", each(INVALID, &["NULL"])),
        ("kvconn_failure_t *", "failure") => simple("NULL", vec![]),
        ("kvconn_release_fn_t", "release") => simple("good_release", each(ANY, &["NULL"])),
        ("kvconn_log_fn_t", "function") => simple("good_log", each(ANY, &["NULL"])),
        ("void *", "user_data") => simple("NULL", vec![]),
        // What is written: arrays with a capacity.
        (
            t @ ("kvconn_conn_t *" | "uint64_t *" | "kvconn_failed_endpoint_t *"),
            array @ ("ids" | "requests" | "endpoints"),
        ) => {
            let _ = array;
            simple(&format!("({t})(void *)bytes"), vec![misaligned(declared), Value("NULL".into(), INVALID)])
        }
        ("char *", "buffer") => simple("bytes", each(INVALID, &["NULL"])),
        // What is written: structs.
        (t @ ("kvconn_connection_info_t *" | "kvconn_node_info_t *" | "kvconn_event_t *"), name) => {
            let t = t.trim_end_matches(" *");
            let mut others = vec![misaligned(declared), Value("NULL".into(), INVALID)];
            for size in ["0", "4", &format!("sizeof({t}) - 1"), "1 << 20", "UINT32_MAX"] {
                others.push(Value(format!("&({t}){{.struct_size = {size}}}"), INVALID));
            }
            Parameter { good: format!("&{name}"), others, out: Some((t.into(), true)) }
        }
        // What is written: single values. Some may be NULL.
        (pointer, name) if pointer.ends_with('*') && name != "error" => {
            let optional = ["created", "was_tracked", "sequence", "needed", "acknowledged"].contains(&name)
                || (name == "conn" && function.contains("send"))
                || (name == "failure" && function != "kvconn_take_failure");
            let null = Value("NULL".into(), if optional { ANY } else { INVALID });
            let t = pointer.strip_suffix('*').unwrap().trim();
            Parameter {
                good: format!("&{name}"),
                others: vec![misaligned(declared), null],
                out: Some((t.into(), false)),
            }
        }
        ("kvconn_error_t *", "error") => simple("&error", vec![]),
        other => panic!("{function}: nobody has said how to sweep {other:?}"),
    }
}

/// One function of the header, ready to be called.
struct Swept {
    name: String,
    /// Whether it returns a status, and which its description lists.
    allowed: Option<Vec<String>>,
    returns_nothing: bool,
    parameters: Vec<Parameter>,
    names: Vec<String>,
}

impl Swept {
    fn all(header: &str) -> Vec<Swept> {
        let mut all = Vec::new();
        for item in functions(header) {
            let listed = item.statuses(header).into_iter().collect();
            let Kind::Function { name, returns, parameters } = item.kind else { continue };
            all.push(Swept {
                allowed: returns.ends_with("kvconn_status_t").then_some(listed),
                returns_nothing: returns == "void",
                parameters: parameters.iter().map(|p| kind(&name, p)).collect(),
                names: parameters.iter().map(|p| parameter_name(p)).collect(),
                name,
            });
        }
        all
    }

    /// One call, with the argument at `place` replaced, and `error` as the last argument if there is one.
    fn case(&self, place: Option<usize>, value: &Value, error: &str, extra_check: &str) -> String {
        let mut out = String::from("    {\n");
        let shown = match place {
            Some(place) => format!("{}({} = {})", self.name, self.names[place], value.0),
            None => format!("{}({error}, {})", self.name, value.1),
        };
        let _ = writeln!(out, "        begin(\"{}\");", shown.replace('\\', "\\\\").replace('"', "\\\""));
        let mut arguments = Vec::new();
        let mut checks = String::new();
        for (i, p) in self.parameters.iter().enumerate() {
            let replaced = place == Some(i);
            if let (Some((t, sized)), false) = (&p.out, replaced) {
                let name = &self.names[i];
                let _ = writeln!(out, "        {t} {name}; memset(&{name}, 0xa5, sizeof {name});");
                if *sized {
                    let _ = writeln!(out, "        {name}.struct_size = sizeof {name};");
                    let _ =
                        writeln!(checks, "            check_zero(\"{name}\", (char *)&{name} + 4, sizeof {name} - 4);");
                } else if name == "fd" {
                    let _ = writeln!(checks, "            if (fd != -1) wrong(\"fd\", fd);");
                } else {
                    let _ = writeln!(checks, "            check_zero(\"{name}\", &{name}, sizeof {name});");
                }
            }
            arguments.push(match (replaced, self.names[i].as_str()) {
                (true, _) => value.0.clone(),
                (false, "error") => error.to_string(),
                (false, _) => p.good.clone(),
            });
        }
        let call = format!("{}({})", self.name, arguments.join(", "));
        match &self.allowed {
            None if self.returns_nothing => {
                let _ = writeln!(out, "        {call};");
            }
            None => {
                let _ = writeln!(out, "        (void){call};");
            }
            Some(allowed) => {
                if error == "&error" {
                    let _ = writeln!(out, "        kvconn_error_t error = KVCONN_ERROR_INIT;");
                    let _ = writeln!(out, "        memset(error.endpoint, 'x', sizeof error.endpoint);");
                }
                let _ = writeln!(out, "        const kvconn_status_t allowed[] = {{{}, 1}};", allowed.join(", "));
                let _ = writeln!(out, "        kvconn_status_t status = {call};");
                if error == "&error" {
                    let _ = writeln!(out, "        said = error.message;");
                }
                let _ = writeln!(out, "        check_status(status, {}, allowed);", value.1);
                let _ = writeln!(out, "        said = \"\";");
                if error == "&error" {
                    let _ = writeln!(out, "        check_error(&error, status);");
                }
                let exception = match self.name.as_str() {
                    "kvconn_connect" => " && status != KVCONN_TIMEOUT",
                    // How far it came is told as well when the connection or the time ends.
                    "kvconn_flush" => " && (status == KVCONN_INVALID || status == KVCONN_STALE)",
                    _ => "",
                };
                let _ = writeln!(out, "        if (status != KVCONN_OK{exception}) {{\n{checks}        }}");
            }
        }
        out + extra_check + "    }\n"
    }
}

/// The whole program.
fn program() -> String {
    let all = Swept::all(&header());
    let mut out = String::from("#include \"support.h\"\n\n");
    let good = |expected| Value(String::new(), expected);
    for f in &all {
        let _ = writeln!(out, "static void sweep_{}(void) {{", f.name);
        for (place, parameter) in f.parameters.iter().enumerate() {
            for value in &parameter.others {
                out += &f.case(Some(place), value, "&error", "");
            }
        }
        // kvconn_shutdown with nothing wrong comes last.
        if f.allowed.is_some() && f.name != "kvconn_shutdown" {
            for error in ["&error", "NULL", "MISALIGNED(kvconn_error_t *)"] {
                out += &f.case(None, &good(ANY), error, "");
            }
            for size in ["0", "4", "sizeof(kvconn_error_t) - 1", "UINT32_MAX"] {
                // Describing into the same memory would be no test.
                if !f.parameters.iter().any(|p| p.good.contains("bytes")) {
                    let check = format!("        check_strange_error({size});\n");
                    out += &f.case(None, &good(ANY), &format!("strange_error({size})"), &check);
                }
            }
        }
        out += "}\n\n";
        let _ = writeln!(out, "static void closed_{}(void) {{", f.name);
        let needs_no_process = ["kvconn_options_set", "kvconn_failure_", "kvconn_set_log", "kvconn_dump"];
        if f.allowed.is_some() && !needs_no_process.iter().any(|n| f.name.starts_with(n)) {
            out += &f.case(None, &good("KVCONN_SHUTDOWN"), "&error", "");
        }
        out += "}\n\n";
    }
    out += "int main(int count, char **arguments) {\n    (void)count;\n    peer = arguments[1];\n";
    for f in &all {
        let _ = writeln!(out, "    sweep_{}();", f.name);
    }
    out += "    begin(\"kvconn_shutdown\");\n    kvconn_error_t error = KVCONN_ERROR_INIT;\n    \
            must(kvconn_shutdown(1000, &error), &error);\n    over = 1;\n";
    for f in &all {
        let _ = writeln!(out, "    closed_{}();", f.name);
    }
    out + "    puts(\"swept\");\n    return failed != 0;\n}\n"
}

#[test]
fn every_function_survives_any_argument() {
    let directory = env::temp_dir().join(format!("kvconn-arguments-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let library = env::current_exe().unwrap().with_file_name("libkvconn.so");
    let soname = directory.join("libkvconn.so.0");
    let _ = fs::remove_file(&soname);
    std::os::unix::fs::symlink(library, &soname).unwrap();
    let source = directory.join("sweep.c");
    let binary = directory.join("sweep");
    fs::write(&source, program()).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g"])
        .arg(format!("-I{}", root().join("tests/interface/arguments").display()))
        .arg(format!("-I{}", root().join("include").display()))
        .args([&source, &soname])
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .arg("-o")
        .arg(&binary)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let peer = Peer::any();
    let run = Command::new(&binary).arg(peer.endpoint()).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let wrong: Vec<&str> = said.lines().filter(|l| l.starts_with("WRONG")).collect();
    let last = said.lines().last().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(run.status.success() && last == "swept", "{}; the last case was {last}\n{stderr}", run.status);
    assert!(stderr.is_empty(), "the library printed:\n{stderr}");
    assert!(said.lines().count() > 500, "{} cases only", said.lines().count());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn every_status_has_a_case_that_lists_it() {
    let all = Swept::all(&header());
    for row in STATUSES {
        // These two can come from everywhere, and are said once in the header.
        let said_once = ["KVCONN_SHUTDOWN", "KVCONN_INTERNAL"].contains(&row.name);
        let listed = all.iter().filter_map(|f| f.allowed.as_ref()).any(|a| a.iter().any(|name| name == row.name));
        assert!(listed || said_once, "no function lists {}", row.name);
    }
}
