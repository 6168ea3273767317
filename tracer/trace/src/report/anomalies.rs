//! What did not fit in a trace, is missing from it, has a time that is in doubt or was waited for, for the end of a report.

use std::io::{self, Write};

use super::directory::TraceDirectory;

/// All of it, and how long vCPUs waited for the reader.
pub(super) fn all(trace: &TraceDirectory) -> Vec<String> {
    let mut lines = doubtful(trace);
    lines.extend(waits(trace));
    lines
}

/// What did not fit, where that is known of a trace, and what is in doubt.
pub(super) fn doubtful(trace: &TraceDirectory) -> Vec<String> {
    let mut lines = unfit(trace);
    lines.extend(doubts(trace));
    lines
}

/// The same without that it is not whole, and without what has a moment of its own: how often the clock stood still.
pub(crate) fn in_doubt(trace: &TraceDirectory) -> Vec<String> {
    let mut lines = unfit(trace);
    lines.extend(doubts_of_times(trace));
    lines
}

/// All of it for who has no place where to say it. That a trace is not whole is said of any.
pub(crate) fn without_place(trace: &TraceDirectory) -> Vec<String> {
    let mut lines = in_doubt(trace);
    lines.extend(stalls(trace));
    lines.extend(waits(trace));
    lines
}

fn unfit(trace: &TraceDirectory) -> Vec<String> {
    match trace.is_graph() {
        true => anomalies(trace),
        false => Vec::new(),
    }
}

/// That it is not whole, how many records may have wrong times, one line for each kind, and what is missing of modules.
pub(super) fn doubts(trace: &TraceDirectory) -> Vec<String> {
    let mut lines: Vec<String> = trace.remark.iter().cloned().collect();
    lines.extend(doubts_of_times(trace));
    lines.extend(stalls(trace));
    lines
}

/// The same without that it is not whole, and how often the clock stood still.
fn doubts_of_times(trace: &TraceDirectory) -> Vec<String> {
    let Some(side) = &trace.side else {
        return Vec::new();
    };
    let doubts = side.doubts.iter().map(ToString::to_string);
    let mut lines: Vec<String> = doubts.collect();
    lines.extend(
        side.metadata
            .late_modules
            .iter()
            .map(|late| late.to_string()),
    );
    let waiting = side.metadata.waiting_modules;
    if !waiting.is_none() {
        lines.push(waiting.to_string());
    }
    let reordered = side.totals.iter().map(|totals| totals.reordered);
    let reordered = reordered.fold(0, u64::saturating_add);
    if reordered > 0 {
        lines.push(format!(
            "{reordered} records came after later ones: they are shown at the times of those"
        ));
    }
    lines
}

/// How often and how long the clock stood still, in a line.
fn stalls(trace: &TraceDirectory) -> Option<String> {
    trace.side.as_ref()?.stalls_said()
}

/// How long vCPUs waited for the reader, in a line.
pub(super) fn waits(trace: &TraceDirectory) -> Option<String> {
    trace.side.as_ref()?.waits_said()
}

/// What did not fit, one line for each kind.
fn anomalies(trace: &TraceDirectory) -> Vec<String> {
    let Some(side) = &trace.side else {
        return Vec::new();
    };
    let mut lines: Vec<String> = side.anomalies.iter().map(ToString::to_string).collect();
    if side.metadata.vcpus > 1 && !trace.has_times() {
        lines.push(
            "recorded without a clock: nothing tells the order of what different CPUs recorded"
                .to_owned(),
        );
    }
    if side.dropped > 0 {
        lines.push(format!(
            "{} calls could not be written to disk{}",
            side.dropped,
            // They were counted before they were written.
            if side.anomalies.is_empty() {
                ""
            } else {
                ": calls that are counted above can be among them"
            }
        ));
    }
    lines
}

/// Remarks below what they are about.
pub(super) fn print(remarks: &[String], out: &mut impl Write) -> io::Result<()> {
    remarks
        .iter()
        .try_for_each(|remark| writeln!(out, "# {remark}"))
}
