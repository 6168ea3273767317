//! A guest that does what it is told, line by line.

use std::path::PathBuf;

use tempfile::TempDir;
use tests::{Client, Ended, Guest, Running, Trace, with_file};

/// Says after each line that it has done it; which, so that its echo is not taken for it.
const SCRIPT: &str = r#"
T=/sys/kernel/tracing
hits() { awk -v name=$1 '$1 == name { print "hits " name " " $2 "." }' $T/kprobe_profile; }
set_up() { echo "$1" >>$T/kprobe_events && echo 1 >$T/events/kprobes/$2/enable; }
take_down() { echo 0 >$T/events/kprobes/$1/enable; echo "-:$1" >>$T/kprobe_events; }
lines=0
echo did 0.
while read line; do eval "$line"; lines=$((lines + 1)); echo did $lines.; done
"#;

/// The guest.
pub struct Shell {
    pub running: Running,
    lines: u32,
    _folder: TempDir,
}

impl Shell {
    /// Starts one with two vCPUs, whose trace is written down.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let initrd: PathBuf = with_file(folder.path(), "shell", SCRIPT.as_bytes());
        let guest = Guest::linux("sh /shell", Some(&initrd)).vcpus(2);
        let running = guest.output().start();
        running.wait_for("did 0.");
        Self {
            running,
            lines: 0,
            _folder: folder,
        }
    }

    pub fn client(&mut self) -> Client {
        self.running.client()
    }

    /// Types a line, and does not wait.
    pub fn begins(&mut self, line: &str) {
        self.running.type_text(&format!("{line}\n"));
        self.lines += 1;
    }

    /// Waits until the last line is done.
    pub fn is_done(&self) {
        self.running.wait_for(&format!("did {}.", self.lines));
    }

    /// Has a line done.
    pub fn does(&mut self, line: &str) {
        self.begins(line);
        self.is_done();
    }

    /// Ends it. Nothing in it may have gone wrong.
    pub fn end(mut self) -> (Ended, Trace) {
        self.running.type_text("exit 0\n");
        let (ended, trace) = self.running.end();
        (ended.good(), trace)
    }
}
