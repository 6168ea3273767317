//! Cases like uftrace's tests.

use super::{Case, Ground, Suite};

const fn passes(name: &'static str, behaviour: &'static str, command: &'static str) -> Case {
    Case::passes(Suite::Uftrace, name, &[Ground::Bundled], behaviour, command)
}

/// The cases, in the order of the page.
pub(super) const CASES: &[Case] = &[
    passes(
        "filter_subtree",
        "of a function, it and what it calls",
        "report DIR --format graph --graph-function calls_twig",
    ),
    passes(
        "filter_notrace",
        "neither a function nor what it calls",
        "report DIR --format graph --graph-notrace calls_trunk",
    ),
    passes(
        "filter_depth",
        "calls down to a depth, when it is read and when it is recorded",
        "report DIR --format graph --max-depth 2",
    ),
    passes(
        "filter_time",
        "calls that took at least so long, and those that had them made",
        "report DIR --format graph --threshold 100us",
    ),
    passes(
        "hide",
        "not a function, but what it calls, in its place",
        "report DIR --format graph --hide 'calls_b*'",
    ),
    passes(
        "filter_size",
        "functions of at least so many bytes",
        "report DIR --format counts --min-size 64",
    ),
    passes(
        "filter_location",
        "functions of a source file, when it is recorded: from the start, by an attachment, and in a filter that is changed",
        "run --trace graph --filter file:calls.rs",
    ),
    passes(
        "filter_caller",
        "the ways to a function, and nothing else",
        "report DIR --format graph --callers calls_bough",
    ),
    passes(
        "live_toggle",
        "recording off and on while it runs: what was called meanwhile is not there, and is not lost",
        "ctl tracing-off",
    ),
    passes(
        "recursion_total",
        "of a function that calls itself, the total time is that of the outermost calls",
        "report DIR --format counts",
    ),
    passes(
        "time_range",
        "what was between two times",
        "report DIR --from 12.5ms --to 13ms",
    ),
    passes(
        "dwarf_arguments",
        "arguments and return values by the debug information, without a word of how",
        "run --trace graph --args --retval",
    ),
    passes(
        "csv",
        "a table as comma-separated values, with the same numbers",
        "report DIR --format counts --csv",
    ),
];
