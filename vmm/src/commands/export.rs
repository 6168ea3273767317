//! `vmm export`: a graph trace in the formats of other tools. Needs no KVM.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use inferno::flamegraph;
use trace::convert::{chrome, folded, weight};
use trace::export::folded::Weight;
use trace::export::uftrace::writer_of;
use trace::graph::selection::Rules;
use trace::report::calls::Calls;
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, ReportError, unfinished};

use super::stdout;
use super::whole_file::WholeFile;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Folded stacks with nanoseconds (calls, where a trace has no times), for flame graph tools.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// JSON for Chrome's trace viewer and Perfetto.
    Chrome,
}

/// Writes the trace in `directory` to `file`, or to stdout. In stacks a call's arguments are part of its name
/// if `with_values`.
///
/// # Errors
/// When the directory is no graph trace, a damaged one, or one that lacks calls that were written, or the output cannot
/// be written. What is there is written all the same.
pub fn export(
    directory: &Path,
    format: ExportFormat,
    rules: &Rules,
    with_values: bool,
    file: Option<&Path>,
) -> Result<ExitStatus, Failure> {
    if with_values && format == ExportFormat::Chrome {
        let message = "--values: is about the stacks of folded and flamegraph; chrome has the values of every call anyway";
        return Err(Failure::bad_input(message));
    }
    // Asked first: a trace that is completed meanwhile is read as a whole.
    let writer = writer_of(directory);
    let trace = TraceDirectory::open(directory).map_err(Failure::bad_input)?;
    if !trace.is_graph() {
        return Err(ReportError::NotAGraph("export").into());
    }
    let calls = Calls::open(&trace, rules.clone()).map_err(Failure::bad_input)?;
    let outcome = match file {
        Some(path) => write_file(&trace, calls, format, with_values, path),
        None => match write(
            &trace,
            calls,
            format,
            with_values,
            BufWriter::new(io::stdout().lock()),
        ) {
            Err(ReportError::Output(error)) => stdout::taken(error).map(|()| None),
            other => other.map_err(Failure::bad_input),
        },
    };
    if let Some(note) = unfinished(&trace, writer) {
        log::warn!("{note}");
    }
    match outcome? {
        Some(missing) => Err(Failure::bad_input(missing)),
        None => Ok(ExitStatus::Success),
    }
}

/// The same into a file, which is there when it is complete.
fn write_file(
    trace: &TraceDirectory,
    calls: Calls,
    format: ExportFormat,
    with_values: bool,
    path: &Path,
) -> Result<Option<Missing>, Failure> {
    let failed = |error| Failure::output(format!("cannot write {}: {error}", path.display()));
    let file = WholeFile::create(path).map_err(failed)?;
    let out = BufWriter::new(&file);
    let missing = write(trace, calls, format, with_values, out).map_err(|error| match error {
        ReportError::Output(error) => failed(error),
        other => other.into(),
    })?;
    file.put().map_err(failed)?;
    Ok(missing)
}

/// Returns what the trace should have and has not.
fn write(
    trace: &TraceDirectory,
    mut calls: Calls,
    format: ExportFormat,
    with_values: bool,
    mut out: impl Write,
) -> Result<Option<Missing>, ReportError> {
    let mut events = None;
    let note = |note: &str| log::warn!("{note}");
    match format {
        ExportFormat::Chrome => events = Some(chrome(trace, &mut calls, note, &mut out)?),
        ExportFormat::Folded => out
            .write_all(&folded(trace, &mut calls, with_values, note)?)
            .map_err(ReportError::Output)?,
        ExportFormat::Flamegraph => {
            let folded = folded(trace, &mut calls, with_values, note)?;
            draw(weight(trace), &folded, &mut out)?;
        }
    }
    out.flush().map_err(ReportError::Output)?;
    let missing = Missing::of(trace, calls.entries());
    Ok(missing.or_else(|| Missing::of_events(trace, events?)))
}

fn draw(weight: Weight, folded: &[u8], out: &mut impl Write) -> Result<(), ReportError> {
    let mut options = flamegraph::Options::default();
    options.title = "exotrace".to_owned();
    options.count_name = weight.unit().to_owned();
    if folded.is_empty() {
        let nothing = "the trace has no call of known duration to draw";
        return Err(ReportError::Output(io::Error::other(nothing)));
    }
    flamegraph::from_reader(&mut options, folded, out)
        .map_err(|error| ReportError::Output(io::Error::other(error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trace::export::uftrace::layout::Text;
    use trace::export::uftrace::{GRAPH, Metadata, UftraceWriter};

    use super::*;

    #[test]
    fn what_stood_there_stays_when_nothing_can_be_exported() {
        let folder = tempfile::tempdir().unwrap();
        let [trace, file] = ["trace", "calls.svg"].map(|name| folder.path().join(name));
        let text = Text {
            functions: &[],
            limit: None,
        };
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let writer = UftraceWriter::create(&trace, text, metadata, false).unwrap();
        writer.finish().unwrap();
        fs::write(&file, "before").unwrap();
        let rules = Rules::default();
        let error =
            export(&trace, ExportFormat::Flamegraph, &rules, false, Some(&file)).unwrap_err();
        let message = error.message;
        assert!(message.contains("no call of known duration"), "{message}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        export(&trace, ExportFormat::Chrome, &rules, false, Some(&file)).unwrap();
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .starts_with("{\"displayTimeUnit\"")
        );
    }
}
