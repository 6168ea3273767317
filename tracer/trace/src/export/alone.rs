//! Whether a directory holds an export of ours and nothing else: then it may go for a newer one.

use std::fs;
use std::io;
use std::path::Path;

/// How many files a directory has, if it has nothing but files whose names are `of` an export.
///
/// # Errors
/// What the system says.
pub(super) fn files(directory: &Path, of: impl Fn(&str) -> bool) -> io::Result<Option<usize>> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_file = entry.file_type()?.is_file();
        if !is_file || !entry.file_name().to_str().is_some_and(&of) {
            return Ok(None);
        }
        count += 1;
    }
    Ok(Some(count))
}
