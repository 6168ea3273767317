//! `vmm export`: a trace in the formats of other tools. Needs no KVM.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use trace::convert::{chrome, ctf, html, perfetto, trace_dat};
use trace::export::uftrace::writer_of;
use trace::graph::excerpt::Excerpt;
use trace::report::calls::Calls;
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, ReportError, unfinished};

use super::stacks::StackOptions;
use super::stdout;
use super::whole_directory::WholeDirectory;
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
    /// Perfetto's own format, for traces that are too large as JSON; of traces without returns, too.
    Perfetto,
    /// trace.dat for trace-cmd and KernelShark; of traces without returns, too.
    TraceDat,
    /// The Common Trace Format 1.8, a directory (-o), for babeltrace2 and Trace Compass; of traces without returns, too.
    Ctf,
    /// One page for a browser, without network: what was traced, timeline, slowest calls, functions, flame graph; of traces
    /// without returns, too.
    Html,
}

impl ExportFormat {
    /// What of these options it knows nothing of.
    fn has_no_such(self, stacks: &StackOptions) -> Option<&'static str> {
        let is_drawn = matches!(self, Self::Flamegraph | Self::Html);
        let has_stacks = is_drawn || self == Self::Folded;
        if stacks.values && !has_stacks {
            return Some(
                "--values: is about the stacks of folded, flamegraph and html; chrome and perfetto have the values of every call anyway",
            );
        }
        if stacks.before.is_some() && !has_stacks {
            return Some(
                "--before: is about the stacks of folded, flamegraph and html; `vmm diff` compares functions",
            );
        }
        (stacks.icicle && !is_drawn)
            .then_some("--icicle: only the stacks of flamegraph and html are drawn")
    }
}

/// Writes the trace in `directory` to `file`, or to stdout.
///
/// # Errors
/// When the directory is no trace, or none that the format has a place for, a damaged one, or one that lacks calls that were written, or the output cannot
/// be written. What is there is written all the same.
pub fn export(
    directory: &Path,
    format: ExportFormat,
    excerpt: &Excerpt,
    stacks: &StackOptions,
    file: Option<&Path>,
) -> Result<ExitStatus, Failure> {
    let has_stacks = matches!(format, ExportFormat::Folded | ExportFormat::Flamegraph);
    if let Some(message) = format.has_no_such(stacks) {
        return Err(Failure::bad_input(message));
    }
    // Asked first: a trace that is completed meanwhile is read as a whole.
    let writer = writer_of(directory);
    let trace = TraceDirectory::open(directory).map_err(Failure::bad_input)?;
    let is_for_graphs = has_stacks || format == ExportFormat::Chrome;
    if !trace.is_graph() && is_for_graphs {
        return Err(ReportError::NotAGraph("export").into());
    }
    let calls = Calls::open(&trace, excerpt).map_err(Failure::bad_input)?;
    let outcome = match file {
        Some(path) if format == ExportFormat::Ctf => write_directory(&trace, calls, path),
        None if format == ExportFormat::Ctf => {
            let message = "--format ctf: is a directory: name one with -o";
            return Err(Failure::bad_input(message));
        }
        Some(path) => write_file(&trace, calls, format, stacks, path),
        None => match write(
            &trace,
            calls,
            format,
            stacks,
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

/// The same into a directory, which is there when it is complete.
fn write_directory(
    trace: &TraceDirectory,
    mut calls: Calls,
    path: &Path,
) -> Result<Option<Missing>, Failure> {
    let failed = |error| Failure::output(format!("cannot write {}: {error}", path.display()));
    let directory = WholeDirectory::create(path).map_err(failed)?;
    let note = |note: &str| log::warn!("{note}");
    let events = ctf(trace, &mut calls, note, directory.path()).map_err(|error| match error {
        ReportError::Output(error) => failed(error),
        other => other.into(),
    })?;
    directory.put().map_err(failed)?;
    let missing = Missing::of(trace, calls.entries());
    Ok(missing.or_else(|| Missing::of_events(trace, events)))
}

/// The same into a file, which is there when it is complete.
fn write_file(
    trace: &TraceDirectory,
    calls: Calls,
    format: ExportFormat,
    stacks: &StackOptions,
    path: &Path,
) -> Result<Option<Missing>, Failure> {
    let failed = |error| Failure::output(format!("cannot write {}: {error}", path.display()));
    let file = WholeFile::create(path).map_err(failed)?;
    let out = BufWriter::new(&file);
    let missing = write(trace, calls, format, stacks, out).map_err(|error| match error {
        ReportError::Output(error) => failed(error),
        other => other.into(),
    })?;
    file.put().map_err(failed)?;
    Ok(missing)
}

/// The flame graph of a page, of what was recorded with returns; none where no call is of known duration.
fn page_flamegraph(
    trace: &TraceDirectory,
    calls: &mut Calls,
    stacks: &StackOptions,
) -> Result<Option<String>, ReportError> {
    if !trace.is_graph() {
        return Ok(None);
    }
    // What is met on the way is met again by what the page tells.
    let folded = stacks.folded(trace, calls, |_: &str| ())?;
    if folded.is_empty() {
        return Ok(None);
    }
    let mut svg = Vec::new();
    stacks.draw(trace, &folded, &mut svg)?;
    Ok(Some(String::from_utf8_lossy(&svg).into_owned()))
}

/// Returns what the trace should have and has not.
fn write(
    trace: &TraceDirectory,
    mut calls: Calls,
    format: ExportFormat,
    stacks: &StackOptions,
    mut out: impl Write,
) -> Result<Option<Missing>, ReportError> {
    let note = |note: &str| log::warn!("{note}");
    let events = match format {
        ExportFormat::TraceDat => {
            let scratch = tempfile::tempfile;
            Some(trace_dat(trace, &mut calls, note, scratch, &mut out)?)
        }
        ExportFormat::Perfetto => Some(perfetto(trace, &mut calls, note, &mut out)?),
        ExportFormat::Chrome => Some(chrome(trace, &mut calls, note, &mut out)?),
        ExportFormat::Ctf => {
            let is_none = io::Error::new(io::ErrorKind::InvalidInput, "it is a directory");
            return Err(ReportError::Output(is_none));
        }
        ExportFormat::Folded => {
            let folded = stacks.folded(trace, &mut calls, note)?;
            out.write_all(&folded).map_err(ReportError::Output)?;
            None
        }
        ExportFormat::Html => {
            let flamegraph = page_flamegraph(trace, &mut calls, stacks)?;
            let printed = html(trace, &calls.excerpt, flamegraph.as_deref(), &mut out)?;
            printed.notes.iter().for_each(|note| log::warn!("{note}"));
            out.flush().map_err(ReportError::Output)?;
            // Calls and events: it has counted both.
            return Ok(printed.missing);
        }
        ExportFormat::Flamegraph => {
            let folded = stacks.folded(trace, &mut calls, note)?;
            stacks.draw(trace, &folded, &mut out)?;
            None
        }
    };
    out.flush().map_err(ReportError::Output)?;
    let missing = Missing::of(trace, calls.entries());
    Ok(missing.or_else(|| Missing::of_events(trace, events?)))
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
        let excerpt = Excerpt::default();
        let stacks = StackOptions::default();
        let flamegraph = ExportFormat::Flamegraph;
        let error = export(&trace, flamegraph, &excerpt, &stacks, Some(&file)).unwrap_err();
        let message = error.message;
        assert!(message.contains("no call of known duration"), "{message}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        export(&trace, ExportFormat::Chrome, &excerpt, &stacks, Some(&file)).unwrap();
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .starts_with("{\"displayTimeUnit\"")
        );
    }
}
