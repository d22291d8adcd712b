//! `python/kvconn/_settings.py`, from the table of settings: the package has no documents beside it when it is installed.

use std::fmt::Write as _;

/// `options` is the text of `docs/options.md`.
pub(crate) fn settings(options: &str) -> String {
    let mut out = String::from(
        "\"\"\"The table of settings, for `kvconn options`. Made from `src/options` by `make bless`.\"\"\"\n\n\
         # (name, acts on, values, default, meaning)\nSETTINGS: list[tuple[str, str, str, str, str]] = [\n",
    );
    for row in options.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).splitn(5, " | ").collect();
        let [name, reach, values, default, text] = cells[..] else { panic!("a row of five cells: {row}") };
        // Both languages quote such a text in the same way.
        assert!(!text.contains(char::is_control));
        let _ = writeln!(out, "    ({:?}, {reach:?}, {values:?}, {default:?}, {text:?}),", name.trim_matches('`'));
    }
    out + "]\n"
}
