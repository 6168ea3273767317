//! Who may see the files that this process makes, and how many it may have open.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// From now on directories are made with mode 0700 and files with mode 0600, whoever makes them here. A trace holds what
/// was in a guest's memory: names, arguments, text.
pub fn keep_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// As many files are open as this process may have, at the same time: a trace has two for each of up to 4096 threads, and what is usual
/// before somebody asks for more is 1024.
pub fn open_many() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: Some(limit.maximum.unwrap_or(1 << 20)),
        ..limit
    };
    // With fewer, the file that cannot be opened is named.
    let _ = setrlimit(Resource::Nofile, raised);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_are_open_as_may_be() {
        open_many();
        let limit = getrlimit(Resource::Nofile);
        assert!(limit.current >= limit.maximum.or(Some(1 << 20)));
    }
}
