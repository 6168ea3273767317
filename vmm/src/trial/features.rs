//! Features that only a try can tell: each of these runs a few instructions in a tiny VM.
//!
//! For code that has to choose by what the host really does, never by what it is called.

use std::time::Duration;

use super::run::{run, time};
use super::{Ending, Outcome, Ring, Trial, TrialError, Watch};

/// `mov [rbx], rcx`
const REPORT_RCX: &[u8] = &[0x48, 0x89, 0x0b];
/// `rdtsc; shl rdx, 32; or rax, rdx; mov rsi, rax; 1: dec ecx; jnz 1b;`
/// `rdtsc; shl rdx, 32; or rax, rdx; sub rax, rsi; mov [rbx], rax`
const TIMED_LOOP: &[u8] = &[
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0xc6, 0xff, 0xc9, 0x75, 0xfc,
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x29, 0xf0, 0x48, 0x89, 0x03,
];
/// `rdtsc; shl rdx, 32; or rax, rdx; mov [rbx], rax`
const REPORT_TSC: &[u8] = &[
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0x03,
];
/// `rdtscp; mov [rbx], rcx`
const REPORT_RDTSCP: &[u8] = &[0x0f, 0x01, 0xf9, 0x48, 0x89, 0x0b];
/// `rdpid rax; mov [rbx], rax`
const REPORT_RDPID: &[u8] = &[0xf3, 0x0f, 0xc7, 0xf8, 0x48, 0x89, 0x03];
/// `nop; int3; mov [rbx], rcx`
const NOP_INT3: &[u8] = &[0x90, 0xcc, 0x48, 0x89, 0x0b];
/// `int3; mov [rbx], rcx`
const INT3: &[u8] = &[0xcc, 0x48, 0x89, 0x0b];
/// `nop; nop; mov [rbx], rcx`
const NOP_NOP: &[u8] = &[0x90, 0x90, 0x48, 0x89, 0x0b];
/// `out 0xf5, al; mov [rbx], rcx`
const PORT_WRITE: &[u8] = &[0xe6, 0xf5, 0x48, 0x89, 0x0b];
const PORT: u16 = 0xf5;

/// Far from the counter of any host: years of uptime.
const STRANGE_TSC: u64 = 1 << 52;
/// Half a minute: more than any trial takes.
const SET_BACK: u64 = 1 << 36;
/// A CPU number that no host has.
const STRANGE_TSC_AUX: u64 = 0x005e_ed42;

/// Instructions of [`TIMED_LOOP`] per count.
const INSTRUCTIONS_PER_COUNT: u32 = 2;
/// An emulated processor that translates code takes some milliseconds at the start of each run, on a busy host: a small part of
/// what so many take that are emulated one by one (120 ms at 600 ns each).
const COUNTS: u32 = 100_000;
/// The first run pays for everything that is done once.
const SPEED_RUNS: u32 = 3;
/// A busy host interrupts one run or the other. It takes that many in a row to make executed code look emulated.
const SPEED_RUNS_MAX: u32 = 8;

/// An emulated instruction takes longer than this, an executed or translated one does not.
const EMULATED_NS: f64 = 100.0;

/// How fast one privilege level runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Nanoseconds per simple instruction, by the TSC that the code itself reads.
    pub ns_per_instruction: f64,
}

impl Speed {
    /// Whether every instruction goes through an emulator.
    #[must_use]
    pub fn is_emulated(self) -> bool {
        self.ns_per_instruction > EMULATED_NS
    }
}

/// Whether 64-bit code runs in ring 0, and how fast.
///
/// # Errors
/// [`TrialError`] when there is no tiny VM to try it in, or the code did not run to its end.
pub fn ring0_speed() -> Result<Speed, TrialError> {
    speed(Ring::Kernel)
}

/// Whether 64-bit code runs in ring 3, and how fast.
///
/// # Errors
/// As [`ring0_speed`].
pub fn ring3_speed() -> Result<Speed, TrialError> {
    speed(Ring::User)
}

/// The best of a few, and of more as long as it looks emulated.
fn speed(ring: Ring) -> Result<Speed, TrialError> {
    let mut best = Speed {
        ns_per_instruction: f64::INFINITY,
    };
    for runs in 0..SPEED_RUNS_MAX {
        if runs >= SPEED_RUNS && !best.is_emulated() {
            break;
        }
        let count = u64::from(COUNTS);
        let outcome = run(Trial {
            count,
            ..Trial::of(TIMED_LOOP, ring)
        })?;
        let ticks = u32::try_from(reported(&outcome)?).unwrap_or(u32::MAX);
        let ns = f64::from(ticks) * 1e6 / f64::from(outcome.tsc_khz.max(1));
        let each = ns / f64::from(COUNTS * INSTRUCTIONS_PER_COUNT);
        best.ns_per_instruction = best.ns_per_instruction.min(each);
    }
    Ok(best)
}

/// Whether `rdtsc` in ring 3 gives what KVM reports as the vCPU's `IA32_TSC`, also after that was
/// set to another value than the host's. (A KVM that ignores the setting, and says so by what it
/// reports, passes: there is no offset then.)
///
/// # Errors
/// As [`ring0_speed`].
pub fn tsc_offset_is_virtualised() -> Result<bool, TrialError> {
    let tsc = Some(STRANGE_TSC);
    let outcome = run(Trial {
        tsc,
        ..Trial::of(REPORT_TSC, Ring::User)
    })?;
    let value = reported(&outcome)?;
    let (before, after) = outcome.tsc;
    Ok((before..=after).contains(&value))
}

/// Ticks in a millisecond of a counter that nobody has asked to run otherwise: the host's.
///
/// # Errors
/// As [`ring0_speed`].
pub fn tsc_khz() -> Result<u32, TrialError> {
    Ok(run(Trial::of(REPORT_TSC, Ring::User))?.tsc_khz)
}

/// Whether `rdtsc` goes back when KVM is asked to set the vCPU's counter back, in ring 0 and in ring 3.
///
/// # Errors
/// As [`ring0_speed`]; also when KVM has no such request.
pub fn tsc_can_be_set_back() -> Result<bool, TrialError> {
    for ring in [Ring::Kernel, Ring::User] {
        let set_back = Some(SET_BACK);
        let outcome = run(Trial {
            set_back,
            ..Trial::of(REPORT_TSC, ring)
        })?;
        let value = reported(&outcome)?;
        let (before, after) = outcome.tsc;
        if !outcome.is_set_back || !(before..=after).contains(&value) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether `rdtscp` in ring 3 returns what the vCPU's `TSC_AUX` was set to. On some hosts it
/// returns the number of the host's CPU.
///
/// # Errors
/// As [`ring0_speed`]; also when the CPU has no `rdtscp`.
pub fn tsc_aux_is_virtualised() -> Result<bool, TrialError> {
    returns_tsc_aux(REPORT_RDTSCP)
}

/// Whether `rdpid` in ring 3 exists and returns what the vCPU's `TSC_AUX` was set to.
///
/// # Errors
/// As [`tsc_aux_is_virtualised`].
pub fn rdpid_is_virtualised() -> Result<bool, TrialError> {
    returns_tsc_aux(REPORT_RDPID)
}

fn returns_tsc_aux(code: &'static [u8]) -> Result<bool, TrialError> {
    let tsc_aux = Some(STRANGE_TSC_AUX);
    let outcome = run(Trial {
        tsc_aux,
        ..Trial::of(code, Ring::User)
    })?;
    Ok(reported(&outcome)? == STRANGE_TSC_AUX)
}

/// Whether `int3` in ring 0 leaves the guest when KVM is asked for that.
///
/// # Errors
/// When there is no tiny VM to try it in.
pub fn software_breakpoints_exit() -> Result<bool, TrialError> {
    int3_exits(Ring::Kernel)
}

/// Whether `int3` in ring 3 does.
///
/// # Errors
/// As [`software_breakpoints_exit`].
pub fn software_breakpoints_of_ring3_exit() -> Result<bool, TrialError> {
    int3_exits(Ring::User)
}

fn int3_exits(ring: Ring) -> Result<bool, TrialError> {
    let trial = Trial {
        ring,
        ..Trial::watched(NOP_INT3, Watch::SoftwareBreakpoint)
    };
    Ok(run(trial)?.ending == Ending::Watched(1))
}

/// Whether a hardware breakpoint in ring 0 leaves the guest.
///
/// # Errors
/// When there is no tiny VM to try it in.
pub fn hardware_breakpoints_exit() -> Result<bool, TrialError> {
    let outcome = run(Trial::watched(NOP_NOP, Watch::HardwareBreakpoint(1)))?;
    Ok(outcome.ending == Ending::Watched(1))
}

/// Whether single step in ring 0 leaves the guest after one instruction.
///
/// # Errors
/// When there is no tiny VM to try it in.
pub fn single_step_exits() -> Result<bool, TrialError> {
    let outcome = run(Trial::watched(NOP_NOP, Watch::SingleStep))?;
    Ok(outcome.ending == Ending::Watched(1))
}

/// Whether a write to a port in ring 0 leaves the guest: a trap of two bytes that needs no
/// debugging support.
///
/// # Errors
/// When there is no tiny VM to try it in.
pub fn port_writes_exit() -> Result<bool, TrialError> {
    let outcome = run(Trial::of(PORT_WRITE, Ring::Kernel))?;
    Ok(outcome.ending == Ending::PortWritten(PORT))
}

/// A way out of a guest's ring 0 to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// `int3`, where KVM hands it over.
    SoftwareBreakpoint,
    /// A debug register.
    HardwareBreakpoint,
    /// A write to a port.
    PortWrite,
}

/// How long each of `count` exits takes: from `KVM_RUN` into a guest whose next instruction leaves it (with a
/// hardware breakpoint: the one after it) and back.
///
/// # Errors
/// [`TrialError`] when there is no tiny VM to try it in, or the guest is not left so.
pub fn exit_times(exit: Exit, count: usize) -> Result<Vec<Duration>, TrialError> {
    let (trial, expected) = match exit {
        Exit::SoftwareBreakpoint => {
            let trial = Trial::watched(INT3, Watch::SoftwareBreakpoint);
            (trial, Ending::Watched(0))
        }
        Exit::HardwareBreakpoint => {
            let trial = Trial::watched(NOP_NOP, Watch::HardwareBreakpoint(1));
            (trial, Ending::Watched(1))
        }
        Exit::PortWrite => {
            let trial = Trial::of(PORT_WRITE, Ring::Kernel);
            (trial, Ending::PortWritten(PORT))
        }
    };
    time(trial, expected, count)
}

/// Whether `KVM_RUN` returns at once when `immediate_exit` is set.
///
/// # Errors
/// When there is no tiny VM to try it in.
pub fn immediate_exit_works() -> Result<bool, TrialError> {
    let trial = Trial {
        immediate_exit: true,
        ..Trial::of(REPORT_RCX, Ring::Kernel)
    };
    Ok(run(trial)?.ending == Ending::Interrupted)
}

fn reported(outcome: &Outcome) -> Result<u64, TrialError> {
    match &outcome.ending {
        Ending::Reported(value) => Ok(*value),
        other => Err(TrialError::Ended(other.to_string())),
    }
}
