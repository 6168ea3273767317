//! The terminal of a run: it is the user's again whenever the run does not use it.

use tests::elf::Kernels;
use tests::{guest, patience, starts_vmm, vmm};

/// A run under a shell that does this with it.
fn under_a_shell(which: &str) {
    let (vmm, folder) = (vmm(), Kernels::new());
    let ran = starts_vmm("python3")
        .args(["-c", include_str!("terminal.py"), which])
        .arg(patience().as_secs().to_string())
        .arg(vmm.get_program())
        .args(["run", "--cmdline", "workload=list,spin", "--kernel"])
        .arg(guest())
        .arg("--control")
        .arg(folder.path().join("control"))
        .output()
        .expect("python3 is installed");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}

/// Ctrl-Z left the shell with a terminal that showed nothing of what was typed.
#[test]
fn a_run_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    under_a_shell("fg");
}

/// What was typed for the shell stopped it once more, and so did its own end: nobody learned how it had ended.
#[test]
fn a_run_in_the_background_leaves_the_terminal_to_whoever_has_it() {
    under_a_shell("bg");
}

/// A run that was started there (`vmm run &`) had no keyboard for as long as it lasted: its stdin was given up at the start.
#[test]
fn a_run_that_begins_in_the_background_has_the_keyboard_when_it_is_in_the_foreground() {
    under_a_shell("started");
}
