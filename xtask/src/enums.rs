//! The C enums. The enums of the core are found by their type, wherever in `src/` they are; statuses come from their
//! table.

use kvconn::error::STATUSES;

use crate::header::{comment, config, generate};
use crate::parse::{self, Kind};
use crate::{root, sources};

/// The C type that a section of `src/capi/` declares, the enum of the core whose variants it has, and the prefix of its
/// constants.
const ENUMS: &[(&str, &str, &str)] = &[
    ("kvconn_scope_t", "Scope", "KVCONN_SCOPE"),
    ("kvconn_state_t", "ConnectionState", "KVCONN_STATE"),
    ("kvconn_ended_by_t", "EndedBy", "KVCONN_ENDED"),
    ("kvconn_outcome_t", "Outcome", "KVCONN_OUTCOME"),
    ("kvconn_event_kind_t", "EventKind", "KVCONN_EVENT"),
    ("kvconn_log_level_t", "Level", "KVCONN_LOG"),
];

const WIDTH: usize = 120;

/// The enums that the header needs, each made once.
pub(crate) struct Enums(Vec<(String, String)>);

impl Enums {
    pub(crate) fn new() -> Enums {
        let core = core();
        let mut all: Vec<(String, String)> = ENUMS.iter().map(|row| (row.0.into(), c_enum(row, &core))).collect();
        all.push(("kvconn_status_t".into(), statuses()));
        Enums(all)
    }

    /// The enum behind a typedef such as `kvconn_scope_t`, if there is one.
    pub(crate) fn behind(&self, typedef: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == typedef).map(|(_, text)| text.as_str())
    }
}

/// What cbindgen makes of the enums of [`ENUMS`]: it reads all sources and knows their types.
fn core() -> Vec<parse::Item> {
    let mut config = config();
    config.export.include = ENUMS.iter().map(|row| row.1.to_string()).collect();
    config.export.item_types = vec![cbindgen::ItemType::Enums];
    let files: Vec<_> = sources(&root().join("src")).into_iter().filter(|path| !path.ends_with("tests.rs")).collect();
    parse::items(&generate(config, &files))
}

fn c_enum((typedef, name, prefix): &(&str, &str, &str), core: &[parse::Item]) -> String {
    let found: Vec<_> = core
        .iter()
        .filter_map(|item| match &item.kind {
            Kind::Enum { name: found, variants } if found == name => Some(variants),
            _ => None,
        })
        .collect();
    let [variants] = found[..] else {
        panic!("{} enums of the core have the name {name}; {typedef} needs one", found.len());
    };
    let mut out = head(typedef);
    for variant in variants {
        let comment = variant.doc.replace('`', "");
        let text = format!("    {prefix}_{} = {},", variant.name, variant.value);
        out += &documented(&text, &comment.replace('\n', " "));
    }
    out + "};\n"
}

/// The enum of the table of statuses.
fn statuses() -> String {
    let mut out = head("kvconn_status_t");
    for row in STATUSES {
        let text = match row.status as i32 {
            0 => row.meaning.to_string(),
            _ => format!("{} To do: {}", row.meaning, row.what_to_do),
        };
        out += &documented(&format!("    {} = {},", row.name, row.status as i32), &text);
    }
    out + "};\n"
}

fn head(typedef: &str) -> String {
    format!("enum {} KVCONN_INT32 {{\n", typedef.strip_suffix("_t").expect("types end with _t"))
}

/// One constant with its comment: behind it when there is room, else before it.
fn documented(constant: &str, text: &str) -> String {
    let one = format!("{constant} /**< {text} */\n");
    if one.chars().count() <= WIDTH {
        return one;
    }
    format!("{}{constant}\n", comment("    ", &wrap(text, WIDTH - 11)))
}

/// Breaks a sentence into lines.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("begins with one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}
