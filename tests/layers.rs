//! The floors of `src/`: a file names only what stands below it.
//!
//! The test reads every `use` and every path that begins with `crate::`. It fails on an arrow that points up, on a
//! circle of more than four files inside a folder, and on two types of one name. When it fails it prints the floor
//! plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders and files of `src/`, from the top floor to the ground, and what each is for. `docs/architecture.md`
/// shows the same floors in the same words.
const FLOORS: &[(&str, &str)] = &[
    ("capi", "the C boundary: one file for each section of the header"),
    ("observe", "describe, dump, metrics: they read everything, and nothing calls them"),
    ("process", "what the process has one of: the table of managers, fork, shutdown"),
    ("manager", "one set of endpoints: cache, fences and backoff, nodes"),
    ("runtime", "what all managers share: libzmq's context, the background threads, name resolution"),
    ("connection", "one connection: state, gate, dial, acknowledgement, messages"),
    ("events", "the queue of events of a manager"),
    ("options", "the table of settings, and their values"),
    ("libzmq", "the only calls of libzmq"),
    ("net", "endpoint texts, addresses, routes"),
    ("budget", "descriptors and queued bytes of the process"),
    ("log", "the log"),
    ("delivery", "what became of accepted messages"),
    ("error", "errors, and the table of statuses"),
    ("ids", "ids, which are never used twice"),
    ("timeout", "how long a call may take"),
    ("sys", "the operating system: clocks, locks, threads, descriptors"),
];

/// The most files that may name each other in a circle.
const MOST_IN_A_CIRCLE: usize = 4;

/// One file of `src/`, without its tests.
struct Source {
    /// For example `connection/gate/mod.rs`.
    file: String,
    /// Its module, for example `["connection", "gate"]`.
    module: Vec<String>,
    /// Code lines with their numbers: no comments, no test modules.
    code: Vec<(usize, String)>,
}

/// That a file names a module, and where.
struct Arrow {
    from: usize,
    line: usize,
    /// The path that is named, from the root of the crate.
    to: Vec<String>,
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("src/ can be read") {
            let path = entry.expect("src/ can be read").path();
            match path.is_dir() {
                true => walk(&path, found),
                false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
                false => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    let name = |path: &PathBuf| path.strip_prefix(&root).expect("it is in src/").to_string_lossy().into_owned();
    // Files of tests are declared under `#[cfg(test)]`; they may name whatever they need.
    let is_test = |file: &str| file.split(['/', '.']).any(|part| part == "tests" || part == "model");
    found.iter().map(|path| source(name(path), path)).filter(|source| !is_test(&source.file)).collect()
}

fn source(file: String, path: &Path) -> Source {
    let text = fs::read_to_string(path).expect("src/ can be read");
    let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    // `mod tests { … }` stands at the end of a file.
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let code = text[..end].lines().zip(1..).map(|(line, number)| (number, code(line))).collect();
    Source { file, module, code }
}

/// The paths that a file names, from the root of the crate.
fn arrows(sources: &[Source]) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for (from, source) in sources.iter().enumerate() {
        let text: String = source.code.iter().map(|(_, code)| format!("{code}\n")).collect();
        for (place, _) in text.match_indices("crate::").chain(text.match_indices("super::")) {
            // A part of a longer word, or a visibility: `pub(in crate::…)`.
            if text[..place].ends_with(|c: char| c.is_alphanumeric() || "_$".contains(c))
                || text[..place].ends_with("(in ")
            {
                continue;
            }
            let line = 1 + text[..place].matches('\n').count();
            for to in paths(&text[place..]) {
                if let Some(to) = absolute(&source.module, &to) {
                    arrows.push(Arrow { from, line, to });
                }
            }
        }
        // A module that declares children may name them without a prefix. A re-export (`pub use`) needs nothing of
        // them.
        for (number, code) in &source.code {
            if let Some(rest) = code.trim_start().strip_prefix("use ")
                && !["crate::", "super::", "std::"].iter().any(|prefix| rest.starts_with(prefix))
            {
                let child = rest.split("::").next().unwrap_or_default().to_owned();
                arrows.push(Arrow { from, line: *number, to: [source.module.clone(), vec![child]].concat() });
            }
        }
    }
    arrows
}

/// The path at the beginning of `text`; several where it ends in `{…}`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
    let head: Vec<String> = text[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let Some(group) = text[end..].strip_prefix('{') else { return vec![head] };
    let group = &group[..group.find('}').unwrap_or(group.len())];
    let with = |item: &str| [head.clone(), item.split("::").map(str::to_owned).collect()].concat();
    group
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty() && *item != "self")
        .map(with)
        .chain([head.clone()])
        .collect()
}

fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
        _ => None,
    }
}

fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|(floor, _)| *floor == name)
}

fn floor_plan(sources: &[Source], arrows: &[Arrow]) -> String {
    let mut plan = String::from("The floors of src/, from the top. A floor names only floors below it.\n");
    for (name, about) in FLOORS {
        let named: BTreeSet<&str> = arrows
            .iter()
            .filter(|arrow| sources[arrow.from].module.first().is_some_and(|own| own == name))
            .filter_map(|arrow| Some(arrow.to.first()?.as_str()))
            .filter(|to| to != name && floor(to).is_some())
            .collect();
        let named: Vec<_> = named.into_iter().collect();
        plan += &format!("  {name:<11}{about}\n             names: {}\n", named.join(" "));
    }
    plan
}

#[test]
fn every_arrow_points_down() {
    let sources = sources();
    let arrows = arrows(&sources);
    let mut upward = Vec::new();
    for source in &sources {
        let own = source.module.first().map_or("", String::as_str);
        assert!(own.is_empty() || floor(own).is_some(), "src/{} stands on no floor of tests/layers.rs", source.file);
    }
    for arrow in &arrows {
        let from = &sources[arrow.from];
        let (Some(own), Some(to)) = (from.module.first(), arrow.to.first()) else { continue };
        if let (Some(own), Some(other)) = (floor(own), floor(to))
            && other < own
        {
            upward.push(format!("src/{}:{}: names crate::{}", from.file, arrow.line, arrow.to.join("::")));
        }
    }
    assert!(arrows.len() > 300, "only {} arrows were read: does this test still understand the code?", arrows.len());
    let plan = floor_plan(&sources, &arrows);
    println!("{plan}");
    assert!(upward.is_empty(), "these name a floor above their own:\n{}\n\n{plan}", upward.join("\n"));
}

/// The file that an arrow leads to: the longest module that is a beginning of its path.
fn target(sources: &[Source], to: &[String]) -> Option<usize> {
    let is_beginning = |source: &&(usize, &Source)| !source.1.module.is_empty() && to.starts_with(&source.1.module);
    sources
        .iter()
        .enumerate()
        .filter(|source| is_beginning(&source))
        .max_by_key(|(_, source)| source.module.len())
        .map(|(i, _)| i)
}

#[test]
fn no_circle_has_more_than_four_files() {
    let sources = sources();
    let mut below: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for arrow in arrows(&sources) {
        if let Some(to) = target(&sources, &arrow.to)
            && to != arrow.from
        {
            below.entry(arrow.from).or_default().insert(to);
        }
    }
    let reached = |from: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(below.get(&next).into_iter().flatten().filter(|to| seen.insert(**to)));
        }
        seen
    };
    let reached: Vec<_> = (0..sources.len()).map(reached).collect();
    let circles: BTreeSet<Vec<&str>> = (0..sources.len())
        .map(|one| {
            reached[one].iter().filter(|other| reached[**other].contains(&one)).map(|i| &*sources[*i].file).collect()
        })
        .collect();
    for circle in circles.iter().filter(|circle| circle.len() > 1) {
        println!("a circle of {}: {}", circle.len(), circle.join(" "));
        let folder = circle[0].split('/').next();
        assert!(circle.iter().all(|file| file.split('/').next() == folder), "a circle between folders: {circle:?}");
        assert!(circle.len() <= MOST_IN_A_CIRCLE, "{} files name each other in a circle: {circle:?}", circle.len());
    }
}

#[test]
fn no_two_types_have_one_name() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        for (_, code) in &source.code {
            // Types at the left edge: not associated types, and not those of a module inside the file.
            let words: Vec<_> = code.split([' ', '<', '(', ';', '{', ':']).filter(|word| !word.is_empty()).collect();
            let kind = words.iter().position(|word| ["struct", "enum", "trait", "type", "union"].contains(word));
            let visibility = |word: &&str| {
                word.starts_with("pub")
                    || ["in", "crate", "super", "unsafe", "connection)", "crate)", "super)"].contains(word)
            };
            if let (Some(kind), false) = (kind, code.starts_with(' '))
                && words[..kind].iter().all(visibility)
                && let Some(name) = words.get(kind + 1)
            {
                places.entry((*name).to_owned()).or_default().insert(source.file.clone());
            }
        }
    }
    assert!(places.len() > 100, "only {} types were read: does this test still understand the code?", places.len());
    let twice: Vec<_> = places.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "types of one name: {twice:#?}");
}

#[test]
fn modules_have_one_style() {
    // A folder's module is its `mod.rs`; no file stands beside a folder of its own name.
    for source in sources() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(source.file.trim_end_matches(".rs"));
        assert!(
            !path.is_dir(),
            "src/{} and a folder of the same name: move it to {}/mod.rs",
            source.file,
            path.display()
        );
    }
}

/// The architecture shows the same floors, in the same words.
#[test]
fn the_architecture_shows_these_floors() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md"))
        .expect("the page is there");
    let mut place = 0;
    for (name, about) in FLOORS {
        let row = format!("| `{name}` | {about} |");
        let found = page[place..].find(&row);
        place += found.unwrap_or_else(|| panic!("docs/architecture.md lacks, in this order: {row}")) + row.len();
    }
}
