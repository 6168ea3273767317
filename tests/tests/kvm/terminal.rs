//! The terminal of a run: it is the user's again whenever the run does not use it.

use tests::{guest, starts_vmm, vmm};

/// Ctrl-Z left the shell with a terminal that showed nothing of what was typed.
#[test]
fn a_run_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    let vmm = vmm();
    let ran = starts_vmm("python3")
        .args(["-c", include_str!("terminal.py")])
        .arg(vmm.get_program())
        .args(["run", "--cmdline", "workload=list,spin", "--kernel"])
        .arg(guest())
        .output()
        .expect("python3 is installed");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}
