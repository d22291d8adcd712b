//! Words that must not come back: the project uses the field's terms, and plain English.
//!
//! The test splits every text file into words. Identifiers are split too: `let_go` and `LetGo` are both "let go". A
//! term may continue on the next line. When the test fails it lists file, line, the words found and the replacement.

use std::fs;
use std::path::Path;

/// The folders and files that are read, as far as they exist.
const READ: &[&str] = &[
    "src",
    "include",
    "peer",
    "python",
    "benches",
    "bindings",
    "bundled",
    "tests",
    "docs",
    "examples_c",
    "examples_cpp",
    "examples_python",
    "packaging",
    "scripts",
    "xtask",
    "fuzz",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

/// Not read: this file, which has to name the words.
const SKIPPED: &[&str] = &["tests/words.rs"];

/// Not read: folders of generated files.
const SKIPPED_FOLDERS: &[&str] = &["__pycache__", "target"];

/// Forms of a term, separated by `|`, and what to write instead.
const TERMS: &[(&str, &str)] = &[
    // Terms of the field.
    ("lent|lend|lends|lending|lender|lenders", "zero-copy buffer; in flight; free callback"),
    ("loan|loans|loaned", "zero-copy buffer; buffers in flight"),
    ("let go|lets go|letting go|lettings go", "freed by libzmq; released"),
    ("bell|bells", "wait source; waker"),
    ("kick|kicks|kicked|kicking", "wake"),
    ("errand|errands", "pending send"),
    ("baton|batons", "hand-off"),
    ("try luck|its luck|their luck|tries luck", "barge; try_barge"),
    ("happening|happenings", "transition; event"),
    ("asker|askers", "dial policy"),
    ("fate|fates", "outcome"),
    ("on the way|on their way|on its way", "in flight"),
    ("nobody can tell|nobody could tell", "unknown"),
    // Plain English.
    ("mend|mends|mended|mending", "fix"),
    ("save for", "except"),
    ("of its own accord|of their own accord", "without being asked; by itself"),
    ("whoever|whosoever", "name the subject: the caller, the thread, the reader"),
    ("lest", "so that … not"),
    ("for it may|for they may", "because it may"),
];

/// One word of a file, in lower case.
struct Word {
    text: String,
    line: usize,
    /// The text right behind it, up to the end of the file.
    end: usize,
}

/// Splits a text into words: at everything that is not a letter or digit, and inside identifiers at `_` and before
/// capitals.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let (mut line, mut before) = (1, ' ');
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        if c.is_alphanumeric() {
            let starts = !before.is_alphanumeric() || c.is_uppercase() && before.is_lowercase();
            match words.last_mut() {
                Some(word) if !starts => {
                    word.text.extend(c.to_lowercase());
                    word.end = end;
                }
                _ => words.push(Word { text: c.to_lowercase().collect(), line, end }),
            }
        }
        line += usize::from(c == '\n');
        before = c;
    }
    words
}

/// Whether the words at `place` are a variable named `go`, as in `let go = …`.
fn is_variable(text: &str, last: &Word) -> bool {
    last.text == "go" && text[last.end..].trim_start_matches(' ').starts_with(['=', ':'])
}

/// The terms in a text: the line, the words, and the replacement.
fn found(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let words = words(text);
    let mut found = Vec::new();
    for (forms, instead) in TERMS {
        for form in forms.split('|') {
            let parts: Vec<&str> = form.split(' ').collect();
            for place in words.windows(parts.len()) {
                let same = place.iter().zip(&parts).all(|(word, part)| word.text == *part);
                if same && !place.last().is_some_and(|last| is_variable(text, last)) {
                    found.push((place[0].line, form, *instead));
                }
            }
        }
    }
    found.sort_unstable();
    found
}

/// Reads a file or folder below the root, and adds what it finds as `file:line: …`.
fn search(root: &Path, name: &str, hits: &mut Vec<String>, files: &mut usize) {
    let path = root.join(name);
    if path.is_dir() {
        let entries = fs::read_dir(&path).expect("the folder can be read");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("the folder can be read").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        for entry in names.iter().filter(|name| !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&name.as_str())) {
            search(root, &format!("{name}/{entry}"), hits, files);
        }
    } else if !SKIPPED.contains(&name)
        && let Ok(text) = fs::read_to_string(&path)
    {
        *files += 1;
        for (line, form, instead) in found(&text) {
            hits.push(format!("{name}:{line}: \"{form}\": write: {instead}"));
        }
    }
}

#[test]
fn the_words_are_not_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut hits, mut files) = (Vec::new(), 0);
    READ.iter().for_each(|name| search(root, name, &mut hits, &mut files));
    assert!(files > 100, "only {files} files were read");
    assert!(hits.is_empty(), "{} places use words that must not come back:\n{}", hits.len(), hits.join("\n"));
}

#[test]
fn terms_are_found_in_prose_in_identifiers_and_across_lines() {
    let forms = |text: &str| found(text).into_iter().map(|(line, form, _)| (line, form)).collect::<Vec<_>>();
    assert_eq!(forms("/// The Lender lets go."), [(1, "lender"), (1, "lets go")]);
    assert_eq!(forms("fn let_go() {}\nstruct LetGo;\nKVCONN_FATE_LOST"), [(1, "let go"), (2, "let go"), (3, "fate")]);
    assert_eq!(forms("// bytes on the\n// way"), [(1, "on the way")]);
    assert_eq!(forms("Mend it."), [(1, "mend")]);
}

#[test]
fn plain_english_and_code_are_not_found() {
    for text in [
        "silent, length, fragment, recommend, amend, commended",
        "let go = 3; let go: bool;",
        "lines of code; on every exit path; save the file; at least the latest",
        "a label, a bellows, a kickstart",
        "in any way; it is known",
    ] {
        assert!(found(text).is_empty(), "{text}: {:?}", found(text));
    }
}
