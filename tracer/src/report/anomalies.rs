//! What did not fit in a graph trace, for the end of a report.

use std::io::{self, Write};

use super::directory::TraceDirectory;

/// One line for each kind.
pub(super) fn print(trace: &TraceDirectory, out: &mut impl Write) -> io::Result<()> {
    let Some(side) = &trace.side else {
        return Ok(());
    };
    for note in &side.anomalies {
        let (count, text, thread) = (note.count, note.kind.text(), note.thread);
        let function = note.function.replace(char::is_control, "?");
        writeln!(out, "# {count} {text} (first: {function}, thread-{thread})")?;
    }
    if side.dropped > 0 {
        writeln!(out, "# {} calls could not be written to disk", side.dropped)?;
    }
    Ok(())
}
