//! Whatever names an option, a value of one or a verb of `ctl` names one that there is: messages that
//! recommend what does not exist cannot be written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

/// Options of other programs, and of tests of ours.
const OTHERS: [&str; 15] = [
    "id",
    "name",
    "api-sock",
    "bare",
    "chrome",
    "cpus",
    "edition",
    "event-full",
    "help",
    "kernle",
    "locked",
    "mem",
    "release",
    "retpoline",
    "x",
];
/// Words that follow an option in a sentence and are no values of it.
const PROSE: [&str; 9] = [
    "out", "there", "is", "and", "or", "to", "with", "was", "without",
];

/// Every long option with the values that it can have, if they are few.
#[derive(Default)]
struct Known {
    options: BTreeMap<String, BTreeSet<String>>,
    /// Those that can stand without a value: what comes after them may be another option.
    alone: BTreeSet<String>,
    verbs: BTreeSet<String>,
}

impl Known {
    fn of(command: &Command) -> Self {
        let mut known = Self::default();
        known.add(command);
        let ctl = command.find_subcommand("ctl").expect("ctl");
        known.verbs = ctl
            .get_subcommands()
            .map(|verb| verb.get_name().to_owned())
            .collect();
        known
    }

    fn add(&mut self, command: &Command) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else {
                continue;
            };
            let values = match argument.get_action().takes_values() {
                true => argument.get_possible_values(),
                false => Vec::new(),
            };
            let needs_value = argument
                .get_num_args()
                .is_none_or(|count| count.min_values() > 0);
            if !needs_value {
                self.alone.insert(long.to_owned());
            }
            let values = values.iter().map(|value| value.get_name().to_owned());
            self.options
                .entry(long.to_owned())
                .or_default()
                .extend(values);
        }
        command.get_subcommands().for_each(|sub| self.add(sub));
    }

    /// What is wrong in a line.
    fn wrong(&self, line: &str) -> Vec<String> {
        let is_verb = |verb: &&str| verb.starts_with(|char: char| char.is_ascii_lowercase());
        let mut wrong = Vec::new();
        for (option, value) in named(line) {
            let is_next = value.starts_with("--") && self.alone.contains(&option);
            match self.options.get(&option) {
                None if !OTHERS.contains(&&*option) => wrong.push(format!("--{option}")),
                Some(values)
                    if !is_next
                        && !values.is_empty()
                        && !value.is_empty()
                        && !values.contains(&value)
                        && !PROSE.contains(&&*value) =>
                {
                    wrong.push(format!("--{option} {value}"));
                }
                _ => {}
            }
        }
        for start in ["`ctl ", "vmm ctl "] {
            let verbs = line
                .match_indices(start)
                .map(|(at, start)| word(&line[at + start.len()..]));
            let unknown = verbs.filter(|verb| is_verb(verb) && !self.verbs.contains(*verb));
            wrong.extend(unknown.map(|verb| format!("ctl {verb}")));
        }
        wrong
    }
}

/// Lower-case letters, digits and dashes at the beginning.
fn word(text: &str) -> &str {
    let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
    let end = text.find(|char| !is_part(char)).unwrap_or(text.len());
    &text[..end]
}

/// The options that a line names, each with the word after it.
fn named(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("--") {
        let is_inside =
            line[..at].ends_with(|char: char| char.is_alphanumeric() || "-_".contains(char));
        let option = word(&line[at + 2..]);
        if is_inside || !option.starts_with(|char: char| char.is_ascii_lowercase()) {
            continue;
        }
        let rest = &line[at + 2 + option.len()..];
        let value = rest.strip_prefix([' ', '=']).map_or("", word);
        found.push((option.trim_end_matches('-').to_owned(), value.to_owned()));
    }
    found
}

fn files(of: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, into);
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            into.push(path);
        }
    }
}

#[test]
fn every_option_that_is_named_somewhere_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut paths = Vec::new();
    for folder in ["tracer/src", "vmm/src"] {
        files(&root.join(folder), "rs", &mut paths);
    }
    let docs = [
        "README.md",
        "CHANGELOG.md",
        "vmm/CONTROL.md",
        "vmm/DESIGN.md",
        "tracer/DESIGN.md",
    ];
    paths.extend(docs.map(|name| root.join(name)));
    if root.join("docs").is_dir() {
        files(&root.join("docs"), "md", &mut paths);
    }
    let known = Known::of(&super::Cli::command());
    let mut wrong = Vec::new();
    for path in paths
        .iter()
        .filter(|path| !path.ends_with("cli/named_options.rs"))
    {
        let text = std::fs::read_to_string(path).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let named = known.wrong(line);
            wrong.extend(
                named
                    .iter()
                    .map(|name| format!("{}:{number}: {name}", path.display())),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "there is no such option:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn what_does_not_exist_is_noticed() {
    let known = Known::of(&super::Cli::command());
    let wrong = |line: &str| known.wrong(line).join(" ");
    assert_eq!(
        wrong("stop them, use --patch-method stop"),
        "--patch-method stop"
    );
    assert_eq!(
        wrong("use --patch-method quiesce, or --pach-method x"),
        "--pach-method"
    );
    assert_eq!(
        wrong("`ctl thwa` or `vmm ctl --control PATH status`"),
        "ctl thwa"
    );
    assert_eq!(wrong("run --clock tsc; --trace graph, a--b -- and --"), "");
    assert_eq!(
        wrong("run --host-events --trace graph, --host-events=nobody"),
        "--host-events nobody"
    );
}
