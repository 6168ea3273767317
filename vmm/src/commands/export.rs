//! `vmm export`: a trace in the formats of other tools. Needs no KVM.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
#[cfg(feature = "parquet")]
use trace::convert::parquet;
use trace::convert::{chrome, ctf, html, perfetto, trace_dat};
use trace::export::compact::{convert, is_compact};
use trace::export::uftrace::writer_of;
use trace::graph::excerpt::Excerpt;
use trace::report::calls::Calls;
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, ReportError, Watch};

use super::stacks::StackOptions;
use super::stdout;
use super::whole_directory::{MayGo, WholeDirectory};
use super::whole_file::WholeFile;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Folded stacks with nanoseconds (calls, where a trace has no times or no returns), for flame graph tools.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// JSON for Chrome's trace viewer and Perfetto.
    Chrome,
    /// Perfetto's own format, for traces that are too large as JSON.
    Perfetto,
    /// trace.dat for trace-cmd and KernelShark. With --host FILE what the host did (`run
    /// --host-events`) is a file of its own, which both show beside the guest's.
    TraceDat,
    /// The Common Trace Format 1.8, a directory (-o), for babeltrace2 and Trace Compass.
    Ctf,
    /// Tables for DuckDB, Spark, ClickHouse: a directory (-o) with calls, events, functions and losses.
    #[cfg(feature = "parquet")]
    Parquet,
    /// A directory (-o) in uftrace's own format, of a compact trace (`--store compact`).
    Uftrace,
    /// One page for a browser, without network: what was traced, timeline, slowest calls, functions, flame graph.
    Html,
}

impl ExportFormat {
    /// Whether it is a directory, and no file.
    const fn is_directory(self) -> bool {
        match self {
            #[cfg(feature = "parquet")]
            Self::Parquet => true,
            other => matches!(other, Self::Ctf | Self::Uftrace),
        }
    }

    /// What tells a directory of this format, and nothing else, from others.
    const fn is_alone_in(self) -> MayGo {
        match self {
            #[cfg(feature = "parquet")]
            Self::Parquet => trace::export::parquet::is_alone_in,
            _ => trace::export::ctf::is_alone_in,
        }
    }

    /// Whether it is a file, and no text.
    const fn is_binary(self) -> bool {
        matches!(self, Self::Perfetto | Self::TraceDat)
    }

    /// What of these options it knows nothing of.
    fn has_no_such(self, stacks: &StackOptions, to: &Destination) -> Option<&'static str> {
        if to.host.is_some() && self != Self::TraceDat {
            return Some(
                "--host: only trace-dat has a file for the host; the others have all in one",
            );
        }
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

/// Where it is written to.
#[derive(Debug, Clone, Default, Args)]
pub struct Destination {
    /// Where to, instead of stdout; of ctf and parquet a directory
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write what the host did (`run --host-events`) to a file of its own (trace-dat)
    #[arg(long, value_name = "FILE")]
    pub host: Option<PathBuf>,
    /// Replace a file that exists, or a directory that is an older such export (ctf, parquet), when the new one is complete
    #[arg(long, requires = "output")]
    pub force: bool,
}

impl Destination {
    /// What exists is somebody's; a pipe or a device is there to be written to. Two files that are one would be the later one.
    fn check(&self) -> Result<(), Failure> {
        let both = self.output.as_deref().zip(self.host.as_deref());
        if let Some((file, _)) = both.filter(|(file, host)| is_same(file, host)) {
            return Err(Failure::bad_input(format!(
                "-o and --host are one file, {}: name two",
                file.display()
            )));
        }
        let files = self.output.iter().chain(&self.host);
        match files.filter(|_| !self.force).find(|file| file.is_file()) {
            None => Ok(()),
            Some(file) => Err(Failure::bad_input(format!(
                "{} exists; --force replaces it",
                file.display()
            ))),
        }
    }
}

/// Whether these are one file, or would be if they were there.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let found = path.canonicalize();
        found.or_else(|_| {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            Ok::<_, io::Error>(folder.join(path.file_name().unwrap_or_default()))
        })
    };
    let is_kept = |place: &PathBuf| place.is_file() || !place.exists();
    let places = place(one).ok().zip(place(other).ok());
    places.is_some_and(|(one, other)| one == other && is_kept(&one))
}

/// Whether such a thing can be written there.
fn check(
    format: ExportFormat,
    stacks: &StackOptions,
    to: &Destination,
    stdout_is_terminal: bool,
) -> Result<(), Failure> {
    if let Some(message) = format.has_no_such(stacks, to) {
        return Err(Failure::bad_input(message));
    }
    if to.output.is_none() && stdout_is_terminal && format.is_binary() {
        let name = format.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        return Err(Failure::bad_input(format!(
            "--format {name}: is no text for a terminal: name a file with -o, or send it into a pipe"
        )));
    }
    to.check()
}

/// Writes the trace in `directory` to a file, which `watch` gives somebody to watch, or to stdout.
///
/// # Errors
/// When the directory is no trace, a damaged one, or one that lacks calls that were written, or the output cannot
/// be written. What is there is written all the same.
pub fn export(
    directory: &Path,
    format: ExportFormat,
    excerpt: &Excerpt,
    stacks: &StackOptions,
    to: &Destination,
    watch: impl FnOnce(Option<u64>) -> io::Result<Watch>,
) -> Result<ExitStatus, Failure> {
    check(format, stacks, to, io::stdout().is_terminal())?;
    if format == ExportFormat::Uftrace {
        return uftrace(directory, excerpt, to, watch);
    }
    let trace = TraceDirectory::open(directory).map_err(Failure::bad_input)?;
    if to.host.is_some() && !trace.has_host_events().map_err(Failure::bad_input)? {
        return Err(Failure::bad_input(format!(
            "--host: {} has nothing that the host did: record with --host-events",
            directory.display()
        )));
    }
    let mut calls = Calls::open(&trace, excerpt).map_err(Failure::bad_input)?;
    if to.output.is_some() {
        calls.watch = watch(Missing::written(&trace)).map_err(Failure::bad_input)?;
    }
    let host = to.host.as_deref().map(HostFile::create).transpose()?;
    let outcome = match to.output.as_deref() {
        Some(path) if format.is_directory() => write_directory(&trace, calls, format, to, path),
        None if format.is_directory() => {
            let name = format.to_possible_value();
            let name = name.as_ref().map_or("", |name| name.get_name());
            let message = format!("--format {name}: is a directory: name one with -o");
            return Err(Failure::bad_input(message));
        }
        Some(path) => write_file(&trace, calls, format, stacks, path, host.as_ref()),
        None => match write(
            &trace,
            calls,
            format,
            stacks,
            BufWriter::new(io::stdout().lock()),
            host.as_ref(),
        ) {
            Err(ReportError::Output(error)) => stdout::taken(error).map(|()| None),
            other => other.map_err(|error| explained(error, host.as_ref())),
        },
    };
    // What is printed on a page is said by who prints it, and damage at the end.
    if format != ExportFormat::Html
        && let Some(note) = trace.remark.as_ref().filter(|_| !trace.is_damaged)
    {
        log::warn!("{note}");
    }
    let missing = outcome?;
    if let Some(HostFile { file, path }) = host {
        file.put().map_err(cannot_write(path))?;
    }
    match missing {
        Some(missing) => Err(Failure::bad_input(missing)),
        None => Ok(ExitStatus::Success),
    }
}

/// Puts a compact trace together in a directory of its own, which is there when it is complete.
fn uftrace(
    directory: &Path,
    excerpt: &Excerpt,
    to: &Destination,
    watch: impl FnOnce(Option<u64>) -> io::Result<Watch>,
) -> Result<ExitStatus, Failure> {
    let bad = |message: &str| Err(Failure::bad_input(format!("--format uftrace: {message}")));
    let Some(path) = to.output.as_deref() else {
        return bad("is a directory: name one with -o");
    };
    if *excerpt != Excerpt::default() {
        return bad("has the whole trace: choose a part of it when you read it");
    }
    if !is_compact(directory) {
        return bad("is for compact traces; this one is a uftrace directory already");
    }
    let writer = writer_of(directory);
    let failed = cannot_write(path);
    // What is there can be the only trace of what it tells.
    let whole = WholeDirectory::create(path, None).map_err(&failed)?;
    let watch = watch(None).map_err(Failure::bad_input)?;
    let replayed = convert(directory, whole.path(), true, &watch)?;
    whole.put().map_err(failed)?;
    match (writer, replayed.remark) {
        _ if replayed.is_finished => {}
        (_, Some(damage)) if replayed.is_damaged => return Err(Failure::bad_input(damage)),
        (Some(writer), _) => log::warn!("the trace is being written by {writer}"),
        (None, Some(remark)) => log::warn!("the trace was not ended in order: {remark}"),
        (None, None) => log::warn!("the trace was not ended in order: its end may be missing"),
    }
    Ok(ExitStatus::Success)
}

/// The file of what the host did, until it is complete.
struct HostFile<'a> {
    file: WholeFile,
    path: &'a Path,
}

impl<'a> HostFile<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        let file = WholeFile::create(path).map_err(cannot_write(path))?;
        Ok(Self { file, path })
    }
}

/// What an error is, that may be one of the host's file.
fn explained(error: ReportError, host: Option<&HostFile<'_>>) -> Failure {
    match (error, host) {
        (ReportError::HostOutput(error), Some(host)) => cannot_write(host.path)(error),
        (other, _) => other.into(),
    }
}

/// What an error of the system is, for who wants something written there.
fn cannot_write(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::output(format!("cannot write {}: {error}", path.display()))
}

/// The same into a directory, which is there when it is complete.
fn write_directory(
    trace: &TraceDirectory,
    mut calls: Calls,
    format: ExportFormat,
    to: &Destination,
    path: &Path,
) -> Result<Option<Missing>, Failure> {
    let failed = cannot_write(path);
    let old = to.force.then_some(format.is_alone_in());
    let directory = WholeDirectory::create(path, old).map_err(&failed)?;
    let note = |note: &str| log::warn!("{note}");
    let into = directory.path();
    let written = match format {
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => parquet(trace, &mut calls, note, into),
        _ => ctf(trace, &mut calls, note, into),
    };
    let events = written.map_err(|error| match error {
        ReportError::Output(error) => failed(error),
        other => other.into(),
    })?;
    directory.put().map_err(failed)?;
    let missing = Missing::of(trace, &calls);
    Ok(missing.or_else(|| Missing::of_events(trace, events)))
}

/// The same into a file, which is there when it is complete.
fn write_file(
    trace: &TraceDirectory,
    calls: Calls,
    format: ExportFormat,
    stacks: &StackOptions,
    path: &Path,
    host: Option<&HostFile<'_>>,
) -> Result<Option<Missing>, Failure> {
    let failed = cannot_write(path);
    let file = WholeFile::create(path).map_err(&failed)?;
    let out = BufWriter::new(&file);
    let missing = write(trace, calls, format, stacks, out, host).map_err(|error| match error {
        ReportError::Output(error) => failed(error),
        other => explained(other, host),
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

/// What is a directory was asked for as a file.
fn no_file() -> ReportError {
    let error = io::Error::new(io::ErrorKind::IsADirectory, "the format is a directory");
    ReportError::Output(error)
}

/// Returns what the trace should have and has not.
fn write(
    trace: &TraceDirectory,
    mut calls: Calls,
    format: ExportFormat,
    stacks: &StackOptions,
    mut out: impl Write,
    host: Option<&HostFile<'_>>,
) -> Result<Option<Missing>, ReportError> {
    let note = |note: &str| log::warn!("{note}");
    let events = match format {
        ExportFormat::TraceDat => {
            let room = std::env::temp_dir();
            let mut host = host.map(|host| BufWriter::new(&host.file));
            let host = host.as_mut().map(|host| host as &mut dyn Write);
            Some(trace_dat(trace, &mut calls, note, &room, &mut out, host)?)
        }
        ExportFormat::Perfetto => Some(perfetto(trace, &mut calls, note, &mut out)?),
        ExportFormat::Chrome => Some(chrome(trace, &mut calls, note, &mut out)?),
        ExportFormat::Ctf | ExportFormat::Uftrace => return Err(no_file()),
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => return Err(no_file()),
        ExportFormat::Folded => {
            let folded = stacks.folded(trace, &mut calls, note)?;
            out.write_all(&folded).map_err(ReportError::Output)?;
            None
        }
        ExportFormat::Html => {
            let flamegraph = page_flamegraph(trace, &mut calls, stacks)?;
            let printed = html(
                trace,
                &calls.excerpt,
                &calls.watch,
                flamegraph.as_deref(),
                &mut out,
            )?;
            printed.notes.iter().for_each(|note| log::warn!("{note}"));
            out.flush().map_err(ReportError::Output)?;
            // Calls and events: it has counted both.
            return Ok(printed.missing);
        }
        ExportFormat::Flamegraph => {
            let folded = stacks.folded(trace, &mut calls, note)?;
            let missing = Missing::of(trace, &calls).filter(|_| folded.is_empty());
            // It may be why there is nothing to draw.
            missing.iter().for_each(|missing| log::warn!("{missing}"));
            stacks.draw(trace, &folded, &mut out)?;
            None
        }
    };
    out.flush().map_err(ReportError::Output)?;
    let missing = Missing::of(trace, &calls);
    Ok(missing.or_else(|| Missing::of_events(trace, events?)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trace::export::uftrace::layout::Text;
    use trace::export::uftrace::{GRAPH, Metadata, UftraceWriter};

    use super::*;

    #[test]
    fn two_files_that_are_one_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("guest.dat");
        let again = folder.path().join(".").join("guest.dat");
        let refused = |output: &Path, host: &Path| {
            let to = Destination {
                output: Some(output.to_owned()),
                host: Some(host.to_owned()),
                force: true,
            };
            to.check().err().map(|failure| failure.message)
        };
        let one = refused(&file, &again).unwrap();
        assert!(one.starts_with("-o and --host are one file, "), "{one}");
        assert_eq!(refused(&file, &folder.path().join("host.dat")), None);
        fs::write(&file, "").unwrap();
        let link = folder.path().join("link.dat");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(refused(&link, &file).is_some());
        // Nobody keeps what is written there.
        let null = Path::new("/dev/null");
        assert_eq!(refused(null, null), None);
        assert!(is_same(Path::new("guest.dat"), Path::new("./guest.dat")));
    }

    #[test]
    fn what_is_no_text_is_not_written_to_a_terminal() {
        let stacks = StackOptions::default();
        let check = |format, output: Option<&str>, is_terminal| {
            let to = Destination {
                output: output.map(Into::into),
                ..Destination::default()
            };
            check(format, &stacks, &to, is_terminal).is_ok()
        };
        for format in [ExportFormat::Perfetto, ExportFormat::TraceDat] {
            assert!(!check(format, None, true));
            assert!(check(format, None, false));
            assert!(check(format, Some("/dev/null"), true));
        }
        assert!(check(ExportFormat::Chrome, None, true));
    }

    /// A graph of no calls, at `trace`.
    fn without_calls(trace: &Path) {
        let text = Text {
            functions: &[],
            limit: None,
        };
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let writer = UftraceWriter::create(trace, text, metadata, false).unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn what_stood_there_stays_when_nothing_can_be_exported() {
        let folder = tempfile::tempdir().unwrap();
        let [trace, file] = ["trace", "calls.svg"].map(|name| folder.path().join(name));
        without_calls(&trace);
        fs::write(&file, "before").unwrap();
        let excerpt = Excerpt::default();
        let stacks = StackOptions::default();
        let flamegraph = ExportFormat::Flamegraph;
        let nobody = |_: Option<u64>| Ok(Watch::default());
        let to = Destination {
            output: Some(file.clone()),
            host: None,
            force: true,
        };
        let error = export(&trace, flamegraph, &excerpt, &stacks, &to, nobody).unwrap_err();
        // It once was an error of stdout, or of the file.
        let nothing = "the trace has no call of known duration to draw";
        assert_eq!(
            (error.status.code(), error.message.as_str()),
            (100, nothing)
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        export(&trace, ExportFormat::Chrome, &excerpt, &stacks, &to, nobody).unwrap();
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .starts_with("{\"displayTimeUnit\"")
        );
        let dat = ExportFormat::TraceDat;
        let host = folder.path().join("host.dat");
        let before = fs::read(&file).unwrap();
        let with_host = |host| Destination {
            host: Some(host),
            ..to.clone()
        };
        // An empty file of the host's says that it did nothing.
        let to = with_host(host.clone());
        let error = export(&trace, dat, &excerpt, &stacks, &to, nobody).unwrap_err();
        let is_named = error.message.contains("--host-events");
        assert!(is_named && error.status.code() == 100, "{}", error.message);
        assert!(!host.exists() && fs::read(&file).unwrap() == before);
        let entry = "{\"time_ns\":1,\"vcpu\":0,\"event\":\"host:kvm_entry\"}\n";
        fs::write(trace.join("host-0.jsonl"), entry).unwrap();
        export(&trace, dat, &excerpt, &stacks, &to, nobody).unwrap();
        assert!(host.exists());
        let to = with_host("/dev/full".into());
        let error = export(&trace, dat, &excerpt, &stacks, &to, nobody).unwrap_err();
        let full = error.message.starts_with("cannot write /dev/full: ");
        assert!(full && error.status.code() == 106, "{}", error.message);
    }

    #[test]
    fn an_older_export_is_replaced_and_nothing_that_is_more() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        without_calls(&trace);
        let (excerpt, stacks) = (Excerpt::default(), StackOptions::default());
        for (format, file) in [
            (ExportFormat::Ctf, "metadata"),
            #[cfg(feature = "parquet")]
            (ExportFormat::Parquet, "calls.parquet"),
        ] {
            let place = folder.path().join(file);
            let export = |force| {
                let to = Destination {
                    output: Some(place.clone()),
                    host: None,
                    force,
                };
                let nobody = |_: Option<u64>| Ok(Watch::default());
                export(&trace, format, &excerpt, &stacks, &to, nobody)
                    .err()
                    .map(|failure| failure.message)
            };
            assert_eq!(export(false), None);
            let whole = fs::read(place.join(file)).unwrap();
            assert!(export(false).unwrap().contains("is there already"));
            // The new one is another file.
            let old = fs::File::open(place.join(file)).unwrap();
            assert_eq!(export(true), None);
            assert_eq!(fs::read(place.join(file)).unwrap(), whole);
            let inode = |found: fs::Metadata| std::os::unix::fs::MetadataExt::ino(&found);
            let fresh = fs::metadata(place.join(file)).unwrap();
            assert_ne!(inode(old.metadata().unwrap()), inode(fresh));
            for more in ["notes.txt", "vcpu0x", "vcpu"] {
                fs::write(place.join(more), "mine").unwrap();
                assert!(
                    export(true)
                        .unwrap()
                        .contains("--force replaces nothing else")
                );
                assert_eq!(fs::read(place.join(more)).unwrap(), b"mine");
                fs::remove_file(place.join(more)).unwrap();
            }
            fs::create_dir(place.join("vcpu7")).unwrap();
            assert!(export(true).is_some());
            fs::remove_dir(place.join("vcpu7")).unwrap();
            // What another tracer has described, or nobody.
            fs::rename(place.join(file), folder.path().join("away")).unwrap();
            if format == ExportFormat::Ctf {
                fs::write(
                    place.join(file),
                    "/* CTF 1.8 */\nenv { tracer_name = \"lttng-modules\"; };",
                )
                .unwrap();
                assert!(export(true).is_some());
                fs::remove_file(place.join(file)).unwrap();
                fs::write(place.join("vcpu0"), "").unwrap();
            }
            assert!(export(true).is_some());
        }
    }
}
