//! Reads the header, as far as the ABI files and the tests need it. A tool made it, so its form is known.

use std::collections::BTreeSet;

/// One item of the header, with the `/** */` comment before it.
#[derive(Debug)]
pub struct Item {
    pub doc: String,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    /// `#define NAME VALUE`
    Constant { name: String, value: String },
    /// `enum NAME { … };` with the comment, name and number of each constant.
    Enum { name: String, variants: Vec<Variant> },
    /// `typedef … NAME;`
    Type { name: String },
    /// `typedef struct NAME { … } NAME;` with the name and comment of each field.
    Struct { name: String, fields: Vec<(String, String)> },
    /// `TYPE NAME(…);`
    Function { name: String, returns: String, parameters: Vec<String> },
}

/// One constant of an enum.
#[derive(Debug)]
pub struct Variant {
    pub doc: String,
    pub name: String,
    pub value: i128,
}

impl Item {
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Constant { name, .. }
            | Kind::Enum { name, .. }
            | Kind::Type { name }
            | Kind::Struct { name, .. }
            | Kind::Function { name, .. } => name,
        }
    }
}

/// The functions of the header, in its order.
pub fn functions(header: &str) -> impl Iterator<Item = Item> {
    items(header).into_iter().filter(|item| matches!(item.kind, Kind::Function { .. }))
}

impl Item {
    /// The statuses that the item's own list names, in its order.
    pub fn own_statuses(&self) -> Vec<&str> {
        let retvals = self.doc.lines().filter_map(|line| line.strip_prefix("@retval "));
        retvals.filter_map(|line| line.split_whitespace().next()).collect()
    }

    /// All statuses that the header says this function returns: its own list, the shared lists that it refers to, and
    /// KVCONN_STALE for an id. Not those that every function returns.
    pub fn statuses(&self, header: &str) -> BTreeSet<String> {
        let text = self.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut all: BTreeSet<String> = self.own_statuses().into_iter().map(String::from).collect();
        for kind in ["sends", "node calls"] {
            if text.contains(&format!("statuses that all {kind} share")) {
                all.extend(shared_statuses(header, kind));
            }
        }
        if let Kind::Function { parameters, .. } = &self.kind
            && parameters.iter().any(|parameter| is_id(parameter))
        {
            all.insert("KVCONN_STALE".into());
        }
        all
    }
}

/// The list of a chapter with the title "Statuses that all … share".
fn shared_statuses(header: &str, kind: &str) -> Vec<String> {
    let title = format!(" * == Statuses that all {kind} share ==\n");
    let (_, rest) = header.split_once(&title).unwrap_or_else(|| panic!("there is no chapter{title}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with(" *     ")).map_while(|l| l.strip_prefix(" *     "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .filter(|w| w.starts_with("KVCONN_"))
        .map(String::from)
        .collect()
}

/// Whether a parameter is an id that the caller passes.
pub fn is_id(parameter: &str) -> bool {
    matches!(parameter, "kvconn_manager_t m" | "kvconn_conn_t conn" | "kvconn_node_t node")
}

/// Whether the header explains a parameter once for all functions.
pub fn said_once(parameter: &str) -> bool {
    is_id(parameter) || matches!(parameter, "kvconn_error_t *error" | "const kvconn_failure_t *failure")
}

/// The last word of a declaration, without what surrounds a name.
fn last_name(text: &str) -> String {
    let text = text.split('[').next().unwrap_or(text).trim_end_matches([';', ' ', ')']);
    text.rsplit([' ', '*', '(']).next().unwrap_or(text).to_string()
}

/// Everything that the header gives to a program.
pub fn items(header: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut doc = String::new();
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let take_doc = |doc: &mut String| std::mem::take(doc);
        if line.starts_with("/**") {
            doc = comment(line, &mut lines);
        } else if line.starts_with("/*") {
            doc.clear();
            comment(line, &mut lines);
        } else if let Some(define) = line.strip_prefix("#define ") {
            let (define, behind) = comment_behind(define);
            if !behind.is_empty() {
                doc = behind;
            }
            let (name, value) = define.split_once(' ').unwrap_or((define, ""));
            let (name, value) = (name.to_string(), value.to_string());
            items.push(Item { doc: take_doc(&mut doc), kind: Kind::Constant { name, value } });
        } else if line.starts_with("typedef struct") && line.ends_with('{') {
            let mut fields = Vec::new();
            let mut field_doc = String::new();
            let name = loop {
                let line = lines.next().expect("a struct has an end").trim();
                if let Some(end) = line.strip_prefix("} ") {
                    break last_name(end);
                } else if line.starts_with("/**") {
                    field_doc = comment(line, &mut lines);
                } else if let (code, behind) = comment_behind(line)
                    && code.ends_with(';')
                {
                    fields.push((last_name(code), std::mem::take(&mut field_doc) + &behind));
                }
            };
            items.push(Item { doc: take_doc(&mut doc), kind: Kind::Struct { name, fields } });
        } else if let Some(head) = line.strip_prefix("enum ") {
            let name = head.split([' ', '{']).next().expect("split gives one").to_string();
            let kind = Kind::Enum { name, variants: variants(&mut lines) };
            items.push(Item { doc: doc.clone(), kind }); // its typedef has the same comment
        } else if line.starts_with("typedef struct") && line.contains('*') {
            // The second form of an id (KVCONN_STRICT_IDS); the first one is documented.
        } else if let Some(typedef) = line.strip_prefix("typedef ") {
            let name = match typedef.split_once("(*") {
                Some((_, function)) => function.split(')').next().expect("it is closed").to_string(),
                None => last_name(typedef),
            };
            items.push(Item { doc: take_doc(&mut doc), kind: Kind::Type { name } });
        } else if line.contains("kvconn_") && line.contains('(') && !line.starts_with('#') {
            let mut text = line.to_string();
            while !text.ends_with(';') {
                text.push_str(lines.next().expect("a function has an end").trim());
            }
            let (head, parameters) = text.split_once('(').expect("a function has parameters");
            let name = last_name(head);
            let returns = head[..head.len() - name.len()].trim().to_string();
            let parameters = parameters.trim_end_matches(");");
            let parameters = match parameters {
                "void" => Vec::new(),
                some => some.split(',').map(|p| p.trim().to_string()).collect(),
            };
            items.push(Item { doc: take_doc(&mut doc), kind: Kind::Function { name, returns, parameters } });
        }
    }
    items
}

/// The constants of an enum, up to its end.
fn variants<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Variant> {
    let mut variants = Vec::new();
    let mut doc = String::new();
    loop {
        let line = lines.next().expect("an enum has an end").trim();
        if line.starts_with("};") {
            return variants;
        } else if line.starts_with("/**") {
            doc = comment(line, lines);
        } else if let (code, behind) = comment_behind(line)
            && let Some((name, value)) = code.trim_end_matches(',').split_once(" = ")
        {
            let value = value.parse().expect("a number");
            variants.push(Variant { doc: std::mem::take(&mut doc) + &behind, name: name.into(), value });
        }
    }
}

/// A line of code, and the comment behind it.
fn comment_behind(line: &str) -> (&str, String) {
    match line.split_once(" /**< ") {
        Some((code, text)) => (code, text.trim_end_matches("*/").trim().to_string()),
        None => (line, String::new()),
    }
}

/// The text of a comment that begins with `first`.
fn comment<'a>(first: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut text = first.trim().trim_start_matches("/*").trim_start_matches('*').to_string();
    while !text.ends_with("*/") {
        text.push('\n');
        let line = lines.next().expect("a comment has an end").trim_start();
        text.push_str(line.strip_prefix("* ").unwrap_or(if line == "*" { "" } else { line }));
    }
    text.trim_end_matches("*/").trim().to_string()
}

/// The name of a parameter such as `const char *endpoint`.
pub fn parameter_name(parameter: &str) -> String {
    last_name(parameter)
}
