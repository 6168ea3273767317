//! A VMM that is a page of Python, which does at a word what a real one does once in a while.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The VMM while its guest runs. It ends with this.
pub struct Scripted {
    vmm: Child,
    said: BufReader<ChildStdout>,
}

impl Scripted {
    /// Started with these arguments; its guest runs.
    pub fn start(script: &str, arguments: &[&Path]) -> Self {
        let mut vmm = Command::new("python3")
            .args(["-c", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(vmm.stdout.take().unwrap());
        let mut started = Self { vmm, said };
        assert_eq!(started.says(), "spins");
        started
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.vmm.id()
    }

    /// Its next line.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What it says to this line.
    pub fn told(&mut self, line: &str) -> String {
        writeln!(self.vmm.stdin.as_ref().unwrap(), "{line}").unwrap();
        self.says()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.vmm.kill();
        let _ = self.vmm.wait();
    }
}
