//! Where the value of each setting comes from, for describe.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use super::{Kind, Options, Reach, SETTINGS, Setting, Value, Values};

/// What has set a value of a manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing: the default of the table.
    Default,
    /// The environment variable `KVCONN_<NAME>`.
    Environment,
    /// The options of `kvconn_manager_create`.
    ManagerCreate,
    /// `kvconn_configure`.
    Configure,
}

impl Source {
    const ALL: [Source; 4] = [Source::Configure, Source::ManagerCreate, Source::Environment, Source::Default];

    fn heading(self) -> &'static str {
        match self {
            Source::Default => "at their defaults",
            Source::Environment => "from the environment",
            Source::ManagerCreate => "from kvconn_manager_create",
            Source::Configure => "from kvconn_configure",
        }
    }
}

/// Variables that begin with `KVCONN_` and are no settings: the log's, and where the Python package finds the library.
const OTHERS: [&str; 2] = ["KVCONN_LOG", "KVCONN_LIB"];

/// Those of these names of environment variables that begin with `KVCONN_` and mean nothing: misspelt, most likely.
pub(crate) fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let ours = |name: &OsStr| name.as_bytes().starts_with(b"KVCONN_");
    let known =
        |name: &OsStr| OTHERS.iter().any(|other| name == *other) || SETTINGS.iter().any(|s| name == &*s.variable());
    let mut unknown: Vec<_> = names.filter(|name| ours(name) && !known(name)).collect();
    unknown.sort_unstable();
    unknown
}

impl Values {
    /// The same, with the options' values from this source.
    pub(crate) fn sourced(mut self, options: &Options, source: Source) -> Values {
        for (setting, _) in options.given() {
            self.sources[setting.key as usize] = source;
        }
        self
    }

    /// A line for each source: the settings that it has set, with their values but for keys. Without those of the
    /// process, unless `process`, and without those of single calls.
    pub(crate) fn describe(&self, process: bool) -> String {
        let shown = |s: &&Setting| s.reach != Reach::Call && (process || s.reach != Reach::Process);
        let mut out = String::new();
        for source in Source::ALL {
            let mut some = SETTINGS.iter().filter(shown).filter(|s| self.sources[s.key as usize] == source).peekable();
            if some.peek().is_none() {
                continue;
            }
            // Writing to a String cannot fail.
            let _ = write!(out, "  settings {}:", source.heading());
            some.for_each(|s| _ = write!(out, " {}={}", s.name, self.shown(s)));
            out.push('\n');
        }
        out
    }

    /// The value of a setting for people; keys are not shown.
    pub(super) fn shown(&self, setting: &Setting) -> String {
        match (self.value(setting.key), setting.kind) {
            (Value::Number(place), Kind::Word(words)) => words[*place as usize].into(),
            (Value::Number(number), _) => number.to_string(),
            (Value::Text(text), _) => text.to_string(),
            (Value::Key(_), _) => "(given)".into(),
            (Value::None, _) => "none".into(),
        }
    }
}
