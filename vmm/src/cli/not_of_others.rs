//! What `vmm run` can do with a guest of its own and `vmm attach` cannot with another VMM's: why not, and what to do.

use std::ffi::OsString;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Each option, why a guest of another VMM cannot have it, and what there is instead.
const REFUSED: [(&str, &str); 9] = [
    (
        "--attach-at",
        "the guest runs already, and stopping it at a function takes an exit to its VMM: tracing begins when you attach",
    ),
    (
        "--smp-locks",
        "it is changed before a guest starts, and this one runs already",
    ),
    (
        "--module",
        "modules are read from the guest's memory, without their files",
    ),
    (
        "--timeout",
        "the guest is not ours to end: --duration lets it go after a time",
    ),
    ("--initrd", STARTED),
    ("--cmdline", STARTED),
    ("--vcpus", STARTED),
    ("--memory", STARTED),
    ("--nested", STARTED),
];
const STARTED: &str = "another VMM has started the guest, and decided that";

/// Why this is refused, if it is one of these after `attach`.
pub fn why(error: &Error, arguments: impl IntoIterator<Item = OsString>) -> Option<String> {
    let verb = arguments.into_iter().nth(1)?;
    if verb != "attach" || error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (option, why) = REFUSED.iter().find(|(option, _)| option == named)?;
    Some(format!("{option}: not with `vmm attach`: {why}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    fn said(words: &[&str]) -> Option<String> {
        let error = Cli::try_parse_from(words).unwrap_err();
        why(&error, words.iter().map(OsString::from))
    }

    /// The long options of a verb.
    fn options(verb: &str) -> BTreeSet<String> {
        let command = Cli::command();
        let verb = command.find_subcommand(verb).unwrap();
        let long = verb.get_arguments().filter_map(clap::Arg::get_long);
        long.map(|name| format!("--{name}")).collect()
    }

    /// Whatever `vmm run` has and `vmm attach` has not says why, and nothing else does.
    #[test]
    fn options_that_a_guest_of_another_vmm_cannot_have_are_refused_by_name() {
        let attach = options("attach");
        let missing: BTreeSet<String> = options("run").difference(&attach).cloned().collect();
        let listed: BTreeSet<String> = REFUSED.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, missing);
        for (option, why) in REFUSED {
            for words in [
                vec!["vmm", "attach", "build-7", option, "x"],
                vec!["vmm", "attach", option],
            ] {
                let said = said(&words).unwrap_or_else(|| panic!("{words:?}"));
                assert!(said.starts_with(option) && said.contains(why), "{said}");
            }
        }
        let equals = said(&["vmm", "attach", "--attach-at=x"]);
        assert!(equals.unwrap().starts_with("--attach-at: "));
    }

    #[test]
    fn other_mistakes_are_told_as_ever() {
        assert_eq!(said(&["vmm", "attach", "--kernle"]), None);
        assert_eq!(said(&["vmm", "ctl", "--attach-at"]), None);
        assert_eq!(said(&["vmm", "attach", "--mode", "x"]), None);
    }
}
