//! The kick: a real-time signal that gets a vCPU thread out of `KVM_RUN`.
//!
//! The handler sets `immediate_exit` in the thread's own `kvm_run` page. So a signal that arrives
//! just before `KVM_RUN` is not lost: `KVM_RUN` then returns at once.
// UNSAFETY: a signal handler and a pointer into the page that KVM shares with us.

use std::cell::Cell;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

use kvm_bindings::kvm_run;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// The `kvm_run` page of the vCPU that this thread runs; null on every other thread.
    static RUN: Cell<*mut kvm_run> = const { Cell::new(std::ptr::null_mut()) };
}

/// Installs the handler. Once per process is enough; more often does no harm.
///
/// # Errors
/// When the system refuses the handler.
pub fn install_handler() -> std::io::Result<()> {
    register_signal_handler(SIGRTMIN(), on_kick)
        .map_err(|error| std::io::Error::from_raw_os_error(error.errno()))
}

extern "C" fn on_kick(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {
    set_immediate_exit(true);
}

/// While it lives, kicks to this thread reach the vCPU whose page it was made from.
#[derive(Debug)]
pub(super) struct KickTarget;

impl KickTarget {
    /// Registers the page of the vCPU that this thread is going to run. The page must stay mapped
    /// until this value is dropped.
    pub(super) fn register(run: *mut kvm_run) -> Self {
        RUN.set(run);
        Self
    }
}

impl Drop for KickTarget {
    fn drop(&mut self) {
        RUN.set(std::ptr::null_mut());
    }
}

/// Says whether the next `KVM_RUN` of this thread is to return before it enters the guest.
pub(super) fn set_immediate_exit(on: bool) {
    let run = RUN.get();
    if run.is_null() {
        return;
    }
    // SAFETY: `run` is the page that `KickTarget::register` was given; it stays mapped while the
    // thread's vCPU lives. Only this thread and its signal handler write the field.
    let field = unsafe { &raw mut (*run).immediate_exit };
    // SAFETY: as above; volatile, because the kernel reads it and the handler writes it.
    unsafe { field.write_volatile(u8::from(on)) };
}

/// Sends the kick to `thread`.
pub(super) fn kick<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle is not joined yet, so the thread id is valid even if the thread has ended.
    let refused = unsafe { libc::pthread_kill(thread.as_pthread_t(), SIGRTMIN()) };
    if refused != 0 && refused != libc::ESRCH {
        log::warn!("kicking a vCPU thread failed with error {refused}");
    }
}

/// Makes this core forget every instruction that it has fetched ahead.
///
/// Text that another core has changed may be executed only after a serialising instruction
/// (cross-modifying code). `iretq` to the next instruction is one; `cpuid` would be another, but
/// it costs microseconds under a hypervisor.
pub(super) fn serialise_core() {
    // SAFETY: builds an interrupt return frame with the present selectors, flags and stack pointer
    // and returns to the label behind it: nothing changes but the scratch registers.
    unsafe {
        std::arch::asm!(
            "mov {stack}, rsp",
            "mov {selector:e}, ss",
            "push {selector}",
            "push {stack}",
            "pushfq",
            "mov {selector:e}, cs",
            "push {selector}",
            "lea {stack}, [rip + 2f]",
            "push {stack}",
            "iretq",
            "2:",
            stack = out(reg) _,
            selector = out(reg) _,
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn serialising_changes_nothing() {
        let local = std::hint::black_box([1u64, 2, 3]);
        for _ in 0..1000 {
            super::serialise_core();
        }
        assert_eq!(std::hint::black_box(local), [1, 2, 3]);
    }
}
