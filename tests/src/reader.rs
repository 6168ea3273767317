//! A reader who types what a document says, in order, in one shell and an empty directory.
//!
//! He has installed `vmm`, copied the images that the document speaks of, and types more slowly than a guest boots: so
//! the control socket of `vmm run ... &` is waited for, and what needs the guest's page tables is typed again until they are there.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

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
    let printed = run(&script(&typed), files);
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
}

/// What is said of a guest that has only just been started.
const TOO_EARLY: &str = "-e 'page tables map nothing' -e 'is not mapped'";

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

fn run(script: &str, files: &[(&str, PathBuf)]) -> String {
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
    let mut shell = starts_vmm("timeout");
    shell
        .arg(patience().as_secs().to_string())
        .arg("sh")
        .arg(inside("script"))
        .env("PATH", format!("{}:{path}", inside("bin").display()))
        .current_dir(&here)
        .stdin(Stdio::null());
    let output = shell.output().expect("timeout and sh");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
