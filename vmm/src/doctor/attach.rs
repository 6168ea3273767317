//! `vmm doctor --attach`: whether a guest of another VMM can be traced, by trying: it is held for a moment, looked at, given tracing
//! memory, and let go without it.

use std::fs;

use super::check::{Check, Need, Subject};
use crate::foreign::Foreign;
use crate::foreign::error::ForeignError as E;
use crate::foreign::listed::chosen;
use crate::foreign::look::Seen;
use crate::foreign::process::Process;
use crate::layout::MIB;

const fn required(name: &'static str, means: &'static str, mend: &'static str) -> Subject {
    Subject {
        name,
        need: Need::Required,
        means,
        mend,
    }
}

const GUEST: Subject = required(
    "the guest",
    "there is nothing to attach to",
    "`vmm ps` lists the guests of this host: name one by its process or its name",
);

const FILES: Subject = required(
    "files that its VMM has mapped can be opened",
    "tracing memory that is left in it could not be found again, and so not be given back",
    "be root, or have CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN, in the initial user namespace",
);

/// What a look at a guest goes through, in this order.
const STEPS: [Subject; 7] = [
    required(
        "its VMM may be looked at",
        "neither its descriptors nor its memory are shown to this process",
        "be root, or the VMM's user with CAP_SYS_PTRACE, in its user namespace",
    ),
    required(
        "nobody else is attached",
        "two tracers would overwrite each other's changes",
        "end the other one, or use its control socket",
    ),
    required(
        "its threads can be held (ptrace)",
        "the guest cannot be paused",
        "be root or have CAP_SYS_PTRACE; set kernel.yama.ptrace_scope below 3; end debuggers of the VMM",
    ),
    required(
        "its vCPUs can be parked",
        "the guest cannot be paused with nothing half done",
        "try again; let a guest run that has not started yet",
    ),
    required(
        "calls in its VMM's name",
        "KVM cannot be asked for the guest's registers and memory: a confidential guest does not show them, and a filter of \
         system calls may stand in the way",
        "CAP_SYS_ADMIN lifts the filter meanwhile; a confidential guest (SEV-ES, SEV-SNP, TDX) cannot be traced from outside",
    ),
    required(
        "it executes 64-bit code",
        "a guest in real mode or in 32-bit mode cannot be traced",
        "wait until its 64-bit kernel has started",
    ),
    required(
        "its memory is found",
        "nothing of the guest can be read: its VMM has its memory in a way that is not known, or it is encrypted (a \
         confidential guest)",
        "start the VMM with its guest's RAM in one piece of ordinary memory",
    ),
];

const KERNEL: Subject = Subject {
    name: "its kernel is known",
    need: Need::Optional,
    means: "without its file nothing of it can be named",
    mend: "attach with --kernel FILE (and --symbols FILE)",
};

const WINDOW: Subject = required(
    "tracing memory can be put in",
    "stubs and rings have no place in the guest",
    "see what was refused; a VMM that owns all slots of KVM leaves none",
);

/// Tries it with the guest that is meant: by process, by name, or the only one.
pub(super) fn look(wanted: Option<&str>, checks: &mut Vec<Check>) {
    let found = chosen(wanted).and_then(Process::open).and_then(|process| {
        process.vm_descriptor()?;
        Ok(process)
    });
    let process = match found {
        Ok(process) => process,
        // It is there, and does not show itself.
        Err(error @ (E::Proc { .. } | E::UntoldVms { .. })) => return steps(Some(&error), checks),
        Err(error) => return checks.push(GUEST.check(false, error.to_string())),
    };
    let (pid, command) = (process.pid(), process.command());
    checks.push(GUEST.check(true, format!("process {pid} ({command})")));
    let may_open = process.check_mapped_files();
    let can_be_left = may_open.is_ok();
    checks.push(FILES.tried(may_open));
    let seen = Seen::of(&process);
    steps(seen.as_ref().err(), checks);
    let Ok(seen) = seen else { return };
    let (mib, held) = (seen.ram_bytes() / MIB, seen.held.as_secs_f64() * 1000.0);
    log::info!("{mib} MiB of RAM; the guest was held for {held:.1} ms");
    checks.push(match seen.version() {
        Ok(version) => KERNEL.check(true, format!("Linux {version}")),
        Err(error) => KERNEL.check(false, error.to_string()),
    });
    if !can_be_left {
        return;
    }
    // It takes its memory away again when it is dropped.
    checks.push(WINDOW.tried(Foreign::attach(pid)));
}

/// The steps up to the one that failed, or all of them.
fn steps(failed: Option<&E>, checks: &mut Vec<Check>) {
    let failed = failed.map(|error| (step_of(error), error.to_string()));
    for (number, step) in STEPS.into_iter().enumerate() {
        match &failed {
            Some((at, why)) if *at == number => return checks.push(step.check(false, why)),
            _ => checks.push(step.check(true, found(number))),
        }
    }
}

/// What was found where a step went well.
fn found(step: usize) -> String {
    const HELD: usize = 2;
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope {
        Ok(scope) if step == HELD => {
            format!("works (kernel.yama.ptrace_scope is {})", scope.trim())
        }
        _ => "works".to_owned(),
    }
}

/// At which step such an error is met.
const fn step_of(error: &E) -> usize {
    match error {
        E::NoProcess { .. }
        | E::NotVmm { .. }
        | E::SeveralVms { .. }
        | E::UntoldVms { .. }
        | E::NoSuchGuest { .. }
        | E::WhichGuest { .. }
        | E::Proc { .. }
        | E::Descriptor { .. }
        | E::NoWayBack { .. } => 0,
        E::Traced { .. } | E::MapFiles { .. } => 1,
        E::Ptrace { .. } => 2,
        E::Late { .. }
        | E::Ended { .. }
        | E::NotHeld { .. }
        | E::NoThread { .. }
        | E::Closed { .. } => 3,
        E::Call { .. } | E::Logs(_) | E::Window { .. } | E::NoPlace { .. } => 4,
        E::Not64Bit => 5,
        E::NoMemory { .. } | E::Access { .. } => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    #[test]
    fn what_comes_before_the_step_that_failed_went_well() {
        let mut checks = Vec::new();
        steps(Some(&E::Not64Bit), &mut checks);
        let verdicts: Vec<_> = checks.iter().map(|check| check.verdict).collect();
        let mut expected = vec![Verdict::Ok; 5];
        expected.push(Verdict::Missing);
        assert_eq!(verdicts, expected);
        assert!(
            checks.last().unwrap().found.contains("64-bit"),
            "{checks:?}"
        );
        checks.clear();
        steps(None, &mut checks);
        assert_eq!(checks.len(), STEPS.len());
        assert!(checks.iter().all(|check| check.verdict == Verdict::Ok));
    }

    #[test]
    fn what_is_no_guest_is_told_and_nothing_else_is_tried() {
        // Not this process: other tests in it have guests.
        let mut other = std::process::Command::new("cat");
        let mut other = other.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = other.id().to_string();
        for wanted in [pid.as_str(), "2147483647", "nobody-is-called-so"] {
            let mut checks = Vec::new();
            look(Some(wanted), &mut checks);
            assert_eq!(checks.len(), 1, "{wanted}: {checks:?}");
            assert_eq!(checks[0].verdict, Verdict::Missing, "{wanted}");
        }
        // It ends when nobody can write to it any more.
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
