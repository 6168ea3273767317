//! A process that does not stop when it is asked to, for tests of those who hold it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::held::HeldThread;

/// A process that begins a child, which begins when somebody writes to a file: until then nothing stops it.
pub(crate) struct Stuck {
    child: Child,
    said: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Stuck {
    /// It runs, and stops for nobody.
    pub fn start() -> Self {
        const SCRIPT: &str = "import os, sys\nfile = sys.argv[1]\nos.mkfifo(file)\n\
            os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, file, os.O_RDONLY, 0)])\n\
            print('has begun', flush=True)";
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT])
            .arg(folder.path().join("file"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let stuck = Self {
            child,
            said,
            folder,
        };
        // It waits for its child, which waits for the file. What is called python may be a script, which has children, too.
        let pid = stuck.number();
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let file = stuck.folder.path().join("file");
        while !file.exists()
            || read(&format!("task/{pid}/children")).is_empty()
            || !read("stat").contains(") D ")
        {
            std::thread::yield_now();
        }
        stuck
    }

    /// The same, of which this thread is to let go: it was held, and did not stop in time.
    pub fn late() -> Self {
        let stuck = Self::start();
        let thread = HeldThread::seize(stuck.number(), false, Instant::now()).unwrap();
        thread.interrupt().unwrap();
        drop(thread);
        stuck
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// What it says comes from here when it goes on.
    pub fn bell(&self) -> RawFd {
        self.said.get_ref().as_raw_fd()
    }

    /// Nothing keeps it any more but who holds it.
    pub fn is_to_go_on(&self) {
        let file = self.folder.path().join("file");
        drop(File::options().write(true).open(file).unwrap());
    }

    /// Waits until it does.
    pub fn goes_on(mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "has begun\n");
        let _ = self.child.wait();
    }
}

/// Its child would wait for ever, and with it whoever reads what both print to.
impl Drop for Stuck {
    fn drop(&mut self) {
        let pid = self.number();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_ascii_whitespace();
        for child in children.filter_map(|child| child.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
