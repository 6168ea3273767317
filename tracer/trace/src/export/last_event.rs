//! When the last event of a trace was, without those before it: each file has them in the order of time.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use super::events::{LINE_MAX, paths};

/// Bytes that are read of the end of a file, first. Most lines have some hundred.
const TAIL: u64 = 4 << 10;

/// What every line has.
#[derive(Deserialize)]
struct Line {
    time_ns: u64,
}

/// When the last event was, in nanoseconds since the guest's time began. What cannot be read says nothing: that is for who reads
/// all of it.
pub(crate) fn last_event_ns(directory: &Path) -> Option<u64> {
    let paths = paths(directory).unwrap_or_default();
    let last = paths.iter().filter_map(|path| last_of(path).ok().flatten());
    last.max()
}

/// The same of one file; nothing of what is none, or has no whole line.
fn last_of(path: &Path) -> io::Result<Option<u64>> {
    let told = fs::metadata(path)?;
    if !told.is_file() {
        return Ok(None);
    }
    let (mut file, length) = (File::open(path)?, told.len());
    let mut most = TAIL;
    loop {
        let begin = length.saturating_sub(most);
        file.seek(SeekFrom::Start(begin))?;
        let mut tail = Vec::new();
        file.by_ref().take(length - begin).read_to_end(&mut tail)?;
        if let Some(line) = last_line(&tail, begin == 0) {
            let line: Option<Line> = serde_json::from_slice(line).ok();
            return Ok(line.map(|line| line.time_ns));
        }
        if begin == 0 || most > 2 * LINE_MAX {
            return Ok(None);
        }
        most *= 16;
    }
}

/// The last line that is whole; the first one is only where it is known to begin. What stands after it is being written.
fn last_line(tail: &[u8], is_begin: bool) -> Option<&[u8]> {
    let is_end = |byte: &u8| *byte == b'\n';
    let end = tail.iter().rposition(is_end)?;
    let whole = tail.get(..end)?;
    match whole.iter().rposition(is_end) {
        Some(before) => whole.get(before + 1..),
        None => Some(whole).filter(|_| is_begin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a file of this text.
    fn last(text: &str) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("events-0.jsonl"), text).unwrap();
        last_event_ns(folder.path())
    }

    #[test]
    fn the_last_line_that_is_whole_says_it_however_long_lines_are() {
        let line = |time_ns: u64, length: usize| {
            let text = "x".repeat(length);
            format!("{{\"time_ns\":{time_ns},\"vcpu\":0,\"event\":\"{text}\"}}\n")
        };
        assert_eq!(last(""), None);
        assert_eq!(last(&line(5, 9)), Some(5));
        assert_eq!(last(&format!("{}{}", line(5, 9), line(7, 9))), Some(7));
        let torn = format!("{}{}{{\"time_ns\":9,", line(5, 9), line(7, 9));
        assert_eq!(last(&torn), Some(7));
        assert_eq!(last("{\"time_ns\":9,"), None);
        for length in [4_000, 4_100, 5_000, 70_000] {
            let long = format!("{}{}", line(5, 9), line(7, length));
            assert_eq!(last(&long), Some(7), "{length}");
            let before = format!("{}{}", line(5, length), line(7, 9));
            assert_eq!(last(&before), Some(7), "{length}");
            assert_eq!(last(&line(7, length)), Some(7), "{length}");
        }
        assert_eq!(last("\n\n"), None, "no event");
    }

    #[test]
    fn of_several_files_the_last_event_of_all_counts_and_a_pipe_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(last_event_ns(&path("none")), None);
        for (name, text) in [
            ("events-0.jsonl", "{\"time_ns\":3}\n"),
            ("events-1.jsonl", "no event\n"),
            ("host-0.jsonl", "{\"time_ns\":4}\n"),
            ("others.jsonl", "{\"time_ns\":5}\n"),
        ] {
            fs::write(path(name), text).unwrap();
        }
        let pipe = std::process::Command::new("mkfifo")
            .arg(path("events-2.jsonl"))
            .status();
        assert!(pipe.unwrap().success());
        assert_eq!(last_event_ns(folder.path()), Some(4));
    }
}
