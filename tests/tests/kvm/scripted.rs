//! A VMM that is a page of Python, which does at a word what a real one does once in a while.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use tests::patience;

/// The VMM while its guest runs. It ends with this.
pub struct Scripted {
    vmm: Child,
    said: Receiver<String>,
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
        let lines = BufReader::new(vmm.stdout.take().unwrap()).lines();
        let (tell, said) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| tell.send(line))
        });
        let mut started = Self { vmm, said };
        assert_eq!(started.says(), "spins");
        started
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.vmm.id()
    }

    /// Its next line, which is empty when it has ended.
    pub fn says(&mut self) -> String {
        match self.said.recv_timeout(patience()) {
            Err(RecvTimeoutError::Timeout) => panic!("it says nothing"),
            said => said.unwrap_or_default(),
        }
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
