//! What a person reads: on a terminal coloured, and through the pager that they use; elsewhere as it is.

use std::env;
use std::io::{self, IsTerminal, Stdout, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::coloured::Coloured;
use crate::signals;

/// Read when nobody says otherwise.
const PAGER: &str = "less";
/// How `less` is to behave where nobody has said: end if all fits, let colours through, leave what was shown.
const LESS: &str = "FRX";

/// Where the text goes.
#[derive(Debug)]
enum Out {
    Stdout(Stdout),
    /// To a pager, once there is something to read.
    Waiting(String),
    Pager(Child, ChildStdin),
}

/// A page. Dropped, it waits until its reader has seen enough.
#[derive(Debug)]
pub struct Page(Coloured<Paged>);

/// The same without colours.
#[derive(Debug)]
struct Paged(Out);

impl Page {
    /// On stdout.
    #[must_use]
    pub fn on_stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        let pager = pager(env::var("PAGER").ok()).filter(|_| is_terminal && !is_dumb);
        let out = pager.map_or_else(|| Out::Stdout(io::stdout()), Out::Waiting);
        let has_colours = is_terminal && !is_dumb && !is_set("NO_COLOR");
        Self(Coloured::new(Paged(out), has_colours))
    }
}

/// The pager that is asked for, if any is.
fn pager(asked: Option<String>) -> Option<String> {
    let pager = asked.unwrap_or_else(|| PAGER.to_owned());
    let is_none = pager.trim().is_empty() || pager.trim() == "cat";
    (!is_none).then_some(pager)
}

/// How a pager is started: with a shell only where it needs one, so that one that is not there is known not to be.
fn command(pager: &str) -> Option<Command> {
    if pager.contains(|char| "|&;<>()$`\\\"'*?[#~=%".contains(char)) {
        let mut command = Command::new("sh");
        command.args(["-c", pager]);
        return Some(command);
    }
    let mut words = pager.split_whitespace();
    let mut command = Command::new(words.next()?);
    command.args(words);
    Some(command)
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Paged {
    /// Starts the pager, if it is waited for. Without one the text goes to stdout.
    fn start(&mut self) {
        let Out::Waiting(pager) = &self.0 else { return };
        let Some(mut command) = command(pager) else {
            return;
        };
        command.stdin(Stdio::piped());
        if env::var_os("LESS").is_none() {
            command.env("LESS", LESS);
        }
        let started = command.spawn().ok();
        let started = started.and_then(|mut child| Some((child.stdin.take()?, child)));
        self.0 = match started {
            Some((stdin, child)) => {
                // Ctrl-C is the pager's from now on, which would not get it if it had been blocked before: it ends when it is
                // told to, and then nobody takes what is written. Where it cannot be blocked it ends both.
                let _ = signals::block(libc::SIGINT);
                Out::Pager(child, stdin)
            }
            None => Out::Stdout(io::stdout()),
        };
    }
}

impl Write for Paged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.start();
        match &mut self.0 {
            Out::Pager(_, stdin) => stdin.write(bytes),
            Out::Stdout(stdout) => stdout.write(bytes),
            Out::Waiting(_) => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Out::Pager(_, stdin) => stdin.flush(),
            Out::Stdout(stdout) => stdout.flush(),
            Out::Waiting(_) => Ok(()),
        }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        let out = std::mem::replace(&mut self.0, Out::Stdout(io::stdout()));
        if let Out::Pager(mut child, stdin) = out {
            // The end of the text.
            drop(stdin);
            // How the pager ends is between it and its reader.
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ctrl-C was blocked in the pager, too, and no pager was waited for where it was blocked here before.
    #[test]
    fn ctrl_c_is_the_pagers_and_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let of_pager = folder.path().join("pager");
        let pager = format!(
            "cat >/dev/null; grep SigBlk /proc/self/status >{}",
            of_pager.display()
        );
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mut lines = status.lines();
            let line = lines.find(|line| line.starts_with("SigBlk")).unwrap();
            line.to_owned()
        };
        let pages = move || {
            let before = blocked();
            let mut page = Paged(Out::Waiting(pager.clone()));
            page.write_all(b"text").unwrap();
            drop(page);
            assert_eq!(std::fs::read_to_string(&of_pager).unwrap().trim(), before);
            assert_ne!(blocked(), before);
            // Another one inherits that.
            let mut page = Paged(Out::Waiting(pager));
            page.write_all(b"text").unwrap();
            assert!(matches!(page.0, Out::Pager(..)), "{page:?}");
        };
        std::thread::spawn(pages).join().unwrap();
    }

    #[test]
    fn no_pager_is_asked_for_by_nothing_or_cat() {
        let asked = |text: &str| pager(Some(text.to_owned()));
        assert_eq!(pager(None).as_deref(), Some("less"));
        assert_eq!(asked("most -s").as_deref(), Some("most -s"));
        assert_eq!((asked(" "), asked("cat")), (None, None));
        let words = |pager| {
            let command = command(pager).unwrap();
            let arguments = command
                .get_args()
                .map(|word| word.to_str().unwrap().to_owned());
            let program = command.get_program().to_str().unwrap().to_owned();
            [program].into_iter().chain(arguments).collect::<Vec<_>>()
        };
        assert_eq!(words("less -S  +G"), ["less", "-S", "+G"]);
        assert_eq!(words("less | x"), ["sh", "-c", "less | x"]);
        assert!(command(" ").is_none());
    }
}
