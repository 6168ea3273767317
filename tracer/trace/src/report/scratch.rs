//! Room to put a compact trace together in, among the temporary files. It goes with who reads it; what is left of a process that
//! was killed is removed by the next one.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::export::compact::CompactError;

/// What these directories are called; the process and letters follow.
const NAME: &str = "exotrace-";

/// A new one, below `place` if that is given.
///
/// # Errors
/// [`CompactError::Scratch`].
pub(super) fn scratch(place: Option<&Path>) -> Result<TempDir, CompactError> {
    let place = place.map_or_else(std::env::temp_dir, Path::to_owned);
    sweep(&place);
    let name = format!("{NAME}{}-", std::process::id());
    let made = tempfile::Builder::new().prefix(&name).tempdir_in(&place);
    made.map_err(|source| CompactError::Scratch {
        path: place,
        source,
    })
}

/// Removes those of processes that are no more. What cannot be removed is somebody else's.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let process = rest.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        let is_gone = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
        if process.is_some_and(is_gone) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let place = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let names = [
            format!("{NAME}{dead}-Ab3"),
            format!("{NAME}{own}-Ab3"),
            format!("{NAME}{dead}"),
            "exotrace".to_owned(),
            format!("other-{dead}-Ab3"),
        ];
        for name in &names {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        sweep(place.path());
        let is_there = names.map(|name| place.path().join(name).exists());
        assert_eq!(is_there, [false, true, true, true, true]);
    }
}
