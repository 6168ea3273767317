//! Files as they are found: whoever reads a trace that is being written comes to an end, however fast it grows.

use std::fs::File;
use std::io::{self, BufReader, Read, Take};
use std::path::Path;

/// Bytes read at a time from each file.
const BUFFER: usize = 64 << 10;

/// What a file had in it when it was opened. Of a pipe nobody knows that: it is read to its end.
pub(crate) type AsFound = BufReader<Take<File>>;

/// Opens a file.
///
/// # Errors
/// What the system says of it.
pub(crate) fn open(path: &Path) -> io::Result<AsFound> {
    let file = File::open(path)?;
    let told = file.metadata()?;
    let length = if told.is_file() { told.len() } else { u64::MAX };
    Ok(BufReader::with_capacity(BUFFER, file.take(length)))
}

/// Opens a file that describes others: nothing but a file, since to open a pipe waits for who writes to it.
///
/// # Errors
/// What the system says of it, or that it is none.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    match std::fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_added_later_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut writes = File::create(&path).unwrap();
        writes.write_all(b"before").unwrap();
        let mut found = open(&path).unwrap();
        writes.write_all(b" and after").unwrap();
        let mut text = String::new();
        found.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before");
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // Nobody writes to it yet.
        let refused = open_file(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let mut text = String::new();
        thread::scope(|scope| {
            scope.spawn(|| std::fs::write(&path, "all of it").unwrap());
            open(&path).unwrap().read_to_string(&mut text).unwrap();
        });
        assert_eq!(text, "all of it");
    }
}
