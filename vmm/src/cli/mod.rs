//! The command line: every verb and option, and what happens with what the verb returns.

mod completing;
mod config;
#[cfg(test)]
mod named_options;
mod not_of_others;

use std::ffi::OsString;
use std::io::{self, Write};
use std::num::{IntErrorKind, ParseIntError};
use std::panic::{UnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser, Subcommand};
use terms::printable::masked;

use crate::commands;
use crate::confine;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::options::as_root::AsRoot;
use crate::verbs::attach::AttachOptions;
use crate::verbs::ctl::CtlOptions;
use crate::verbs::run::RunOptions;

/// Boots a guest on KVM and traces its functions from outside
///
/// Exit status: 0 to 99 from the guest (99 stands for 99 and more), 100 usage or bad input, 101 no
/// KVM, 102 guest crashed or its VMM killed, 103 timeout, 104 interrupted, 105 tracing failed, 106 output failed, 107 the
/// guest's kernel panicked, 108 a bug in vmm, 109 a system call that a thread of vmm may not make.
#[derive(Debug, Parser)]
#[command(name = "vmm", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(Box<RunOptions>),
    Attach(Box<AttachOptions>),
    /// List the KVM guests of this host
    ///
    /// Disturbs none of them. MEMORY is what the VMM was told to give the guest; after a ~ it is a guess, the largest
    /// piece of memory that the VMM has.
    Ps {
        /// Say which Linux each guest runs, and how much memory it has: holds each of them for a moment (some
        /// milliseconds), as `attach` does
        #[arg(long)]
        guest: bool,
        #[command(flatten)]
        as_root: AsRoot,
        /// Print the guests as JSON
        #[arg(long)]
        json: bool,
    },
    Ctl(CtlOptions),
    /// Say what this host can and cannot do for tracing, and how to mend it
    ///
    /// Tries KVM's parts one by one, and code in a tiny VM. Ends with 0 when tracing can work here,
    /// with 1 when a required part is missing. With --attach it tries whether a guest of another VMM can be traced,
    /// which holds it for some milliseconds.
    Doctor {
        /// Try a guest of another VMM: by the process of its VMM, or by the name that its VMM has for it (default: the
        /// only one of this host)
        #[arg(long, value_name = "GUEST", num_args = 0..=1)]
        attach: Option<Option<String>>,
        #[command(flatten)]
        as_root: AsRoot,
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the functions of an image that can be traced, and why the others cannot
    ///
    /// Needs no KVM. Ends with 100 when nothing in the image can be traced.
    Sites {
        /// The image: a 64-bit ELF file, or a bzImage (vmlinuz)
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
        /// Take the kernel's symbols from its System.map or its unstripped vmlinux
        #[arg(long, value_name = "FILE")]
        symbols: Option<PathBuf>,
        /// Say, too, how functions without a patch site could be traced
        #[arg(long)]
        any: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print a trace directory: what was traced and where the time went; nested calls, who calls whom, the slowest, ...
    ///
    /// For example: vmm report trace --format callers --function vfs_open
    Report {
        /// The directory that `run --output` or `ctl dump` wrote
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        how: commands::report::ReportOptions,
        #[command(flatten)]
        table: commands::report::TableOptions,
        #[command(flatten)]
        excerpt: commands::excerpt::ExcerptOptions,
    },
    /// Compare two traces: which functions got slower or faster, which appeared or vanished, and how sure that is
    ///
    /// CHANGE is of the time that functions took themselves, EACH of the same for each of their calls; it is sure where it is
    /// larger than +-, which is what the calls' spread explains (three standard errors). Two runs of the same show
    /// what else differs between runs. Ends with 1 when a --fail-if holds. For example: vmm diff before after
    /// --fail-if 'total > 10%'
    Diff {
        /// The trace directory to compare with
        #[arg(value_name = "A")]
        before: PathBuf,
        /// The other one
        #[arg(value_name = "B")]
        after: PathBuf,
        /// End with 1 if this holds for a function: appeared, vanished, or calls, total, self or avg > N% (or N calls, or a
        /// duration); of times only what is sure counts; may be given several times
        #[arg(long, value_name = "CONDITION")]
        fail_if: Vec<trace::report::condition::Condition>,
        #[command(flatten)]
        table: commands::report::TableOptions,
        #[command(flatten)]
        excerpt: commands::excerpt::ExcerptOptions,
    },
    /// Write a trace in the format of another tool
    ///
    /// For example: vmm export trace --format flamegraph -o trace.svg
    Export {
        /// The directory that `run --output` or `ctl dump` wrote
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// What to write
        #[arg(long, value_enum, value_name = "FORMAT")]
        format: commands::export::ExportFormat,
        #[command(flatten)]
        to: commands::export::Destination,
        #[command(flatten)]
        stacks: commands::stacks::StackOptions,
        #[command(flatten)]
        excerpt: commands::excerpt::ExcerptOptions,
    },
    /// Print a completion script for a shell
    ///
    /// For example: vmm completions bash > ~/.local/share/bash-completion/completions/vmm
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory: one for vmm, one for each verb (`make install` does)
    #[command(hide = true)]
    Man {
        /// Where to; it is made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Parses the command line, runs the verb, prints what failed. Returns how the process is to end.
#[must_use]
pub fn main() -> ExitStatus {
    let panics = note_panics();
    let status = caught(parsed);
    if panics.load(Ordering::Relaxed) {
        ExitStatus::Bug
    } else {
        status
    }
}

/// Notes panics of any thread from now on: one that ends a thread which nobody asks how it ended (that reads
/// the rings, or keeps the clock page) must not leave a status that says that all is well.
fn note_panics() -> Arc<AtomicBool> {
    let noted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&noted);
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        note.store(true, Ordering::Relaxed);
        let thread = std::thread::current();
        match thread.name() {
            // Where it was called from stands in files that such a thread may not read.
            Some(name) if confine::holds_threads() && name != "main" => {
                eprintln!("thread '{name}': {panic}");
            }
            _ => print(panic),
        }
    }));
    noted
}

/// A panic has a status of its own: the one that Rust gives it says *no KVM* here.
fn caught(run: impl FnOnce() -> ExitStatus + UnwindSafe) -> ExitStatus {
    catch_unwind(run).unwrap_or(ExitStatus::Bug)
}

fn parsed() -> ExitStatus {
    match completing::answered(Cli::command) {
        Ok(true) => return ExitStatus::Success,
        Ok(false) => {}
        Err(error) => return usage(&error, &[]),
    }
    let arguments = match config::expanded(std::env::args_os().collect(), &Cli::command()) {
        Ok(arguments) => arguments,
        Err(error) => return say(&Failure::bad_input(error)),
    };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            return match not_of_others::why(&error, std::env::args_os()) {
                Some(why) => say(&Failure::bad_input(why)),
                None => usage(&error, &std::env::args_os().collect::<Vec<_>>()),
            };
        }
    };
    carried_out(cli.verb).unwrap_or_else(|failure| say(&failure))
}

fn carried_out(verb: Verb) -> Result<ExitStatus, Failure> {
    match verb {
        Verb::Run(options) => commands::run::run(&options),
        Verb::Attach(options) => commands::attach::attach(&options),
        Verb::Ps {
            guest,
            as_root,
            json,
        } => commands::ps::ps(guest, as_root, json),
        Verb::Doctor {
            attach,
            as_root,
            json,
        } => {
            let attach = attach.as_ref().map(Option::as_deref);
            commands::doctor::doctor(attach, as_root, json)
        }
        Verb::Ctl(options) => commands::ctl::ctl(&options),
        Verb::Sites {
            image,
            symbols,
            any,
            json,
        } => commands::sites::sites(&image, symbols.as_deref(), any, json),
        Verb::Report {
            directory,
            how,
            table,
            excerpt,
        } => excerpt
            .excerpt()
            .and_then(|excerpt| commands::report::report(&directory, &how, excerpt, table)),
        Verb::Diff {
            before,
            after,
            fail_if,
            table,
            excerpt,
        } => excerpt
            .excerpt()
            .and_then(|excerpt| commands::diff::diff(&before, &after, excerpt, table, fail_if)),
        Verb::Export {
            directory,
            format,
            to,
            stacks,
            excerpt,
        } => excerpt.excerpt().and_then(|excerpt| {
            let watch = commands::progress::watch;
            commands::export::export(&directory, format, &excerpt, &stacks, &to, watch)
        }),
        Verb::Completions { shell } => {
            commands::completions::completions(completing::script, shell)
        }
        Verb::Man { directory } => commands::man::man(Cli::command(), &directory),
    }
}

/// Help and version are no errors, nor are readers that have seen enough of them; of the rest clap's text is made one line.
fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitStatus {
    if error.use_stderr() {
        let said = one_line(&rendered(error), &verb_of(arguments));
        let file = config::file_of(error, arguments);
        let of_file =
            file.map_or_else(String::new, |file| format!("--config {}: ", file.display()));
        return say(&Failure::bad_input(of_file + &said));
    }
    match printed(error.print()) {
        Ok(()) => ExitStatus::Success,
        Err(failure) => say(&failure),
    }
}

/// The message; what is no whole number is told what is one.
fn rendered(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(wrong) = cause.downcast_ref::<ParseIntError>() {
            return text.replace(&wrong.to_string(), no_number(wrong));
        }
        source = cause.source();
    }
    text
}

/// What a text has to be that is no number.
const fn no_number(wrong: &ParseIntError) -> &'static str {
    match wrong.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            "that is too large: write a smaller whole number"
        }
        _ => "write a whole number, as 4",
    }
}

/// What came of printing.
fn printed(printed: io::Result<()>) -> Result<(), Failure> {
    printed
        .and_then(|()| io::stdout().flush())
        .or_else(commands::stdout::taken)
}

/// The verbs of these arguments, as `vmm help` takes them.
fn verb_of(arguments: &[OsString]) -> String {
    let command = Cli::command();
    let mut within = &command;
    let mut verbs = String::new();
    for verb in arguments.iter().skip(1) {
        if let Some(found) = within.find_subcommand(verb) {
            verbs += &format!(" {}", found.get_name());
            within = found;
        }
    }
    verbs
}

/// What is wrong and clap's tips, without the usage, and where there is more of these verbs.
fn one_line(text: &str, verbs: &str) -> String {
    let told = text.split("Usage:").next().unwrap_or(text);
    let told = told.split("For more information").next().unwrap_or(told);
    let words: Vec<&str> = told.split_whitespace().collect();
    let said = words.join(" ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    format!("{said}; `vmm help{verbs}` says more")
}

fn say(failure: &Failure) -> ExitStatus {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "vmm: {}", masked(&failure.message));
    failure.status
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::ErrorKind;
    use std::path::Path;

    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn a_panic_is_a_status_that_means_nothing_else() {
        assert_eq!(super::caught(|| panic!("on purpose")).code(), 108);
        assert_eq!(super::caught(|| super::ExitStatus::NoKvm).code(), 101);
    }

    #[test]
    fn a_panic_of_a_thread_that_nobody_asks_is_noted() {
        let noted = super::note_panics();
        let thread = std::thread::spawn(|| panic!("on purpose"));
        assert!(thread.join().is_err());
        assert!(noted.load(super::Ordering::Relaxed));
    }

    #[test]
    fn who_has_seen_enough_of_the_help_is_no_failure_and_a_full_disk_is_one_that_is_said() {
        let came_of = |kind: ErrorKind| super::printed(Err(kind.into()));
        came_of(ErrorKind::BrokenPipe).unwrap();
        let full = came_of(ErrorKind::StorageFull).unwrap_err();
        assert_eq!(full.status.code(), 106);
        assert!(
            full.message.starts_with("cannot write to stdout: "),
            "{}",
            full.message
        );
    }

    #[test]
    fn more_is_said_of_the_verb_that_was_meant() {
        let verbs = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            super::verb_of(&words)
        };
        assert_eq!(verbs(&["vmm", "report", "--format", "x"]), " report");
        let filter = ["vmm", "ctl", "--control", "x", "filter", "set"];
        assert_eq!(verbs(&filter), " ctl filter set");
        assert_eq!(verbs(&["vmm", "nope"]), "");
    }

    #[test]
    fn of_what_is_no_number_it_is_said_what_is_one() {
        let said = |words: &[&str]| {
            let parsed = super::Cli::try_parse_from(words);
            super::one_line(&super::rendered(&parsed.unwrap_err()), "")
        };
        for (words, option) in [
            (
                &["vmm", "run", "--kernel", "x", "--vcpus", "two"][..],
                "--vcpus <N>",
            ),
            (&["vmm", "report", "x", "--limit", "-"], "--limit <N>"),
            (&["vmm", "report", "x", "--vcpu", ""], "--vcpu <N>"),
            (
                &["vmm", "ctl", "--control", "x", "tail", "--count", "1k"],
                "--count <N>",
            ),
            (
                &["vmm", "ctl", "--control", "x", "vcpus", "set", "z"],
                "<N>...",
            ),
        ] {
            let said = said(words);
            let is_told = said.contains(&format!("'{option}': write a whole number, as 4;"));
            assert!(is_told, "{said}");
        }
        let many = said(&["vmm", "report", "x", "--limit", &"9".repeat(30)]);
        assert!(
            many.contains("'--limit <N>': that is too large: "),
            "{many}"
        );
    }

    #[test]
    fn the_socket_may_be_named_after_the_verb_as_the_session_may() {
        for words in [
            ["vmm", "ctl", "--control", "x", "status"],
            ["vmm", "ctl", "status", "--control", "x"],
        ] {
            let parsed = super::Cli::try_parse_from(words).unwrap();
            let super::Verb::Ctl(options) = parsed.verb else {
                panic!("{words:?}");
            };
            assert_eq!(options.control().unwrap(), Path::new("x"));
        }
    }

    #[test]
    fn wrong_usage_is_told_in_one_line() {
        let missing = super::Cli::try_parse_from(["vmm", "run"]).unwrap_err();
        let line = super::one_line(&missing.render().to_string(), " run");
        assert!(line.ends_with("; `vmm help run` says more"), "{line}");
        assert!(line.contains("--kernel") && !line.contains('\n'), "{line}");
        let unknown = super::Cli::try_parse_from(["vmm", "run", "--kernle", "x"]).unwrap_err();
        let line = super::one_line(&unknown.render().to_string(), " run");
        assert!(
            line.contains("'--kernle'") && line.contains("'--kernel'"),
            "{line}"
        );
    }
}
