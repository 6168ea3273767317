//! A reader who types what a document says, in order, in one shell and an empty directory.
//!
//! He has installed `vmm`, copied the images that the document speaks of, and types more slowly than a guest boots: so
//! the control socket of `vmm run ... &` is waited for, and what needs the guest's page tables is typed again until they are there.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::place::{patience, starts_vmm, vmm};
use crate::transcript::{Typed, blocks};

/// What no command prints, at the beginning of a line.
const MARK: &str = "== typed == ";

/// Types the blocks of one class and compares what they print. `files` are the images: names and where they are.
///
/// # Panics
/// When a command prints something else than the document says, or there is none.
pub fn follow(name: &str, document: &str, class: &str, files: &[(&str, PathBuf)]) {
    let blocks = blocks(document).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    let blocks = blocks.into_iter().filter(|block| block.class == class);
    let typed: Vec<Typed> = blocks.flat_map(|block| block.commands).collect();
    assert!(!typed.is_empty(), "{name} has no commands");
    let (printed, is_late) = run(&script(&typed), files);
    let mark = format!("\n{MARK}");
    let mut parts = printed.split(&mark);
    let mut text = parts.next().unwrap_or_default();
    for command in &typed {
        let Some((status, rest)) = parts.next().and_then(|part| part.split_once('\n')) else {
            panic!(
                "{name}:{}: it does not end:\n{}\n{text}",
                command.line, command.command
            );
        };
        if let Some(objection) = command.objection(text, status) {
            let Typed { line, command, .. } = command;
            panic!("{name}:{line}: {objection}\n$ {command}\n{text}");
        }
        text = rest;
    }
    assert!(!is_late, "{name}: what it leaves running does not end");
}

/// What is said of a guest that has only just been started, and of one whose vCPU has missed a pause ([`crate::missed`]).
const TOO_EARLY: &str = "-e 'page tables map nothing' -e 'is not mapped' -e 'did not pause within'";

/// A shell's script: each command, then the mark and how it ended.
fn script(typed: &[Typed]) -> String {
    let mut script = "exec 2>&1\n".to_owned();
    for Typed { command, .. } in typed {
        let _ = writeln!(
            script,
            "while {{ {command}\n}} </dev/null >../said 2>&1; ended=$?"
        );
        let _ = writeln!(
            script,
            "grep -q {TOO_EARLY} ../said; do sleep 0.01; done; cat ../said"
        );
        if let Some(socket) = socket(command) {
            let _ = writeln!(
                script,
                "left=\"$left $!\"; until [ -S {socket} ]; do sleep 0.01; done"
            );
        }
        let _ = writeln!(script, "printf '\\n{MARK}%s\\n' $ended");
    }
    // A document that forgets a guest is not to leave it there.
    script + "[ -z \"$left\" ] || kill $left; wait\n"
}

/// The control socket of what is left running.
fn socket(command: &str) -> Option<&str> {
    let is_left = command.trim_end().ends_with('&');
    let mut words = command.split_whitespace();
    words
        .find(|word| *word == "--control")
        .filter(|_| is_left)?;
    words.next()
}

/// What the script prints, and whether it stands still.
fn run(script: &str, files: &[(&str, PathBuf)]) -> (String, bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let inside = |name: &str| folder.path().join(name);
    let here = inside("here");
    for made in [&here, &inside("bin")] {
        fs::create_dir(made).expect("room for a folder");
    }
    let link = |to: &Path, at: &Path| {
        let to = to.canonicalize().expect("a file");
        symlink(to, at).expect("room for a link");
    };
    link(vmm().get_program().as_ref(), &inside("bin/vmm"));
    for (name, file) in files {
        link(file, &here.join(name));
    }
    fs::write(inside("script"), script).expect("room for a script");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = starts_vmm("sh");
    shell
        .arg(inside("script"))
        .env("PATH", format!("{}:{path}", inside("bin").display()))
        .current_dir(&here)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut shell = shell.spawn().expect("sh");
    let stdout = shell.stdout.take().expect("its stdout");
    let (printed, is_late) = printed(stdout, patience());
    if is_late {
        // All that it has started, too.
        let killed = kill_process_group(Pid::from_child(&shell), Signal::KILL);
        killed.expect("it is ours");
    }
    shell.wait().expect("it is ours");
    (printed, is_late)
}

/// What comes until the end, or until nothing has come for so long: whether that was so. A command's lines come when it has ended, so
/// each command has that time.
fn printed(output: impl Read + Send + 'static, within: Duration) -> (String, bool) {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while let Ok(1..) = output.read_until(b'\n', &mut line)
            && tell.send(std::mem::take(&mut line)).is_ok()
        {}
    });
    let mut printed = Vec::new();
    let end = loop {
        match told.recv_timeout(within) {
            Ok(line) => printed.extend(line),
            Err(end) => break end,
        }
    };
    let is_late = end == RecvTimeoutError::Timeout;
    (String::from_utf8_lossy(&printed).into_owned(), is_late)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn who_prints_nothing_any_more_is_late_and_who_has_ended_is_not() {
        let (silent, reads) = UnixStream::pair().unwrap();
        assert!(printed(reads, Duration::from_millis(1)).1);
        drop(silent);
        let (mut prints, reads) = UnixStream::pair().unwrap();
        let text = "one\ntwo\n\nend";
        prints.write_all(text.as_bytes()).unwrap();
        drop(prints);
        assert_eq!(printed(reads, patience()), (text.to_owned(), false));
    }
}
