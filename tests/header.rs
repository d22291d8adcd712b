//! The header and the documents made from the code's tables are fresh.

#[path = "header/generate.rs"]
mod generate;

use std::{env, fs};

use kvconn::options;

/// Compares a file with what the code makes of it; with KVCONN_BLESS=1 it is written instead.
fn fresh(file: &str, made: &str) {
    let path = generate::root().join(file);
    if env::var_os("KVCONN_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, made).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    if let Some(line) = made.lines().zip(found.lines()).position(|(made, found)| made != found) {
        let show = |text: &str| text.lines().nth(line).unwrap_or_default().to_string();
        panic!(
            "{file} is not fresh (run `make bless`): line {} is\n{}\nand must be\n{}",
            line + 1,
            show(&found),
            show(made)
        );
    }
    assert!(found == made, "{file} is not fresh (run `make bless`): it has another length");
}

#[test]
fn the_header_is_fresh() {
    fresh("include/kvconn.h", &generate::header());
}

#[test]
fn the_options_document_is_fresh() {
    fresh("docs/options.md", &options::document());
}

#[test]
fn the_status_document_is_fresh() {
    fresh("docs/status.md", &generate::status_document());
}
