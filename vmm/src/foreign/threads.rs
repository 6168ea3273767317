//! Which thread of a VMM executes which vCPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::user_regs_struct;

use super::error::ForeignError;
use super::held::{HeldThread, Rest};
use super::process::{Process, VcpuDescriptor};
use super::vcpu::{ForeignVcpu, is_run_of};
use super::way_back::WayBack;

/// Time that a thread has to show what it does. Nobody stands still while that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks at all threads: one that executes a vCPU can do something else for it just now. Where none does after so many (the
/// VMM has stopped its guest), each pause looks again.
const LOOKS: u32 = 8;

/// What a thread that runs is doing: its system call; none when that is not known.
type Ask<'a> = &'a dyn Fn(i32) -> Result<Option<[u64; 3]>, ForeignError>;

/// The calls that are made in the name of a VMM's threads (`window.rs`, `vcpu.rs`).
const CALLS: [i64; 5] = [
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_close,
    libc::SYS_ioctl,
];

/// Waits until no thread is in a call any more, or about to make one, that a tracer has asked it for which died meanwhile: what
/// is mapped and open is all that will be, then. Each thread that may be in one stands still for a moment.
///
/// # Errors
/// [`ForeignError::Ptrace`], [`ForeignError::Late`], [`ForeignError::Proc`], [`ForeignError::NoWayBack`].
pub(super) fn settle(process: &Process) -> Result<(), ForeignError> {
    let way = WayBack::find(process)?;
    let deadline = Instant::now() + PATIENCE;
    for thread in process.threads()? {
        let is_ours = |[number, ..]: [u64; 3]| CALLS.contains(&number.cast_signed());
        if process
            .system_call(thread)
            .is_some_and(|call| !is_ours(call))
        {
            continue;
        }
        let rest = Rest::until(deadline);
        // A thread that is in a call stops at its end; one that is about to make it may stop before.
        while stopped_at(thread, deadline)?.is_some_and(|registers| registers.rip == way.call) {
            if !rest.a_moment() {
                let what = "a call was to be made in its name";
                return Err(ForeignError::Late { thread, what });
            }
        }
    }
    Ok(())
}

/// The vCPUs of these descriptors, each with the thread that executes it if that shows.
///
/// # Errors
/// [`ForeignError::NoWayBack`] and others.
pub(super) fn open(
    process: &Process,
    descriptors: &[VcpuDescriptor],
) -> Result<Vec<Arc<ForeignVcpu>>, ForeignError> {
    let way = WayBack::find(process)?;
    let open = |descriptor| ForeignVcpu::open(process, descriptor, way).map(Arc::new);
    let vcpus = descriptors.iter().copied().map(open);
    let vcpus = vcpus.collect::<Result<Vec<_>, _>>()?;
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..LOOKS {
        look(process, &vcpus, &|thread| asked(thread, deadline))?;
    }
    Ok(vcpus)
}

/// Looks for the threads of those vCPUs of which it is not known. Nobody is stopped for that.
///
/// # Errors
/// [`ForeignError::Proc`].
pub(super) fn find_threads(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
) -> Result<(), ForeignError> {
    look(process, vcpus, &|_| Ok(None))
}

/// Finds threads by what they do: who is in the call that executes a vCPU shows it. One that is busy in the guest does not:
/// `ask` may stop it for a moment and ask.
fn look(process: &Process, vcpus: &[Arc<ForeignVcpu>], ask: Ask<'_>) -> Result<(), ForeignError> {
    let is_unknown = |vcpu: &&Arc<ForeignVcpu>| vcpu.thread().is_none();
    if vcpus.iter().find(is_unknown).is_none() {
        return Ok(());
    }
    for thread in process.threads()? {
        if vcpus.iter().any(|vcpu| vcpu.thread() == Some(thread)) {
            continue;
        }
        let call = match process.system_call(thread) {
            Some(call) => Some(call),
            None => ask(thread)?,
        };
        let of = |call| vcpus.iter().find(|one| is_run_of(one, call));
        if let Some(vcpu) = call.and_then(of) {
            vcpu.set_thread(process, thread);
        }
    }
    Ok(())
}

/// The system call that a running thread is in; none when it has ended meanwhile.
fn asked(thread: i32, deadline: Instant) -> Result<Option<[u64; 3]>, ForeignError> {
    let stopped = stopped_at(thread, deadline)?;
    Ok(stopped.map(|at| [at.orig_rax, at.rdi, at.rsi]))
}

/// The registers of a thread, which is stopped for that; none when it has ended meanwhile.
pub(super) fn stopped_at(
    thread: i32,
    deadline: Instant,
) -> Result<Option<user_regs_struct>, ForeignError> {
    let registers = || {
        let mut held = HeldThread::seize(thread, false, deadline)?;
        held.interrupt()?;
        held.wait_stopped(deadline)?;
        held.registers()
    };
    match registers() {
        Err(ForeignError::Ended { .. }) => Ok(None),
        stopped => stopped.map(Some),
    }
}
