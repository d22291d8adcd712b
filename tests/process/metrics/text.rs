//! A text of metrics, taken apart. What it finds wrong with the form is a failed test; `tests/python` has a parser that
//! somebody else wrote.

use std::collections::{BTreeMap, HashSet};

use kvconn::manager::Manager;

/// One scrape of one manager.
pub struct Metrics {
    manager: u64,
    pub text: String,
    series: BTreeMap<String, f64>,
    counters: HashSet<String>,
}

impl Metrics {
    #[track_caller]
    pub fn of(manager: &Manager) -> Metrics {
        Metrics::parse(manager.id().0, manager.metrics_text().expect("a text"))
    }

    #[track_caller]
    fn parse(manager: u64, text: String) -> Metrics {
        assert!(text.ends_with("\n# EOF\n"), "no end:\n{text}");
        let mut metrics = Metrics { manager, series: BTreeMap::new(), counters: HashSet::new(), text: text.clone() };
        let (mut family, mut kind, mut families) = (String::new(), String::new(), HashSet::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a help");
                assert!(name.starts_with("kvconn_") && help.ends_with('.'), "{line}");
                assert!(families.insert(name.to_string()), "{name} comes twice");
                family = name.to_string();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                kind = rest.strip_prefix(&format!("{family} ")).expect("the type of the family").to_string();
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a series and its value");
                let name = series.split('{').next().unwrap();
                let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} is not of {family}"));
                let suffixes: &[&str] = match kind.as_str() {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "info" => &["_info"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => panic!("{family} is a {kind}"),
                };
                assert!(suffixes.contains(&suffix), "{line}");
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(metrics.series.insert(series.to_string(), value).is_none(), "{series} comes twice");
                if kind == "counter" || kind == "histogram" {
                    metrics.counters.insert(series.to_string());
                }
            }
        }
        metrics
    }

    /// The value of a series of the manager's, named without its prefix and its label `manager`.
    #[track_caller]
    pub fn get(&self, series: &str) -> f64 {
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = if labels == "}" { "}".into() } else { format!(",{labels}") };
        self.exactly(&format!("kvconn_{name}{{manager=\"{}\"{labels}", self.manager))
    }

    /// The value of a series as it stands in the text.
    #[track_caller]
    pub fn exactly(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("there is no {series} in\n{}", self.text))
    }

    pub fn has(&self, part: &str) -> bool {
        self.series.keys().any(|series| series.contains(part))
    }

    /// The names of all series of one endpoint each.
    pub fn of_endpoints(&self) -> Vec<&String> {
        self.series.keys().filter(|series| series.contains("endpoint=")).collect()
    }

    /// What holds in every text: each message and each connection is counted once.
    #[track_caller]
    pub fn add_up(&self) {
        let outcomes = ["messages_acknowledged_total", "messages_unacknowledged_total", "messages_unknown_total"];
        let outcomes: f64 = outcomes.map(|outcome| self.get(outcome)).iter().sum();
        assert_eq!(self.get("messages_accepted_total"), outcomes + self.get("messages_in_flight"), "{}", self.text);
        let ended = "kvconn_connections_ended_total{";
        let ended: f64 = self.series.iter().filter(|(series, _)| series.starts_with(ended)).map(|(_, n)| n).sum();
        let live = self.get("connections{state=\"CONNECTING\"}") + self.get("connections{state=\"READY\"}");
        assert_eq!(self.get("dials_total"), ended + live, "{}", self.text);
    }

    /// No counter of `before`, whose scrape had ended when this one began, is greater.
    #[track_caller]
    pub fn not_below(&self, before: &Metrics) {
        for series in &before.counters {
            let (was, is) = (before.exactly(series), self.exactly(series));
            assert!(is >= was, "{series} went from {was} to {is}\n{}", self.text);
        }
    }
}
