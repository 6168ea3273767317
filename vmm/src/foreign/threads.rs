//! Which thread of a VMM executes which vCPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::ForeignError;
use super::held::HeldThread;
use super::process::{Process, VcpuDescriptor};
use super::vcpu::{ForeignVcpu, is_run_of};

/// Time that a thread has to show what it does.
const PATIENCE: Duration = Duration::from_secs(2);

/// The vCPUs of a VMM's guest, by number.
///
/// # Errors
/// [`ForeignError::NotVmm`], [`ForeignError::NoThread`] and others.
pub(super) fn vcpus_of(process: &Process) -> Result<Vec<Arc<ForeignVcpu>>, ForeignError> {
    let pid = process.pid();
    let descriptors = process.vcpu_descriptors()?;
    if descriptors.is_empty() {
        return Err(ForeignError::NotVmm { pid });
    }
    let threads = threads_of(process, &descriptors)?;
    let syscall = Arc::default();
    let open = |descriptor: &VcpuDescriptor| {
        let vcpu = descriptor.vcpu;
        let thread = threads.get(&descriptor.fd).copied();
        let thread = thread.ok_or(ForeignError::NoThread { pid, vcpu })?;
        ForeignVcpu::open(process, *descriptor, thread, &syscall).map(Arc::new)
    };
    descriptors.iter().map(open).collect()
}

/// The thread for each descriptor, by what threads do: who is in the call that executes a vCPU shows it. One that is busy in
/// the guest does not, and is stopped for a moment and asked.
fn threads_of(
    process: &Process,
    descriptors: &[VcpuDescriptor],
) -> Result<BTreeMap<i32, i32>, ForeignError> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = BTreeMap::new();
    while found.len() < descriptors.len() && Instant::now() < deadline {
        for thread in process.threads()? {
            if found.values().any(|known| *known == thread) {
                continue;
            }
            let call = match process.system_call(thread) {
                Some(call) => Some(call),
                None => asked(thread, deadline)?,
            };
            let of = |call| descriptors.iter().find(|one| is_run_of(one.fd, call));
            if let Some(descriptor) = call.and_then(of) {
                found.insert(descriptor.fd, thread);
            }
        }
    }
    Ok(found)
}

/// The system call that a running thread is in; none when it has ended meanwhile.
fn asked(thread: i32, deadline: Instant) -> Result<Option<[u64; 3]>, ForeignError> {
    let mut held = match HeldThread::seize(thread, false) {
        Err(ForeignError::Ended { .. }) => return Ok(None),
        held => held?,
    };
    match held.wait_stopped(deadline) {
        Err(ForeignError::Ended { .. }) => return Ok(None),
        stopped => stopped?,
    }
    let registers = held.registers()?;
    Ok(Some([registers.orig_rax, registers.rdi, registers.rsi]))
}
