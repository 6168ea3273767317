//! Runs trials, each in a VM and on a thread of its own, with a deadline: a KVM that does not come back is a finding.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, siginfo_t};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler, unblock_signal};

use super::vm::TrialVm;
use super::{Ending, Outcome, PATIENCE, Trial, TrialError};

/// How often a vCPU that is late is signalled: a signal just before `KVM_RUN` is lost.
const WAKE_PERIOD: Duration = Duration::from_millis(10);

/// Runs `trial` in a new VM.
///
/// # Errors
/// [`TrialError`] when the VM cannot be made or its vCPU does not leave the guest in time.
pub(super) fn run(trial: Trial) -> Result<Outcome, TrialError> {
    in_a_vm(move |vm| vm.run(&trial))
}

/// The same, while another thread does `meanwhile` with the VM's memory, until it is told that the code has ended.
///
/// # Errors
/// As [`run`].
pub(super) fn run_while<T: Send + 'static>(
    trial: Trial,
    meanwhile: impl FnOnce(&GuestMemoryMmap, &AtomicBool) -> T + Send + 'static,
) -> Result<(Outcome, T), TrialError> {
    in_a_vm(move |vm| vm.run_while(&trial, meanwhile))
}

/// How long each of `count` exits takes that code in a new VM makes one after the other: from the host into
/// the guest, to `expected`, and back.
///
/// # Errors
/// As [`run`]; also when an exit is another one.
pub(super) fn time(
    trial: Trial,
    expected: Ending,
    count: usize,
) -> Result<Vec<Duration>, TrialError> {
    in_a_vm(move |vm| vm.time(&trial, &expected, count))
}

fn in_a_vm<T: Send + 'static>(
    work: impl FnOnce(&mut TrialVm) -> Result<T, TrialError> + Send + 'static,
) -> Result<T, TrialError> {
    register_signal_handler(wake_signal(), on_wake).map_err(TrialError::system)?;
    // Whoever started us can have blocked it, and the thread would not be woken.
    unblock_signal(wake_signal()).map_err(TrialError::system)?;
    let (sender, receiver) = channel();
    let vcpu = thread::Builder::new()
        .name("trial".to_owned())
        .spawn(move || {
            // The receiver is gone only when it has given this thread up.
            let _ = sender.send(TrialVm::create().and_then(|mut vm| work(&mut vm)));
        })
        .map_err(TrialError::system)?;
    wait(&receiver, &vcpu)
}

fn wait<T>(
    outcome: &Receiver<Result<T, TrialError>>,
    vcpu: &JoinHandle<()>,
) -> Result<T, TrialError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match outcome.recv_timeout(WAKE_PERIOD) {
            Ok(_) if Instant::now() > deadline => return Err(TrialError::Hung),
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(TrialError::system("its thread ended early"));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline + PATIENCE => {
                vcpu.kill(wake_signal()).map_err(TrialError::system)?;
            }
            Err(RecvTimeoutError::Timeout) => return Err(TrialError::Hung),
        }
    }
}

/// Not the signal that kicks the vCPUs of a machine.
fn wake_signal() -> c_int {
    SIGRTMIN() + 1
}

extern "C" fn on_wake(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {}
