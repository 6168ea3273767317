//! What did not fit in a trace, is missing from it or has a time that is in doubt, for the end of a report.

use std::io::{self, Write};

use super::directory::TraceDirectory;

/// How many records may have wrong times, one line for each kind, and what is missing of modules.
pub(super) fn print_doubts(trace: &TraceDirectory, out: &mut impl Write) -> io::Result<()> {
    let Some(side) = &trace.side else {
        return Ok(());
    };
    for note in &side.doubts {
        writeln!(out, "# {note}")?;
    }
    for late in side.metadata.late_modules.iter() {
        writeln!(out, "# {late}")?;
    }
    let waiting = side.metadata.waiting_modules;
    if !waiting.is_none() {
        writeln!(out, "# {waiting}")?;
    }
    let reordered = side.totals.iter().map(|totals| totals.reordered);
    let reordered = reordered.fold(0, u64::saturating_add);
    if reordered > 0 {
        writeln!(
            out,
            "# {reordered} records came after later ones: they are shown at the times of those"
        )?;
    }
    Ok(())
}

/// One line for each kind.
pub(super) fn print(trace: &TraceDirectory, out: &mut impl Write) -> io::Result<()> {
    let Some(side) = &trace.side else {
        return Ok(());
    };
    for note in &side.anomalies {
        writeln!(out, "# {note}")?;
    }
    if side.metadata.vcpus > 1 && !trace.has_times() {
        writeln!(
            out,
            "# recorded without a clock: nothing tells the order of what different CPUs recorded"
        )?;
    }
    if side.dropped > 0 {
        writeln!(out, "# {} calls could not be written to disk", side.dropped)?;
    }
    Ok(())
}
