//! `vmm diff`: two trace directories compared. Needs no KVM.

use std::path::Path;

use trace::graph::excerpt::Excerpt;
use trace::report::condition::Condition;
use trace::report::diff::{Comparison, compare};

use super::page::Page;
use super::progress;
use super::report::TableOptions;
use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Prints how the trace in `after` differs from the one in `before` on stdout, remarks and conditions that hold on stderr.
///
/// # Errors
/// When one of the directories is no trace, a damaged one, or one that lacks calls that were written, or, where there are
/// conditions, one that was not ended in order; or stdout does not take the table.
pub fn diff(
    before: &Path,
    after: &Path,
    excerpt: Excerpt,
    table: TableOptions,
    conditions: Vec<Condition>,
) -> Result<ExitStatus, Failure> {
    let (watch, page) = progress::until_written(None, Page::on_stdout());
    let comparison = Comparison {
        watch,
        excerpt,
        conditions,
        notation: table.notation(),
        rows: table.into(),
    };
    let compared = compare(before, after, &comparison, page)?;
    // Who has seen enough of the table is told all the same what holds.
    compared.printed.or_else(stdout::taken)?;
    for note in compared.notes {
        log::warn!("{note}");
    }
    if let Some(missing) = compared.missing.into_iter().next() {
        return Err(Failure::bad_input(missing));
    }
    for failed in &compared.failed {
        log::error!("{failed}");
    }
    if let Some(unknown) = compared.unknown.into_iter().next() {
        let message = format!("{unknown}; whether the conditions hold is not known");
        return Err(Failure::bad_input(message));
    }
    Ok(match compared.failed.is_empty() {
        true => ExitStatus::Success,
        false => ExitStatus::CheckFailed,
    })
}
