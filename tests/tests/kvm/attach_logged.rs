//! A VMM that has KVM note which pages of its guest are written, as a migration does, and snapshots by difference.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use tests::vmm_says;

/// `attach_logged.py`.
struct Logged {
    vmm: Child,
    said: BufReader<ChildStdout>,
}

impl Logged {
    fn start() -> Self {
        let mut vmm = Command::new("python3")
            .args(["-c", include_str!("attach_logged.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(vmm.stdout.take().unwrap());
        let mut started = Self { vmm, said };
        assert_eq!(started.says(), "spins");
        started
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What KVM says when it is asked for what it has noted.
    fn asks(&mut self) -> String {
        self.told("")
    }

    /// What it says to this line.
    fn told(&mut self, line: &str) -> String {
        writeln!(self.vmm.stdin.as_ref().unwrap(), "{line}").unwrap();
        self.says()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.vmm.kill();
        let _ = self.vmm.wait();
    }
}

/// A slot was named as one of which nothing is noted; then nothing was any more.
#[test]
fn who_looks_for_a_guests_memory_does_not_end_what_is_noted_of_it() {
    let mut logged = Logged::start();
    assert_eq!(logged.asks(), "notes");
    let pid = logged.vmm.id().to_string();
    let listed = vmm_says(&["ps", "--guest"]);
    let mut lines = listed.stdout.lines();
    let line = lines.find(|line| line.split_whitespace().next() == Some(&pid));
    assert!(line.is_some_and(|line| line.contains("64 MiB")), "{listed}");
    assert_eq!(logged.asks(), "notes", "{listed}");
    let looked = vmm_says(&["doctor", "--attach", &pid]);
    let is_said = looked.stderr.contains("KVM notes which pages");
    assert!(
        looked.stdout.contains("This guest can be traced") && is_said,
        "{looked}"
    );
    assert_eq!(logged.asks(), "notes", "{looked}");
}

/// The flag was asked for, and the slot named with it a moment later: what the VMM had switched on by then was switched off.
#[test]
fn a_vmm_that_begins_to_have_its_guest_noted_just_now_goes_on_with_that() {
    let mut logged = Logged::start();
    let pid = logged.vmm.id().to_string();
    assert_eq!(logged.told("toggle"), "toggles");
    for _ in 0..20 {
        let looked = vmm_says(&["doctor", "--attach", &pid]);
        assert!(
            looked.stdout.contains("This guest can be traced"),
            "{looked}"
        );
    }
    assert_eq!(logged.told("end"), "0 wrong");
}
