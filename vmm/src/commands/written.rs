//! Where a run writes, known before its guest runs: what was named when it began, what its clients may name, and what it takes
//! away again at its end.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::confine::places::Place;
use crate::control::outputs::Outputs;
use crate::failure::Failure;
use crate::options::traced::Traced;
use crate::verbs::run::RunOptions;

/// Where clients can have something written.
///
/// # Errors
/// [`Failure`] about the output root.
pub fn outputs(traced: &Traced) -> Result<Outputs, Failure> {
    let session = &traced.session;
    let named = session.output.iter().chain(session.dumps()).cloned();
    Outputs::new(traced.output_root.as_deref(), named.collect()).map_err(Failure::bad_input)
}

/// A directory for the last calls of a guest that dies while it is traced to no directory: later none can be made there.
#[must_use]
pub fn scratch(options: &RunOptions) -> Option<TempDir> {
    if !options.traced.is_enabled() && options.control.is_none() {
        return None;
    }
    let made = tempfile::Builder::new().prefix("exotrace-").tempdir();
    made.inspect_err(|error| log::debug!("no directory for the last calls of a guest: {error}"))
        .ok()
}

/// All that a run writes once its guest runs. `instances` is where it has told the host's kernel to trace.
#[must_use]
pub fn places(
    options: &RunOptions,
    outputs: &Outputs,
    scratch: Option<&TempDir>,
    instances: Option<PathBuf>,
) -> Vec<Place> {
    let session = &options.traced.session;
    // What commands of clients print to nobody.
    let mut places = vec![Place::File("/dev/null".into())];
    if let Some(socket) = &options.control {
        places.push(Place::Below(outputs.root().to_owned()));
        places.push(Place::FilesGo(folder_of(socket)));
    }
    places.extend(session.output.clone().map(Place::Below));
    // Those are made when there is something to dump, each time with another number.
    let dumps = session.dumps().map(|dump| folder_of(dump));
    places.extend(dumps.map(Place::Below));
    if let Some(scratch) = scratch {
        places.push(Place::Below(scratch.path().to_owned()));
        places.push(Place::FoldersGo(folder_of(scratch.path())));
    }
    places.extend(instances.map(Place::FoldersGo));
    places
}

/// The directory that something is in.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => ".".into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: RunOptions,
    }

    fn of(words: &[&str]) -> Vec<Place> {
        let all = [&["vmm", "--kernel", "k"], words].concat();
        let options = Line::try_parse_from(all).unwrap().options;
        let outputs = outputs(&options.traced).unwrap();
        places(&options, &outputs, None, None)
    }

    #[test]
    fn a_run_writes_what_was_named_and_where_its_clients_may() {
        let null = Place::File("/dev/null".into());
        let below = |path: &str| Place::Below(path.into());
        assert_eq!(of(&[]), vec![null.clone()]);
        let traced = ["--trace", "graph", "--output", "a/trace"];
        assert_eq!(of(&traced), [null.clone(), below("a/trace")]);
        let dumps = [
            "--trigger",
            "f: dump /x/slow x3",
            "--trigger",
            "g: dump fast",
        ];
        let dumped = of(&[&traced[..], &dumps].concat());
        let expected = [null.clone(), below("a/trace"), below("/x"), below(".")];
        assert_eq!(dumped, expected);
        let controlled = of(&["--control", "run/socket", "--output-root", "/"]);
        let socket = Place::FilesGo("run".into());
        assert_eq!(controlled, [null.clone(), below("/"), socket]);
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let socket = Place::FilesGo(".".into());
        assert_eq!(
            of(&["--control", "socket"]),
            [null, Place::Below(here), socket]
        );
    }
}
