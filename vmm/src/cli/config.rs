//! `--config FILE` of `vmm run` and `vmm attach`: options from a file, each by its name, which go before those of the command
//! line. What stands on the command line wins: `--atomic=false` is for a switch that the file has on.
//!
//! ```toml
//! kernel = "guest.elf"
//! trace = "graph"
//! filter = ["calls_*", "spin_*"]
//! atomic = true
//! ```

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error};
use toml::{Table, Value};

/// Verbs that have it.
const VERBS: [&str; 2] = ["run", "attach"];
/// The option.
const CONFIG: &str = "config";
/// Bytes of a file that is believed to be one of ours.
const BYTES_MAX: u64 = 1 << 20;

/// Why the options of a file cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    /// It cannot be read.
    #[error("--config {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is too long to be one.
    #[error("--config {}: longer than {BYTES_MAX} bytes: not a file of options", .0.display())]
    Long(PathBuf),
    /// It is no TOML.
    #[error("--config {}: line {line}: {problem}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// There is no such option.
    #[error("--config {}: `{verb}` has no option '{key}'", path.display())]
    NoOption {
        /// The file.
        path: PathBuf,
        /// The verb.
        verb: String,
        /// What stands there.
        key: String,
    },
    /// The option takes something else.
    #[error("--config {}: {key} takes {takes}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The option.
        key: String,
        /// What it takes.
        takes: &'static str,
    },
}

/// These arguments, with the options of the file that they name, if they name one.
///
/// # Errors
/// [`BadConfig`] names the file and what is wrong in it.
pub fn expanded(arguments: Vec<OsString>, command: &Command) -> Result<Vec<OsString>, BadConfig> {
    let verb = arguments.get(1).and_then(|verb| verb.to_str());
    let verb = verb.filter(|verb| VERBS.contains(verb));
    let verb = verb.and_then(|verb| command.find_subcommand(verb));
    let (Some(verb), Some(path)) = (verb, named(&arguments)) else {
        return Ok(arguments);
    };
    let options = read(&path)?;
    let given = given(&arguments);
    let mut added = Vec::new();
    for (key, value) in &options {
        let option = verb.get_arguments().find(|one| one.get_long() == Some(key));
        let option = option.filter(|_| key != CONFIG);
        let option = option.ok_or_else(|| BadConfig::NoOption {
            path: path.clone(),
            verb: verb.get_name().to_owned(),
            key: key.clone(),
        })?;
        if !given.contains(key.as_str()) {
            added.extend(words(option, key, value).map_err(|takes| BadConfig::Value {
                path: path.clone(),
                key: key.clone(),
                takes,
            })?);
        }
    }
    let mut all = without_switched_off(verb, arguments);
    all.splice(2..2, added);
    Ok(all)
}

/// The file that has the value which this error is about, and the command line has not.
pub fn file_of(error: &Error, arguments: &[OsString]) -> Option<PathBuf> {
    let is_of_value = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::InvalidUtf8
    );
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // It is named with what it takes.
    let key = named.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let is_given = given(arguments).contains(key);
    let verb = arguments.get(1).and_then(|verb| verb.to_str())?;
    let has_one = is_of_value && VERBS.contains(&verb) && !is_given;
    self::named(arguments).filter(|_| has_one)
}

/// A switch that the file has on is off by `--NAME=false`, which is no option otherwise.
fn without_switched_off(verb: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let is_switch = |key: &str| {
        let mut options = verb.get_arguments();
        options.any(|one| one.get_long() == Some(key) && !one.get_action().takes_values())
    };
    let is_off = |argument: &OsString| {
        let text = argument.to_str().and_then(|text| text.strip_prefix("--"));
        let key = text.and_then(|text| text.strip_suffix("=false"));
        key.is_some_and(is_switch)
    };
    let options = before_dashes(&arguments).count();
    let all = arguments.into_iter().enumerate();
    all.filter(|(at, argument)| *at >= options || !is_off(argument))
        .map(|(_, argument)| argument)
        .collect()
}

/// The file that is named.
fn named(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = before_dashes(arguments);
    while let Some(argument) = arguments.next() {
        let Some(rest) = argument
            .to_str()
            .and_then(|text| text.strip_prefix("--config"))
        else {
            continue;
        };
        if rest.is_empty() {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = rest.strip_prefix('=') {
            return Some(path.into());
        }
    }
    None
}

/// The options that stand on the command line.
fn given(arguments: &[OsString]) -> BTreeSet<&str> {
    let options = before_dashes(arguments).filter_map(|one| one.to_str()?.strip_prefix("--"));
    options
        .map(|option| option.split('=').next().unwrap_or(option))
        .collect()
}

/// After `--` there are no options.
fn before_dashes(arguments: &[OsString]) -> impl Iterator<Item = &OsStr> {
    let all = arguments.iter().map(OsString::as_os_str);
    all.take_while(|argument| *argument != "--")
}

fn read(path: &Path) -> Result<Table, BadConfig> {
    let failed = |source| BadConfig::Io {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(BadConfig::Long(path.to_owned()));
    }
    text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        BadConfig::Toml {
            path: path.to_owned(),
            line: before.unwrap_or_default().matches('\n').count() + 1,
            problem: error.message().to_owned(),
        }
    })
}

/// What an option is on a command line; else what it takes.
fn words(option: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, &'static str> {
    let name = OsString::from(format!("--{key}"));
    let needs_value = option
        .get_num_args()
        .is_none_or(|count| count.min_values() > 0);
    let may_be_alone = matches!(value, Value::Boolean(_)) && !needs_value;
    if !option.get_action().takes_values() || may_be_alone {
        return match value {
            Value::Boolean(true) => Ok(vec![name]),
            Value::Boolean(false) => Ok(Vec::new()),
            _ => Err("true or false"),
        };
    }
    let is_list = matches!(option.get_action(), ArgAction::Append);
    let values = match value {
        Value::Array(values) if is_list => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let takes = match is_list {
        true => "text or a number, or a list of them",
        false => "text or a number",
    };
    let mut words = Vec::new();
    for value in values {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(takes);
            }
        };
        // In one word: text that begins with dashes is a value, too.
        let mut word = name.clone();
        word.push("=");
        word.push(text);
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    /// The command line that comes of this file and these arguments after it.
    fn with(file: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        fs::write(&path, file).unwrap();
        let path = path.to_str().unwrap();
        let line = [&["vmm", "run", "--config", path], arguments].concat();
        let line = line.into_iter().map(OsString::from).collect();
        let all = expanded(line, &Cli::command()).map_err(|error| error.to_string())?;
        let all = all.into_iter().map(|one| one.into_string().unwrap());
        Ok(all.filter(|one| one != path).collect())
    }

    #[test]
    fn each_option_is_taken_by_its_name() {
        let file = "kernel = \"a b\"\nvcpus = 2\nfilter = [\"a*\", \"--x\"]\natomic = true\nnested = false\nhost-events = true\nnotrace = \"c\"";
        let expected = [
            "vmm",
            "run",
            "--atomic",
            "--filter=a*",
            "--filter=--x",
            "--host-events",
            "--kernel=a b",
            "--notrace=c",
            "--vcpus=2",
            "--config",
        ];
        assert_eq!(with(file, &[]).unwrap(), expected);
    }

    #[test]
    fn a_switch_of_the_file_is_off_where_the_command_line_says_so() {
        let file = "kernel = \"a\"\natomic = true\nargs = true";
        let all = with(file, &["--atomic=false", "--", "--args=false"]).unwrap();
        let expected = [
            "vmm",
            "run",
            "--args",
            "--kernel=a",
            "--config",
            "--",
            "--args=false",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_command_line_wins() {
        let file = "kernel = \"a\"\nfilter = [\"b\"]\ncmdline = \"c\"";
        let all = with(file, &["--filter=x", "--kernel", "y", "--", "--cmdline"]).unwrap();
        let expected = [
            "vmm",
            "run",
            "--cmdline=c",
            "--config",
            "--filter=x",
            "--kernel",
            "y",
            "--",
            "--cmdline",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_wrong_value_names_the_file_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        fs::write(&path, "kernel = \"a\"\ntrace = \"grpah\"\nmemory = 64").unwrap();
        let of = |more: &[&str]| {
            let line = [&["vmm", "run", "--config", path.to_str().unwrap()], more].concat();
            let line: Vec<OsString> = line.into_iter().map(OsString::from).collect();
            let all = expanded(line.clone(), &Cli::command()).unwrap();
            file_of(&Cli::try_parse_from(all).unwrap_err(), &line)
        };
        assert_eq!(of(&[]), Some(path.clone()));
        assert_eq!(of(&["--trace", "grpah"]), None);
        assert_eq!(of(&["--trace=graph", "--vcpus=x"]), None);
        assert_eq!(of(&["--trace=graph", "--vcpus=2", "nope"]), None);
    }

    #[test]
    fn what_is_none_is_refused_by_name() {
        let long = "#".repeat(1 << 20) + "#";
        for (file, words) in [
            ("kernle = \"a\"", "`run` has no option 'kernle'"),
            ("config = \"a\"", "no option 'config'"),
            ("atomic = 1", "atomic takes true or false"),
            ("kernel = true", "kernel takes text or a number"),
            ("kernel = [\"a\"]", "kernel takes text or a number"),
            ("filter = [true]", "or a list of them"),
            ("filter = 2020-01-01", "or a list of them"),
            ("[run]\nkernel = \"a\"", "no option 'run'"),
            ("vcpus = 2\nkernel = ", "line 2: "),
            (&long, "not a file of options"),
        ] {
            let refused = with(file, &[]).unwrap_err();
            assert!(refused.contains(words), "{words}: {refused}");
            assert!(refused.starts_with("--config "), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
        let line = ["vmm", "run", "--config=nowhere"]
            .map(OsString::from)
            .to_vec();
        let refused = expanded(line, &Cli::command()).unwrap_err().to_string();
        assert!(
            refused.starts_with("--config nowhere: No such file"),
            "{refused}"
        );
    }

    #[test]
    fn other_verbs_have_none() {
        let line = ["vmm", "report", "--config", "x"]
            .map(OsString::from)
            .to_vec();
        assert_eq!(expanded(line.clone(), &Cli::command()).unwrap(), line);
        let line = ["vmm", "run", "--", "--config", "x"]
            .map(OsString::from)
            .to_vec();
        assert_eq!(expanded(line.clone(), &Cli::command()).unwrap(), line);
    }
}
