//! `tests/README.md` leads to where each fact is proved, so what it names must be there.

use std::fs;
use std::path::{Path, PathBuf};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn map() -> String {
    fs::read_to_string(tests().join("README.md")).expect("the map of the tests")
}

/// The paths that the map links to, as it spells them.
fn links(map: &str) -> Vec<&str> {
    let targets = map.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).collect()
}

/// Words between backticks that are a path: they have a slash or end like a source file, and no other sign.
fn quoted_paths(map: &str) -> Vec<&str> {
    let is_path = |word: &&str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        plain && (word.ends_with(".rs") || word.ends_with(".py") || word.split('/').all(|part| part.len() > 1))
    };
    let quoted = map.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.contains('/')).filter(is_path).collect()
}

#[test]
fn every_path_in_the_map_of_the_tests_exists() {
    let map = map();
    let links = links(&map);
    assert!(links.len() > 100, "the links are not found any more: {links:?}");
    let missing: Vec<_> = links.iter().filter(|path| !tests().join(path).exists()).collect();
    assert!(missing.is_empty(), "tests/README.md links to what is not there: {missing:?}");
    let root = tests().join("..");
    let is_there = |path: &str| [tests().join(path), root.join(path)].iter().any(|path| path.exists());
    let missing: Vec<_> = quoted_paths(&map).into_iter().filter(|path| !is_there(path)).collect();
    assert!(missing.is_empty(), "tests/README.md names what is not there: {missing:?}");
}

#[test]
fn every_crate_and_every_helper_is_in_the_map_of_the_tests() {
    let map = map();
    let names_in = |folder: &Path| {
        let listing = fs::read_dir(folder).expect("a folder of tests");
        listing.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
    };
    let crates = names_in(&tests()).filter(|name| tests().join(name).join("main.rs").exists());
    let is_named = |name: &str| map.contains(&format!("({name}/main.rs)")) || map.contains(&format!("`{name}`"));
    let crates: Vec<_> = crates.filter(|name| !is_named(name)).collect();
    assert!(crates.is_empty(), "test crates that tests/README.md does not name: {crates:?}");
    let helpers = names_in(&tests().join("common")).filter(|name| !map.contains(&format!("(common/{name})")));
    let helpers: Vec<_> = helpers.collect();
    assert!(helpers.is_empty(), "helpers without a row in tests/README.md: {helpers:?}");
}
