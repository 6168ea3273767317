//! The threads of a VMM of which it is not known that they execute a vCPU. While all of them are held, none can enter the
//! guest.

use std::sync::Arc;
use std::time::Instant;

use super::error::ForeignError;
use super::held::{HeldThread, Rest, Stands as _, Together};
use super::process::{Process, is_uninterruptible};
use super::requests;
use super::vcpu::{ForeignVcpu, is_run_of};

/// Holds all threads but those that are known to execute one of `vcpus`; those, too, that are made meanwhile: none enters the guest any
/// more. One may still be in a call that does not, and stands when that returns.
///
/// # Errors
/// [`ForeignError::Late`] and others; then all of them continue, a late one as soon as it stops.
pub(super) fn hold_others(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    deadline: Instant,
) -> Result<Together<HeldThread>, ForeignError> {
    const WHAT: &str =
        "all of its threads were to be held, since it is not known which one executes some vCPU";
    // Others wake for who asks them to stop, and somebody has to be asked in whose name.
    let stays_outside = |thread| {
        let call = process.system_call(thread);
        call.is_some_and(|call| !may_enter(call)) && is_uninterruptible(thread)
    };
    let known: Vec<_> = vcpus.iter().filter_map(|vcpu| vcpu.thread()).collect();
    let mut held: Together<HeldThread> = Vec::new().into();
    loop {
        let mut threads = process.threads()?;
        threads.retain(|thread| !known.contains(thread));
        threads.retain(|thread| held.iter().all(|held| held.number() != *thread));
        if threads.is_empty() {
            return Ok(held);
        }
        let seized = threads.iter().map(|thread| {
            let seized = HeldThread::seize(*thread, process.is_filtered(*thread), deadline);
            asked(seized)
        });
        let seized = seized.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut seized: Together<HeldThread> = seized.flatten().collect::<Vec<_>>().into();
        for thread in seized.iter_mut() {
            match wait_idle(thread, stays_outside, WHAT, deadline) {
                Ok(()) | Err(ForeignError::Ended { .. }) => {}
                Err(error) => {
                    // Those that stand go first.
                    held.extend(seized.apart());
                    return Err(error);
                }
            }
        }
        let there = seized.apart().into_iter();
        held.extend(there.filter(|thread| !thread.has_ended()));
    }
}

/// One that was seized is asked to stop; none when it has ended meanwhile.
fn asked(seized: Result<HeldThread, ForeignError>) -> Result<Option<HeldThread>, ForeignError> {
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
    // Who does not stand is in another call.
    for thread in threads.iter().filter(|thread| thread.is_standing()) {
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

/// The threads of a VMM but those that execute its vCPUs, which are parked.
#[derive(Debug)]
pub(super) struct Others<'p> {
    process: &'p Process,
    parked: Vec<i32>,
    held: &'p mut Together<HeldThread>,
    /// So many of them are held for longer than this.
    before: usize,
}

impl<'p> Others<'p> {
    /// All but the `parked`; some of them are `held`, and stay so.
    pub fn of(process: &'p Process, parked: Vec<i32>, held: &'p mut Together<HeldThread>) -> Self {
        Self {
            process,
            parked,
            before: held.len(),
            held,
        }
    }

    /// Whose they are.
    pub const fn process(&self) -> &Process {
        self.process
    }

    /// Holds all of them, those too that are made meanwhile: none begins a call any more. One may still be in a call, which changes
    /// no slot of KVM's. What is held when this fails is to be let go as well.
    ///
    /// # Errors
    /// [`ForeignError::Late`] and others.
    pub fn hold(&mut self, deadline: Instant) -> Result<(), ForeignError> {
        const WHAT: &str = "KVM's slots were to be named, which it may be changing";
        let process = self.process;
        let is_elsewhere = |thread| {
            let call = process.system_call(thread);
            call.is_some_and(|call| !may_matter(call))
        };
        loop {
            let mut threads = self.process.threads()?;
            threads.retain(|thread| !self.parked.contains(thread));
            threads.retain(|thread| self.held.iter().all(|held| held.number() != *thread));
            if threads.is_empty() {
                return Ok(());
            }
            // No call is made in their names, so no filter need be lifted.
            for thread in threads {
                let seized = HeldThread::seize(thread, false, deadline);
                self.held.extend(asked(seized)?);
            }
            for thread in self.held.iter_mut() {
                match wait_idle(thread, is_elsewhere, WHAT, deadline) {
                    Ok(()) | Err(ForeignError::Ended { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            let there = |thread: &HeldThread| !thread.has_ended();
            let before = self.held.iter().take(self.before);
            self.before = before.filter(|thread| there(thread)).count();
            self.held.retain(there);
        }
    }

    /// Lets all go that were not held before, and waits for those that do not stand yet: they would stop later, and be missed by who
    /// waits for what they do.
    ///
    /// # Errors
    /// [`ForeignError::Late`]; then the rest of them is let go with those that were held before.
    pub fn let_go(&mut self, deadline: Instant) -> Result<(), ForeignError> {
        let rest = Rest::until(deadline);
        loop {
            let mut late = self.held.split_off(self.before);
            late.retain_mut(|thread| !thread.stands());
            self.held.extend(late);
            let Some(late) = self.held.get(self.before) else {
                return Ok(());
            };
            if !rest.a_moment() {
                let (thread, what) = (late.number(), "it was to be let go");
                return Err(ForeignError::Late { thread, what });
            }
        }
    }
}

/// Waits until a thread that was asked to stop has, or `is_idle`: in a call that does not matter. It stops as that returns.
fn wait_idle(
    thread: &mut HeldThread,
    is_idle: impl Fn(i32) -> bool,
    what: &'static str,
    deadline: Instant,
) -> Result<(), ForeignError> {
    let rest = Rest::until(deadline);
    while !thread.has_stopped()? {
        if is_idle(thread.number()) {
            return Ok(());
        }
        if !rest.a_moment() {
            let thread = thread.number();
            return Err(ForeignError::Late { thread, what });
        }
    }
    Ok(())
}

/// Whether a system call can change a slot, or make a thread that does.
fn may_matter(call: [u64; 3]) -> bool {
    /// Beside `KVMIO`, the type of its requests, in these bits.
    const TYPE: u64 = 0xff00;
    const KVM: u64 = 0xae00;
    let [number, _, request] = call;
    let is_of_kvm = number.cast_signed() == libc::SYS_ioctl && request & TYPE == KVM;
    is_of_kvm && request != requests::RUN || makes_threads(call)
}

/// Whether a system call can execute a vCPU, or make a thread that does.
fn may_enter(call: [u64; 3]) -> bool {
    let [.., request] = call;
    request == requests::RUN || makes_threads(call)
}

fn makes_threads([number, ..]: [u64; 3]) -> bool {
    const CALLS: [i64; 4] = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
    ];
    CALLS.contains(&number.cast_signed())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::foreign::stuck::Stuck;

    fn ioctl(request: u64) -> [u64; 3] {
        [libc::SYS_ioctl.cast_unsigned(), 5, request]
    }

    fn other(number: i64) -> [u64; 3] {
        [number.cast_unsigned(), 5, requests::SET_MEMORY]
    }

    #[test]
    fn a_call_that_changes_slots_or_makes_threads_is_waited_for() {
        assert!(may_matter(ioctl(requests::SET_MEMORY)));
        assert!(may_matter(other(libc::SYS_clone3)));
        assert!(!may_matter(ioctl(requests::RUN)) && !may_matter(ioctl(0x5401)));
        assert!(!may_matter(other(libc::SYS_fsync)));
    }

    #[test]
    fn a_call_that_executes_a_vcpu_or_makes_threads_is_waited_for() {
        assert!(may_enter(ioctl(requests::RUN)) && may_enter(other(libc::SYS_clone)));
        assert!(!may_enter(ioctl(requests::SET_MEMORY)));
        assert!(!may_enter(other(libc::SYS_fsync)));
    }

    /// A pause did not come to pass as long as one waited for a disk.
    #[test]
    fn who_waits_in_a_call_that_does_not_matter_counts_as_held() {
        let stuck = Stuck::start();
        let process = Process::open(stuck.number()).unwrap();
        assert!(is_uninterruptible(stuck.number()));
        let deadline = Instant::now();
        // It is one that matters.
        let late = hold_others(&process, &[], deadline);
        assert!(matches!(late, Err(ForeignError::Late { .. })), "{late:?}");
        let mut thread = HeldThread::seize(stuck.number(), false, deadline).unwrap();
        wait_idle(&mut thread, |_| true, "", deadline).unwrap();
        assert!(!thread.is_standing());
        assert!(!recognise(&process, &[], &[thread]).unwrap());
        stuck.is_to_go_on();
        while crate::foreign::let_late_go() {}
        stuck.goes_on();
    }

    /// A process that has begun, as it says.
    fn begun(script: &str) -> Child {
        let mut vmm = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        let stdout = vmm.stdout.as_mut().unwrap();
        std::io::Read::read_exact(stdout, &mut said).unwrap();
        vmm
    }

    /// A thread that was not held could change a slot between the question and the naming.
    #[test]
    fn all_threads_stand_that_are_not_parked_and_go_on_after_that() {
        const SCRIPT: &str = "import threading, time, sys\n\
            for _ in range(3): threading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n\
            print('begun', flush=True)\nsys.stdin.readline()";
        let mut vmm = begun(SCRIPT);
        let pid = vmm.id().cast_signed();
        let process = Process::open(pid).unwrap();
        let deadline = Instant::now() + Duration::from_secs(300);
        let mut threads = process.threads().unwrap();
        threads.retain(|thread| *thread != pid);
        let mut before = HeldThread::seize(threads[0], false, deadline).unwrap();
        before.interrupt().unwrap();
        before.wait_stopped(deadline).unwrap();
        let mut held = Together::from(vec![before]);
        let mut others = Others::of(&process, vec![pid], &mut held);
        others.hold(deadline).unwrap();
        assert_eq!((threads.len(), others.held.len()), (3, 3));
        let state = |thread: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('t')
        };
        assert!(threads.iter().all(state));
        others.let_go(deadline).unwrap();
        assert_eq!(threads.iter().filter(|thread| state(thread)).count(), 1);
        drop(held);
        assert!(!threads.iter().any(state));
        drop(vmm.stdin.take());
        assert!(vmm.wait().unwrap().success());
    }

    /// It is listed until all others have ended, and nobody can seize it.
    #[test]
    fn a_first_thread_that_has_ended_is_none_to_be_held() {
        const SCRIPT: &str = "import ctypes, threading, sys\n\
            threading.Thread(target=sys.stdin.readline).start()\n\
            print('begun', flush=True)\nctypes.CDLL(None).pthread_exit(None)";
        let mut vmm = begun(SCRIPT);
        let pid = vmm.id();
        let stat = format!("/proc/{pid}/task/{pid}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let process = Process::open(pid.cast_signed()).unwrap();
        let mut held = Together::from(Vec::new());
        let mut others = Others::of(&process, Vec::new(), &mut held);
        let deadline = Instant::now() + Duration::from_secs(300);
        others.hold(deadline).unwrap();
        assert_eq!(others.held.len(), 1);
        let first = HeldThread::seize(pid.cast_signed(), false, deadline);
        assert!(
            matches!(first, Err(ForeignError::Ended { .. })),
            "{first:?}"
        );
        // It runs on without the first.
        assert!(!process.is_ending());
        drop(held);
        drop(vmm.stdin.take());
        let _ = vmm.kill();
        let _ = vmm.wait();
    }

    /// It may be about to make a thread.
    #[test]
    fn who_does_not_stop_in_a_call_that_makes_threads_is_named() {
        let stuck = Stuck::start();
        let process = Process::open(stuck.number()).unwrap();
        let mut held = Together::from(Vec::new());
        let mut others = Others::of(&process, Vec::new(), &mut held);
        let late = others.hold(Instant::now());
        let named =
            matches!(late, Err(ForeignError::Late { thread, .. }) if thread == stuck.number());
        assert!(named, "{late:?}");
        let late = others.let_go(Instant::now());
        let named =
            matches!(late, Err(ForeignError::Late { thread, .. }) if thread == stuck.number());
        assert!(named, "{late:?}");
        stuck.is_to_go_on();
        let deadline = Instant::now() + Duration::from_secs(300);
        others.let_go(deadline).unwrap();
        assert_eq!(others.held.len(), 0);
        stuck.goes_on();
    }
}
