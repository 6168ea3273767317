//! A terminal that a test can look at, and type into: tmux.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use tempfile::TempDir;
use tests::patience;

/// A terminal of 120 columns and 24 lines.
pub struct Screen {
    /// Where tmux has its socket: each test has its own server.
    folder: TempDir,
}

impl Screen {
    /// With this command on it, which may leave its process id in the file.
    pub fn new(command: impl FnOnce(&Path) -> String) -> Self {
        let folder = TempDir::new().unwrap();
        let screen = Self { folder };
        let command = command(&screen.pid_file());
        let size = ["-x", "120", "-y", "24"];
        let new = ["-f", "/dev/null", "new-session", "-d"];
        screen.tmux(&[&new[..], &size, &[&command]].concat());
        screen
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.path().join("pid")
    }

    /// What the command has left there.
    pub fn pid(&self) -> String {
        std::fs::read_to_string(self.pid_file()).unwrap()
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let said = Command::new("tmux")
            .arg("-S")
            .arg(self.folder.path().join("tmux"))
            .args(arguments)
            .env("TERM", "xterm")
            // It has commands run by this: not every user's shell knows `$?`, or runs any, and some end with Ctrl-C although what they
            // have begun does not.
            .env("SHELL", "/bin/bash")
            .env_remove("TMUX")
            .output()
            .expect("tmux is installed");
        assert!(said.status.success(), "{arguments:?}: {said:?}");
        said
    }

    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen is as wanted; its lines.
    pub fn wait_until(&self, what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.wait(what, &[], is_wanted)
    }

    /// The same with what colours the lines.
    pub fn wait_until_coloured(
        &self,
        what: &str,
        is_wanted: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        self.wait(what, &["-e"], is_wanted)
    }

    fn wait(
        &self,
        what: &str,
        options: &[&str],
        is_wanted: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let begin = Instant::now();
        loop {
            let said = self.tmux(&[&["capture-pane", "-p"], options].concat());
            let text = String::from_utf8(said.stdout).unwrap();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if is_wanted(&lines) {
                return lines;
            }
            assert!(begin.elapsed() < patience(), "no {what} in:\n{text}");
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(self.folder.path().join("tmux"))
            .arg("kill-server")
            .output();
    }
}

/// Whether this is in one of the lines.
pub fn has(line: &'static str) -> impl Fn(&[String]) -> bool {
    move |lines| lines.iter().any(|there| there.contains(line))
}
