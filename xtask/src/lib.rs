//! Makes every generated file of the project from the code, in one place.
//!
//! `cargo run --package xtask` writes them (`make bless`). The tests in `tests/interface/` compare them with what is
//! committed.

mod abi;
mod enums;
mod header;
pub mod parse;
mod python;
mod status;

use std::fs;
use std::path::{Path, PathBuf};

pub use header::SECTIONS;

/// A generated file: its path from the root of the project, and what it must contain.
pub struct Document {
    pub path: &'static str,
    pub text: String,
}

/// All generated files.
pub fn documents() -> Vec<Document> {
    let header = header::make();
    let document = |path, text| Document { path, text };
    let mut all = vec![
        document("docs/options.md", kvconn::options::document()),
        document("python/kvconn/_settings.py", python::settings(&kvconn::options::document())),
        document("docs/status.md", status::document()),
        document("docs/metrics.md", kvconn::observe::metrics::document()),
        document("abi/kvconn.symbols", abi::symbols(&header)),
        document("abi/constants.txt", abi::constants(&header)),
    ];
    if cfg!(target_pointer_width = "64") {
        all.push(document("abi/layout.txt", abi::layout(&header)));
    }
    all.push(document("include/kvconn.h", header));
    all
}

impl Document {
    /// Writes the file, if it is stale. Says whether it was.
    pub fn write(&self) -> bool {
        let stale = self.difference().is_some();
        if stale {
            fs::write(root().join(self.path), &self.text).unwrap_or_else(|e| panic!("{}: {e}", self.path));
        }
        stale
    }

    /// Where the file differs from what the code makes, for a person to read; `None` when it is fresh.
    pub fn difference(&self) -> Option<String> {
        let found = fs::read_to_string(root().join(self.path)).unwrap_or_default();
        if found == self.text {
            return None;
        }
        let line = self.text.lines().zip(found.lines()).take_while(|(made, found)| made == found).count();
        let show = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_string();
        let (path, found, made) = (self.path, show(&found), show(&self.text));
        Some(format!("{path}:{} is stale (run `make bless`); it has\n{found}\nand must have\n{made}", line + 1))
    }
}

/// The header as it is committed. One test proves it fresh; the others need not make it again.
pub fn header() -> String {
    read(&root().join("include/kvconn.h"))
}

/// The root of the project.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the project")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every Rust file below a directory.
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
