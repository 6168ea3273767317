//! What a shell is told while a command line is typed: beside verbs and options, the functions of the kernel, of the trace or
//! of the running guest that is named on it, and the guest's sessions.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use terms::printable::masked;
use trace::export::compact::{self, is_compact};
use trace::report::directory::TraceDirectory;

use crate::control::client;
use crate::control::method::Nothing;
use crate::control::methods::sessions::ListSessions;
use crate::control::methods::tracing::{FunctionsQuery, ListFunctions};
use crate::loader::KernelFile;

/// The variable by which a shell's script asks, with the shell's name.
const ASKED: &str = "EXOTRACE_COMPLETE";
/// As the program is called.
const NAME: &str = "vmm";
/// As it is called, too, where it is installed.
const OTHER_NAME: &str = "exotrace";
/// What stands in help where a function can be named.
const FUNCTION: &str = "GLOB";
/// The option that names a session.
const SESSION: &str = "session";
/// More than anybody looks at.
const SHOWN: usize = 500;

/// Answers a shell, if it is one that has asked. Returns whether it was.
///
/// # Errors
/// What clap says: of a shell that it does not know.
pub fn answered(command: impl Fn() -> Command) -> Result<bool, clap::Error> {
    let here = std::env::current_dir().ok();
    let factory = || with_values(command());
    CompleteEnv::with_factory(factory)
        .var(ASKED)
        .try_complete(std::env::args_os(), here.as_deref())
}

/// The script by which a shell asks.
///
/// # Errors
/// When it cannot be written, or the shell has none.
pub fn script(shell: Shell, out: &mut dyn io::Write) -> io::Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let mut script = Vec::new();
    completer.write_registration(ASKED, NAME, NAME, NAME, &mut script)?;
    if !matches!(shell, Shell::Bash | Shell::Zsh) {
        completer.write_registration(ASKED, OTHER_NAME, OTHER_NAME, NAME, &mut script)?;
        return out.write_all(&script);
    }
    // One function for both names.
    for line in String::from_utf8_lossy(&script).lines() {
        let is_for = |words: &str| line.trim_start().starts_with(words);
        let names_it = is_for("complete ") || is_for("compdef ") || is_for("#compdef ");
        match names_it && line.ends_with(NAME) {
            true => writeln!(out, "{line} {OTHER_NAME}")?,
            false => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

/// The same command, whose options know what they can be.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        if names.iter().any(|name| name == FUNCTION) {
            return arg.add(ArgValueCompleter::new(functions));
        }
        match arg.get_id() == SESSION {
            true => arg.add(ArgValueCompleter::new(sessions)),
            false => arg,
        }
    });
    command.mut_subcommands(with_values)
}

/// The words that are on the command line.
fn words() -> Vec<OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "--");
    // What is typed stands after the two hyphens.
    words.next();
    words.collect()
}

/// What this option was given.
fn given(words: &[OsString], option: &str) -> Option<PathBuf> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match text.strip_prefix(option) {
            Some("") => return words.next().map(PathBuf::from),
            Some(rest) if rest.starts_with('=') => return rest.get(1..).map(PathBuf::from),
            _ => {}
        }
    }
    None
}

fn control(words: &[OsString]) -> Option<PathBuf> {
    let said = std::env::var_os("EXOTRACE_CONTROL").map(PathBuf::from);
    given(words, "--control").or(said)
}

/// Sessions of the guest that runs.
fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(control) = control(&words()) else {
        return Vec::new();
    };
    let list = ListSessions(Nothing {});
    let answer = client::request(&control, &list).and_then(client::read::<ListSessions>);
    let list = answer.map_or_else(|_| Vec::new(), |list| list.sessions);
    candidates(list.into_iter().map(|session| session.name), current)
}

/// Functions of what is named: nothing is said where that is nothing.
fn functions(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = words();
    let kernel = given(&words, "--kernel");
    let traces = words.iter().map(Path::new).filter(|path| path.is_dir());
    let names = kernel
        .and_then(|kernel| of_kernel(&kernel))
        .or_else(|| of_guest(&control(&words)?, current))
        .or_else(|| traces.filter_map(of_trace).next());
    candidates(names.unwrap_or_default().into_iter(), current)
}

fn of_kernel(kernel: &Path) -> Option<Vec<String>> {
    let image = KernelFile::read(kernel).ok()?.image().ok()?;
    let names = image.functions.iter();
    Some(names.map(|function| function.display.to_string()).collect())
}

fn of_guest(control: &Path, current: &OsStr) -> Option<Vec<String>> {
    let glob = Some(format!("{}*", current.to_str()?));
    let query = ListFunctions(FunctionsQuery { glob });
    let answer = client::request(control, &query).ok()?;
    let functions = client::read::<ListFunctions>(answer).ok()?.functions;
    Some(
        functions
            .into_iter()
            .map(|function| function.name)
            .collect(),
    )
}

fn of_trace(directory: &Path) -> Option<Vec<String>> {
    if is_compact(directory) {
        let functions = compact::functions(directory).ok()?.into_iter();
        return Some(functions.map(|one| one.display.to_string()).collect());
    }
    let trace = TraceDirectory::open(directory).ok()?;
    let names = trace.names.sorted().into_iter();
    Some(names.map(|(_, name)| name.to_owned()).collect())
}

/// Those that begin as what is typed does. A guest may have told them: a terminal obeys nothing in them.
fn candidates(names: impl Iterator<Item = String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with(&*begun))
        .map(|name| masked(&name).into_owned())
        .collect();
    names.sort();
    names.dedup();
    names.truncate(SHOWN);
    names.into_iter().map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_with_their_values() {
        let words = ["vmm", "run", "--kernel", "a", "--control=b"].map(OsString::from);
        assert_eq!(given(&words, "--kernel"), Some("a".into()));
        assert_eq!(given(&words, "--control"), Some("b".into()));
        assert_eq!(given(&words, "--output"), None);
        assert_eq!(given(&words[..3], "--kernel"), None);
    }

    #[test]
    fn candidates_begin_as_what_is_typed_are_few_and_do_nothing_to_a_terminal() {
        let names = (0..1000).map(|number| format!("f{number}"));
        let names = names.chain(["g\u{1b}[2J".to_owned()]);
        let names: Vec<String> = names.collect();
        let of = |current: &str| candidates(names.iter().cloned(), OsStr::new(current));
        assert_eq!(of("f").len(), SHOWN);
        assert_eq!(of("f99").len(), 11);
        let shown = of("g");
        assert!(!shown[0].get_value().to_string_lossy().contains('\u{1b}'));
    }
}
