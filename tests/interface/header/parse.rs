//! Reads the header as far as tests need it: it is made by a tool, so its form is known.
#![allow(dead_code)] // not every test that shares this file needs all of it

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
    /// `typedef … NAME;`
    Type { name: String },
    /// `typedef struct NAME { … } NAME;` with the name and comment of each field.
    Struct { name: String, fields: Vec<(String, String)> },
    /// `TYPE NAME(…);`
    Function { name: String, returns: String, parameters: Vec<String> },
}

impl Item {
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Constant { name, .. }
            | Kind::Type { name }
            | Kind::Struct { name, .. }
            | Kind::Function { name, .. } => name,
        }
    }
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
                } else if line.ends_with(';') {
                    fields.push((last_name(line), std::mem::take(&mut field_doc)));
                }
            };
            items.push(Item { doc: take_doc(&mut doc), kind: Kind::Struct { name, fields } });
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
