//! `vmm/CONTROL.md` against the code: each method has its section, what it takes and returns is told there, what is told
//! there exists, and each example is a request or a reply of its method.

use std::collections::BTreeSet;

use clap::Command;
use serde::Deserialize;
use serde_json::{Deserializer, Value};
use trace::live::Happening;

use super::fields::{Field, fields, is_optional};
use super::method::{Method, Visitor};
use super::methods::visit_all;
use super::protocol::{Call, notification};
use super::subscription::{ENDED, EVENTS, SomeEvents, TailEnded};

const DOCUMENT: &str = include_str!("../../CONTROL.md");

/// Words of the document that look like fields and are none: what texts can be, and names of other things.
const WORDS: [&str; 28] = [
    "available",
    "bool",
    "ctl",
    "default",
    "direct",
    "disabled",
    "do_init_module",
    "ended",
    "false",
    "first",
    "gone",
    "gs",
    "iterator",
    "nop",
    "off",
    "on",
    "patched",
    "paused",
    "pointer",
    "running",
    "shared",
    "skipped",
    "static_call",
    "stub",
    "switched-off",
    "tracing",
    "trapped",
    "waiting",
];

/// A method as the code has it.
struct Known {
    name: &'static str,
    about: String,
    takes: Vec<Field>,
    required: Vec<String>,
    returns: Vec<Field>,
    /// What is wrong with a request.
    check_call: fn(&Call) -> Result<(), String>,
    /// What is wrong with a result.
    check_result: fn(&Value) -> Result<(), String>,
}

impl Known {
    fn all() -> Vec<Self> {
        let mut all = All::default();
        visit_all(&mut all);
        all.0
    }
}

#[derive(Default)]
struct All(Vec<Known>);

impl Visitor for All {
    fn visit<M: Method>(&mut self) {
        let command = M::augment_args(Command::new(M::NAME));
        let about = command.get_about().map(ToString::to_string);
        let takes = fields::<M>();
        let top = takes.iter().filter(|field| field.is_top());
        let required = top.filter(|field| !is_optional::<M>(&field.path));
        self.0.push(Known {
            name: M::NAME,
            about: about.unwrap_or_default(),
            required: required.map(|field| field.path.clone()).collect(),
            takes,
            returns: fields::<M::Result>(),
            check_call: |call| match call.read::<M>() {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            check_result: |result| match M::Result::deserialize(result) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        });
    }
}

/// What the document tells of some methods together.
struct Section {
    methods: Vec<String>,
    text: &'static str,
}

impl Section {
    fn all() -> Vec<Self> {
        let methods = DOCUMENT.split("\n## Methods\n").nth(1).unwrap();
        let sections = methods.split("\n### ").skip(1);
        let section = |text: &'static str| {
            let (heading, text) = text.split_once('\n').unwrap();
            let methods = heading.split('`').skip(1).step_by(2).map(str::to_owned);
            Self {
                methods: methods.collect(),
                text,
            }
        };
        sections.map(section).collect()
    }

    /// Requests and replies, as one is after the other.
    fn examples(&self) -> Vec<Value> {
        let blocks = self.text.split("```json\n").skip(1);
        let texts = blocks.filter_map(|block| block.split("```").next());
        let values = texts.flat_map(|text| Deserializer::from_str(text).into_iter());
        values.map(Result::unwrap).collect()
    }

    /// What is not in a block.
    fn prose(&self) -> String {
        self.text.split("```").step_by(2).collect()
    }

    /// Words that look like fields, or paths of them.
    fn named(&self) -> BTreeSet<String> {
        let prose = self.prose();
        let quoted = prose.split('`').skip(1).step_by(2);
        let is_part = |char: char| char.is_ascii_lowercase() || "_-.[]".contains(char);
        let is_name = |word: &&str| {
            word.starts_with(|char: char| char.is_ascii_lowercase()) && word.chars().all(is_part)
        };
        quoted.filter(is_name).map(str::to_owned).collect()
    }

    /// Whether a field's name stands here.
    fn tells(&self, name: &str) -> bool {
        let quoted = self.named().iter().any(|word| ends_with(word, name));
        quoted || self.text.contains(&format!("\"{name}\":"))
    }

    /// The sections in which this is told: this one, and those of methods that are named in it.
    fn with_others<'s>(&'s self, all: &'s [Self]) -> Vec<&'s Self> {
        let named = self.named();
        let is_named = |other: &&Self| other.methods.iter().any(|name| named.contains(name));
        let mut told: Vec<&Self> = all.iter().filter(is_named).collect();
        told.push(self);
        told
    }

    fn of<'k>(&self, known: &'k [Known]) -> Vec<&'k Known> {
        let is_here = |one: &&Known| self.methods.iter().any(|name| name == one.name);
        known.iter().filter(is_here).collect()
    }

    /// What its methods take and return, each with whose it is.
    fn fields<'k>(&self, known: &'k [Known]) -> Vec<(&'static str, &'k Field)> {
        let mut fields = Vec::new();
        for of in self.of(known) {
            fields.extend(
                of.takes
                    .iter()
                    .chain(&of.returns)
                    .map(|field| (of.name, field)),
            );
        }
        fields
    }
}

/// Whether a path ends with these fields.
fn ends_with(path: &str, end: &str) -> bool {
    let bare = path.trim_end_matches("[]");
    let rest = bare.strip_suffix(end.trim_end_matches("[]"));
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The paths of all fields of a value.
fn paths(of: &Value, path: &str, into: &mut BTreeSet<String>) {
    match of {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                paths(value, &path, into);
                into.insert(path);
            }
        }
        Value::Array(values) => {
            for value in values {
                paths(value, &format!("{path}[]"), into);
            }
        }
        _ => {}
    }
}

/// What a value has that there is no field for.
fn unknown(value: &Value, fields: &[Field]) -> Vec<String> {
    let mut there = BTreeSet::new();
    paths(value, "", &mut there);
    let is_known = |path: &String| fields.iter().any(|field| field.path == *path);
    there.into_iter().filter(|path| !is_known(path)).collect()
}

fn nothing_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn each_method_has_one_section_and_each_section_is_about_methods() {
    let mut told: Vec<String> = Section::all()
        .into_iter()
        .flat_map(|section| section.methods)
        .collect();
    told.sort();
    let mut known: Vec<&str> = Known::all().iter().map(|one| one.name).collect();
    known.sort_unstable();
    assert_eq!(told, known);
}

/// The table of all methods.
fn table(known: &[Known]) -> String {
    let rows = known.iter().map(|of| {
        let takes = listed(&of.takes, &of.required);
        let returns = listed(&of.returns, &[]);
        format!("| `{}` | {} | {takes} | {returns} |\n", of.name, of.about)
    });
    let head =
        "| method | what it does | takes (**must** be there) | returns |\n|---|---|---|---|\n";
    rows.fold(head.to_owned(), |table, row| table + &row)
}

fn listed(fields: &[Field], required: &[String]) -> String {
    let top = fields.iter().filter(|field| field.is_top());
    let shown = top.map(|field| match required.contains(&field.path) {
        true => format!("**`{}`**", field.name()),
        false => format!("`{}`", field.name()),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_table_of_methods_is_what_the_code_says() {
    let table = table(&Known::all());
    assert!(DOCUMENT.contains(&table), "the table must be\n{table}");
}

#[test]
fn each_example_is_a_request_or_a_reply_of_its_method() {
    let known = Known::all();
    let (mut wrong, mut shown) = (Vec::new(), BTreeSet::new());
    for section in Section::all() {
        let mut asked: Option<&Known> = None;
        for example in section.examples() {
            if let Some(method) = example["method"].as_str() {
                asked = section
                    .of(&known)
                    .into_iter()
                    .find(|one| one.name == method);
                wrong.extend(wrong_request(asked, &example));
            } else if let (Some(of), Some(result)) = (asked, example.get("result")) {
                shown.insert(of.name);
                wrong.extend(wrong_result(of, result));
            } else if example.get("error").is_none() {
                wrong.push(format!("no request and no reply: {example}"));
            }
        }
    }
    let unseen = known.iter().filter(|one| !shown.contains(one.name));
    wrong.extend(unseen.map(|one| format!("{}: no example with a result", one.name)));
    nothing_wrong(&wrong);
}

fn wrong_request(of: Option<&Known>, request: &Value) -> Option<String> {
    let Some(of) = of else {
        return Some(format!("in the section of other methods: {request}"));
    };
    let call = Call {
        method: of.name.to_owned(),
        params: request.get("params").cloned(),
    };
    let error = (of.check_call)(&call).err()?;
    Some(format!("{error}: {request}"))
}

fn wrong_result(of: &Known, result: &Value) -> Vec<String> {
    let unread = (of.check_result)(result).err().into_iter();
    let unknown = unknown(result, &of.returns).into_iter();
    let unknown = unknown.map(|path| format!("it has no '{path}'"));
    let wrong = unread.chain(unknown);
    wrong
        .map(|what| format!("result of {}: {what}", of.name))
        .collect()
}

#[test]
fn every_field_is_told_of_and_all_that_it_can_be() {
    let (known, sections) = (Known::all(), Section::all());
    let mut wrong = Vec::new();
    for section in &sections {
        let told = section.with_others(&sections);
        let is_told = |word: &str| told.iter().any(|section| section.tells(word));
        for (of, field) in section.fields(&known) {
            if !is_told(field.name()) {
                wrong.push(format!("{of}: nothing is said of '{}'", field.path));
            }
            let values = field.values.iter().filter(|value| !is_told(value));
            wrong.extend(values.map(|value| format!("{of}: '{}' can be '{value}'", field.path)));
        }
    }
    nothing_wrong(&wrong);
}

#[test]
fn what_is_named_as_a_field_or_a_value_is_one() {
    let (known, sections) = (Known::all(), Section::all());
    let mut wrong = Vec::new();
    for section in &sections {
        let told = section.with_others(&sections);
        let fields = told.iter().flat_map(|section| section.fields(&known));
        let fields: Vec<&Field> = fields.map(|(_, field)| field).collect();
        let is_field = |word: &str| fields.iter().any(|field| ends_with(&field.path, word));
        let is_value = |word: &str| fields.iter().any(|field| field.values.contains(&word));
        let is_method = |word: &str| known.iter().any(|one| one.name == word);
        for word in section.named() {
            let is_known = is_field(&word) || is_value(&word) || is_method(&word);
            if !is_known && !WORDS.contains(&&*word) {
                wrong.push(format!("{}: what is `{word}`?", section.methods.join(", ")));
            }
        }
    }
    nothing_wrong(&wrong);
}

#[test]
fn the_notifications_are_those_that_are_sent() {
    let section = DOCUMENT.split("\n## Notifications\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let block = section.split("```").nth(1).unwrap();
    let lines: Vec<&str> = block.lines().skip(1).collect();
    let [events, ended] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    let params = |line: &str| serde_json::from_str::<Value>(line).unwrap()["params"].take();
    let some: SomeEvents = serde_json::from_value(params(events)).unwrap();
    assert_eq!(notification(EVENTS, &some).trim_end(), *events);
    let end: TailEnded = serde_json::from_value(params(ended)).unwrap();
    assert_eq!(notification(ENDED, &end).trim_end(), *ended);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let kinds = rows.flat_map(|row| row.split(" |").next().unwrap().split(", "));
    let told: BTreeSet<String> = kinds.map(|kind| kind.replace('`', "")).collect();
    // What is no kind is told which there are.
    let none = serde_json::from_str::<Happening>(r#"{"kind":"none"}"#);
    let error = none.unwrap_err().to_string();
    let (_, list) = error.split_once("expected one of ").unwrap();
    let known = list.split('`').skip(1).step_by(2).map(ToOwned::to_owned);
    let known: BTreeSet<String> = known.collect();
    assert_eq!(told, known);
}

#[test]
fn every_word_that_is_no_field_is_there() {
    let named: BTreeSet<String> = Section::all().iter().flat_map(Section::named).collect();
    let gone: Vec<&str> = WORDS
        .into_iter()
        .filter(|word| !named.contains(*word))
        .collect();
    assert_eq!(gone, [""; 0]);
}

#[test]
fn a_difference_is_noticed() {
    let field = |path: &str| Field {
        path: path.to_owned(),
        values: &[],
    };
    let section = Section {
        methods: Vec::new(),
        text: "`rings[].lost` and `on`, as in\n```json\n{\"written\":1}\n```\n",
    };
    assert!(section.tells("lost") && section.tells("written") && section.tells("on"));
    assert!(!section.tells("read") && !section.tells("ring"));
    assert_eq!(section.examples().len(), 1);
    let value = serde_json::json!({"rings": [{"lost": 1, "written": 2}]});
    let fields = [field("rings"), field("rings[].lost")];
    assert_eq!(unknown(&value, &fields), ["rings[].written"]);
    assert!(ends_with("a.rings[].lost", "rings[].lost") && ends_with("a.rings[]", "rings"));
    assert!(!ends_with("a.strings[].lost", "rings[].lost"));
}
