//! The kick: a real-time signal that gets a vCPU thread out of `KVM_RUN`.
//!
//! The handler sets `immediate_exit` in the thread's own `kvm_run` page. So a signal that arrives
//! just before `KVM_RUN` is not lost: `KVM_RUN` then returns at once.
//!
//! The page is mapped once more for that, and only the one byte is accessed through this mapping: the
//! vCPU's own is borrowed as a whole, and mutably, by whoever enters the guest.
// UNSAFETY: a signal handler, and a mapping of the page that KVM shares with us.

use std::cell::Cell;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler, unblock_signal};

/// Bytes of the mapping: the byte that is wanted lies in the first page.
const PAGE: usize = 4096;
const IMMEDIATE_EXIT: usize = offset_of!(kvm_run, immediate_exit);
const _: () = assert!(IMMEDIATE_EXIT < PAGE);

thread_local! {
    /// `immediate_exit` of the vCPU that this thread runs; null on every other thread.
    static FLAG: Cell<*const AtomicU8> = const { Cell::new(std::ptr::null()) };
}

/// `immediate_exit` of a vCPU, in a mapping of its own.
#[derive(Debug)]
pub(super) struct ImmediateExit {
    page: NonNull<c_void>,
}

// SAFETY: the mapping belongs to no thread, and its byte is accessed as an atomic only.
unsafe impl Send for ImmediateExit {}
// SAFETY: as above.
unsafe impl Sync for ImmediateExit {}

impl ImmediateExit {
    /// Maps the page of `vcpu`.
    pub(super) fn map(vcpu: &VcpuFd) -> Result<Self, kvm_ioctls::Error> {
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, vcpu.as_raw_fd());
        // SAFETY: a new mapping at an address that the system chooses; KVM backs it with the vCPU's
        // shared pages, of which there is at least one.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, fd, 0) };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(Self { page }),
            _ => Err(kvm_ioctls::Error::last()),
        }
    }

    fn flag(&self) -> *const AtomicU8 {
        let start = self.page.as_ptr().cast_const().cast::<AtomicU8>();
        start.wrapping_add(IMMEDIATE_EXIT)
    }
}

impl Drop for ImmediateExit {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made; a thread that knows its byte keeps this value alive.
        let failed = unsafe { libc::munmap(self.page.as_ptr(), PAGE) };
        if failed != 0 {
            log::warn!("a vCPU's page stays mapped");
        }
    }
}

/// Installs the handler, for threads that the caller creates afterwards. Once per process is enough; more often does no harm.
///
/// # Errors
/// When the system refuses the handler.
pub fn install_handler() -> std::io::Result<()> {
    // Whoever started us can have blocked it, and no vCPU would ever pause.
    unblock_signal(SIGRTMIN()).map_err(|error| std::io::Error::other(error.to_string()))?;
    register_signal_handler(SIGRTMIN(), on_kick)
        .map_err(|error| std::io::Error::from_raw_os_error(error.errno()))
}

extern "C" fn on_kick(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {
    set_immediate_exit(true);
}

/// The threads that run a machine's vCPUs.
#[derive(Debug, Default)]
pub(crate) struct KickTargets(Mutex<Vec<libc::pthread_t>>);

impl KickTargets {
    /// Sends the kick to each but the caller.
    pub(super) fn kick_others(&self) {
        let (threads, own) = (self.lock(), this_thread());
        for thread in threads.iter().filter(|thread| **thread != own) {
            // SAFETY: a thread takes its number out under the lock before it ends.
            let refused = unsafe { libc::pthread_kill(*thread, SIGRTMIN()) };
            warn_of(refused);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<libc::pthread_t>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn this_thread() -> libc::pthread_t {
    // SAFETY: it has no effect but its result.
    unsafe { libc::pthread_self() }
}

/// While it lives, kicks to this thread reach the vCPU whose flag it has.
#[derive(Debug)]
pub(super) struct KickTarget {
    _kept: Arc<ImmediateExit>,
    among: Arc<KickTargets>,
}

impl KickTarget {
    /// Registers the flag of the vCPU that this thread is going to run.
    pub(super) fn register(flag: Arc<ImmediateExit>, among: Arc<KickTargets>) -> Self {
        FLAG.set(flag.flag());
        among.lock().push(this_thread());
        Self { _kept: flag, among }
    }
}

impl Drop for KickTarget {
    fn drop(&mut self) {
        self.among.lock().retain(|thread| *thread != this_thread());
        FLAG.set(std::ptr::null());
    }
}

/// Says whether the next `KVM_RUN` of this thread is to return before it enters the guest.
pub(super) fn set_immediate_exit(on: bool) {
    // SAFETY: null, or the byte of a mapping that lives until `KickTarget` has set it to null again; whoever
    // accesses it does so as an atomic.
    let flag = unsafe { FLAG.get().as_ref() };
    if let Some(flag) = flag {
        flag.store(u8::from(on), Ordering::SeqCst);
    }
}

/// Sends the kick to `thread`.
pub(super) fn kick<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle is not joined yet, so the thread id is valid even if the thread has ended.
    let refused = unsafe { libc::pthread_kill(thread.as_pthread_t(), SIGRTMIN()) };
    warn_of(refused);
}

fn warn_of(refused: c_int) {
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
    // and returns to the label after it: nothing changes but the scratch registers.
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
    use vmm_sys_util::signal::{block_signal, get_blocked_signals};

    use super::*;

    /// The byte of a page of nobody's: what the kernel would read there.
    fn flag_of_a_page() -> Arc<ImmediateExit> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        let page = NonNull::new(page).unwrap();
        Arc::new(ImmediateExit { page })
    }

    #[test]
    fn a_kick_reaches_the_vcpu_of_its_thread_and_no_other() {
        let flags = [flag_of_a_page(), flag_of_a_page()];
        let read = |number: usize| {
            let flag: &ImmediateExit = &flags[number];
            // SAFETY: a byte of the mapping that `flags` keeps.
            unsafe { &*flag.flag() }.load(Ordering::SeqCst)
        };
        set_immediate_exit(true);
        assert_eq!((read(0), read(1)), (0, 0), "this thread runs no vCPU");
        let target = KickTarget::register(Arc::clone(&flags[1]), Arc::default());
        on_kick(0, std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!((read(0), read(1)), (0, 1));
        set_immediate_exit(false);
        assert_eq!(read(1), 0);
        drop(target);
        on_kick(0, std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(read(1), 0, "it runs none any more");
    }

    #[test]
    fn a_kick_comes_also_where_whoever_started_us_has_blocked_it() {
        std::thread::spawn(|| {
            block_signal(SIGRTMIN()).unwrap();
            install_handler().unwrap();
            let blocked = get_blocked_signals().unwrap();
            assert!(!blocked.contains(&SIGRTMIN()), "{blocked:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn serialising_changes_nothing() {
        let local = std::hint::black_box([1u64, 2, 3]);
        for _ in 0..1000 {
            super::serialise_core();
        }
        assert_eq!(std::hint::black_box(local), [1, 2, 3]);
    }
}
