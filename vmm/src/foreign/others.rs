//! The threads of a VMM of which it is not known that they execute a vCPU. While all of them are held, none can enter the
//! guest.

use std::sync::Arc;
use std::time::Instant;

use super::error::ForeignError;
use super::held::{HeldThread, Together};
use super::process::Process;
use super::vcpu::{ForeignVcpu, is_run_of};

/// Holds all threads but those that are known to execute one of `vcpus`; those, too, that are made meanwhile.
///
/// # Errors
/// [`ForeignError::Late`] and others; then all of them continue.
pub(super) fn hold_others(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    deadline: Instant,
) -> Result<Together<HeldThread>, ForeignError> {
    let known: Vec<_> = vcpus.iter().filter_map(|vcpu| vcpu.thread()).collect();
    let mut held: Together<HeldThread> = Vec::new().into();
    loop {
        let mut threads = process.threads()?;
        threads.retain(|thread| !known.contains(thread));
        threads.retain(|thread| held.iter().all(|held| held.number() != *thread));
        if threads.is_empty() {
            return Ok(held);
        }
        let seized = threads.iter().map(|thread| seize(process, *thread));
        let seized = seized.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut seized: Together<HeldThread> = seized.flatten().collect::<Vec<_>>().into();
        for thread in seized.iter_mut() {
            match thread.wait_stopped(deadline) {
                Ok(()) | Err(ForeignError::Ended { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let there = seized.apart().into_iter();
        held.extend(there.filter(|thread| !thread.is_gone()));
    }
}

/// None when it has ended meanwhile.
fn seize(process: &Process, thread: i32) -> Result<Option<HeldThread>, ForeignError> {
    let seized = HeldThread::seize(thread, process.is_filtered(thread));
    match seized.and_then(|held| held.interrupt().map(|()| held)) {
        Err(ForeignError::Ended { .. }) => Ok(None),
        seized => seized.map(Some),
    }
}

/// Notes of each of these threads that executes a vCPU which one. Says whether one does.
///
/// # Errors
/// [`ForeignError::Ptrace`].
pub(super) fn recognise(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    threads: &[HeldThread],
) -> Result<bool, ForeignError> {
    let mut is_news = false;
    for thread in threads {
        let registers = thread.registers()?;
        let call = [registers.orig_rax, registers.rdi, registers.rsi];
        let mut unknown = vcpus.iter().filter(|vcpu| vcpu.thread().is_none());
        if let Some(vcpu) = unknown.find(|vcpu| is_run_of(vcpu, call)) {
            vcpu.set_thread(process, thread.number());
            is_news = true;
        }
    }
    Ok(is_news)
}
