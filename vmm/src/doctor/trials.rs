//! What the tiny VM tells, as checks.

use super::check::{Check, NEWER_KVM, Need, Subject};
use crate::processor::{promises_atomic, vendor};
use crate::trial::TrialError;
use crate::trial::features::{self, Speed};
use crate::trial::switching::{self, Effort, Switching};

const RING0: Subject = Subject {
    name: "ring 0 runs",
    need: Need::Required,
    means: "no kernel runs",
    mend: NEWER_KVM,
};

const RING0_EXECUTED: Subject = Subject {
    name: "ring 0 is executed, not emulated",
    need: Need::Optional,
    means: "every kernel instruction is emulated: Linux guests do not finish booting; the bundled \
            guest works, because its workloads run in ring 3",
    mend: "for Linux guests and ring=0 use the box: images/box/run target/release/vmm ...",
};

const RING3_EXECUTED: Subject = Subject {
    name: "ring 3 is executed, not emulated",
    need: Need::Optional,
    means: "timings of workloads mean nothing here",
    mend: "measure on a host whose CPU runs the guest",
};

const IMMEDIATE_EXIT: Subject = Subject {
    name: "immediate exit works",
    need: Need::Required,
    means: "a vCPU cannot be paused without losing kicks",
    mend: NEWER_KVM,
};

const TSC: Subject = Subject {
    name: "rdtsc gives the vCPU's own TSC",
    need: Need::Optional,
    means: "the guest sees the host's TSC in ring 3: trace times are taken from that one",
    mend: "nothing to do: the offset is detected, not assumed",
};

const SET_BACK: Subject = Subject {
    name: "the guest's TSC can be set back",
    need: Need::Optional,
    means: "the guest sees by its clock that it waits for the reader of a lossless session",
    mend: "nothing to do: each wait is counted, and an event of the trace",
};

const RDTSCP: Subject = Subject {
    name: "rdtscp gives the vCPU's TSC_AUX",
    need: Need::Optional,
    means: "a stub cannot tell its vCPU by rdtscp: guests without a per-vCPU gs share one ring",
    mend: "nothing to do: the strategy is chosen by a trial at attach",
};

const RDPID: Subject = Subject {
    name: "rdpid gives the vCPU's TSC_AUX",
    need: Need::Optional,
    means: "a stub cannot tell its vCPU by rdpid: guests without a per-vCPU gs share one ring",
    mend: "nothing to do: the strategy is chosen by a trial at attach",
};

const HARDWARE_BREAKPOINT: Subject = Subject {
    name: "hardware breakpoints exit (ring 0)",
    need: Need::Optional,
    means: "--attach-at stops the guest by a port write in its text instead",
    mend: "nothing to do, unless the address is not in the kernel's file",
};

const SOFTWARE_BREAKPOINT: Subject = Subject {
    name: "software breakpoints exit (ring 0)",
    need: Need::Optional,
    means: "int3 cannot stop the guest here",
    mend: "nothing to do where hardware breakpoints or port writes exit",
};

const SOFTWARE_BREAKPOINT_RING3: Subject = Subject {
    name: "software breakpoints exit (ring 3)",
    need: Need::Optional,
    means: "the host cannot serve breakpoints: --patch-method live needs a guest that does",
    mend: "nothing to do for the bundled guest, or with --patch-method quiesce",
};

const SWITCHING: Subject = Subject {
    name: "text changes while it is executed",
    need: Need::Optional,
    means: "--patch-method atomic is not offered: text is changed while the guest is stopped, for microseconds",
    mend: "nothing to do: --patch-method quiesce is what is taken then; on AMD's processors nobody need be stopped",
};

const SINGLE_STEP: Subject = Subject {
    name: "single step exits (ring 0)",
    need: Need::Optional,
    means: "a vCPU inside a patch site cannot be stepped out of it; it is moved or waited for",
    mend: NEWER_KVM,
};

const PORT_WRITE: Subject = Subject {
    name: "port writes exit (ring 0)",
    need: Need::Required,
    means: "the guest can neither print nor end",
    mend: NEWER_KVM,
};

/// Tries each.
pub(super) fn look(checks: &mut Vec<Check>) {
    let ring0 = features::ring0_speed();
    let runs = ring0.is_ok();
    checks.push(RING0.tried(ring0.as_ref()));
    if !runs {
        return;
    }
    checks.push(speed(RING0_EXECUTED, ring0));
    checks.push(speed(RING3_EXECUTED, features::ring3_speed()));
    checks.push(yes_no(IMMEDIATE_EXIT, features::immediate_exit_works()));
    checks.push(yes_no(PORT_WRITE, features::port_writes_exit()));
    checks.push(yes_no(
        HARDWARE_BREAKPOINT,
        features::hardware_breakpoints_exit(),
    ));
    checks.push(yes_no(
        SOFTWARE_BREAKPOINT,
        features::software_breakpoints_exit(),
    ));
    checks.push(yes_no(
        SOFTWARE_BREAKPOINT_RING3,
        features::software_breakpoints_of_ring3_exit(),
    ));
    checks.push(switching());
    checks.push(yes_no(SINGLE_STEP, features::single_step_exits()));
    checks.push(yes_no(TSC, features::tsc_offset_is_virtualised()));
    checks.push(set_back());
    checks.push(yes_no(RDTSCP, features::tsc_aux_is_virtualised()));
    checks.push(yes_no(RDPID, features::rdpid_is_virtualised()));
}

/// What the processor's maker promises, and what a trial of a second shows.
fn switching() -> Check {
    let promised = promises_atomic();
    match switching::switching(Effort::SECOND) {
        Ok(tried) => {
            let Switching {
                switches,
                passes: [old, new],
                is_right,
            } = tried;
            let promise = match &promised {
                Ok(()) => format!("{} promises it", vendor()),
                Err(why) => why.to_string(),
            };
            let seen = match is_right {
                true => format!("{switches} switches in {} passes, none wrong", old + new),
                false => format!("a pass went wrong in {switches} switches"),
            };
            SWITCHING.check(
                promised.is_ok() && is_right && tried.is_telling(),
                format!("{promise}; {seen}"),
            )
        }
        Err(error) => SWITCHING.check(false, error.to_string()),
    }
}

/// Both rings are tried: where one is emulated, they need not read the same counter.
fn set_back() -> Check {
    match features::tsc_can_be_set_back() {
        Ok(true) => SET_BACK.check(true, "yes, in ring 0 and ring 3"),
        Ok(false) => SET_BACK.check(false, "KVM takes the offset, the guest does not see it"),
        Err(error) => SET_BACK.check(false, error.to_string()),
    }
}

fn speed(subject: Subject, result: Result<Speed, TrialError>) -> Check {
    match result {
        Ok(speed) => {
            let found = format!("{:.1} ns per instruction", speed.ns_per_instruction);
            subject.check(!speed.is_emulated(), found)
        }
        Err(error) => subject.check(false, error.to_string()),
    }
}

fn yes_no(subject: Subject, result: Result<bool, TrialError>) -> Check {
    match result {
        Ok(fine) => subject.check(fine, if fine { "yes" } else { "no" }),
        Err(error) => subject.check(false, error.to_string()),
    }
}
