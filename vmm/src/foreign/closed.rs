//! That nobody executes a vCPU any more that its VMM has closed, nor can.
//!
//! Who executes a vCPU is in KVM_RUN, which names a descriptor of it; and it works only for threads of the process that has made the
//! virtual machine. While no table of descriptors of these has one, nobody begins that call. Who had begun it before is in it until the
//! vCPU leaves the guest. So such a vCPU is over as soon as **each thread of the VMM was seen outside of that call once, after its table had no
//! descriptor of it**: not all of them at one moment, since none comes back. Who waits in another call is seen there and stays undisturbed,
//! for as long as that may last; who runs stands for a moment, which is outside of every call. The guest runs meanwhile: such a stop is
//! of one thread, and none of the pauses that are counted.
//!
//! Nothing is held for the sake of a vCPU that is over. As long as one is not, it is held like one of which it is not known who executes it.
//!
//! One way back there is: another process that was given a descriptor before gives it back. So whoever stops a guest looks through
//! the VMM's descriptors before, and again when all others stand (`vcpus.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::ForeignError;
use super::process::Process;
use super::requests;
use super::threads::stopped_at;
use super::vcpu::ForeignVcpu;

/// Time for all that: who is not seen by then is looked at another time.
const PATIENCE: Duration = Duration::from_millis(100);

/// Sees which of these vCPUs, which their VMM has closed, are over.
///
/// # Errors
/// [`ForeignError::Proc`].
pub(super) fn see_over(process: &Process, closed: &[Arc<ForeignVcpu>]) -> Result<(), ForeignError> {
    let deadline = Instant::now() + PATIENCE;
    let has_one = |thread| {
        let own = process.vcpu_descriptors_of(thread)?;
        let mut of_closed = closed.iter().filter_map(|vcpu| {
            let mut own = own.iter().filter(|own| own.vcpu == vcpu.number());
            // What cannot be told is one.
            own.find(|own| vcpu.is_descriptor_of(thread, own.fd) != Some(false))
        });
        Ok(of_closed.next().is_some())
    };
    let are_over = all_outside(process, has_one, |thread| {
        is_outside(process, thread, deadline)
    })?;
    if are_over {
        closed.iter().for_each(|vcpu| vcpu.is_executed_by_nobody());
    }
    Ok(())
}

/// Whether each thread, those too that are made meanwhile, has none of the descriptors and is then seen outside.
fn all_outside(
    process: &Process,
    has_one: impl Fn(i32) -> Result<bool, ForeignError>,
    is_outside: impl Fn(i32) -> bool,
) -> Result<bool, ForeignError> {
    let mut seen = Vec::new();
    loop {
        let mut threads = process.threads()?;
        threads.retain(|thread| !seen.contains(thread));
        if threads.is_empty() {
            return Ok(true);
        }
        for thread in threads {
            // In this order: whoever is outside then stays there.
            if has_one(thread)? || !is_outside(thread) {
                return Ok(false);
            }
            seen.push(thread);
        }
    }
}

/// Whether a thread is seen outside of the call that executes a vCPU. False where that does not show in time.
fn is_outside(process: &Process, thread: i32, deadline: Instant) -> bool {
    let call = process.system_call(thread);
    if call.is_some_and(|[.., request]| request != requests::RUN) {
        return true;
    }
    // Who stands is in no call, and who has ended neither.
    let stood = stopped_at(thread, deadline);
    if let Err(error) = &stood {
        log::debug!("whether a closed vCPU is executed is not known: {error}");
    }
    stood.is_ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::foreign::held::HeldThread;
    use crate::foreign::stuck::Stuck;

    /// A process, which ends with this.
    struct Vmm {
        child: Child,
        process: Process,
    }

    impl Vmm {
        fn of(child: Child) -> Self {
            let process = Process::open(child.id().cast_signed()).unwrap();
            Self { child, process }
        }
    }

    impl Drop for Vmm {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// One of two threads, and what has it make another one.
    fn of_two_threads() -> (Vmm, impl FnMut()) {
        const SCRIPT: &str = "import threading, time, sys\n\
            def more():\n    threading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n    print('more', flush=True)\n\
            more()\nfor _ in sys.stdin: more()";
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        let mut told = child.stdin.take().unwrap();
        let more = move || {
            told.write_all(b"\n").unwrap();
            said.read_line(&mut String::new()).unwrap();
        };
        (Vmm::of(child), more)
    }

    /// One that was made by one that is looked at later could have come from anywhere.
    #[test]
    fn each_thread_is_seen_outside_after_its_table_and_those_too_that_are_made_meanwhile() {
        let (vmm, more) = of_two_threads();
        let more = RefCell::new(Some(more));
        let looked = RefCell::new(Vec::new());
        let has_one = |thread| {
            looked.borrow_mut().push(("table", thread));
            Ok(false)
        };
        let is_outside = |thread| {
            looked.borrow_mut().push(("call", thread));
            if let Some(mut more) = more.take() {
                more();
            }
            true
        };
        assert!(all_outside(&vmm.process, has_one, is_outside).unwrap());
        let threads = vmm.process.threads().unwrap();
        assert_eq!(threads.len(), 3);
        let each = threads.into_iter();
        let expected: Vec<_> = each
            .flat_map(|thread| [("table", thread), ("call", thread)])
            .collect();
        assert_eq!(*looked.borrow(), expected);
    }

    #[test]
    fn one_thread_that_has_a_descriptor_or_may_be_inside_is_enough() {
        let (vmm, _more) = of_two_threads();
        let process = &vmm.process;
        let last = process.threads().unwrap()[1];
        let is_last = |thread| thread == last;
        assert!(!all_outside(process, |thread| Ok(is_last(thread)), |_| true).unwrap());
        assert!(!all_outside(process, |_| Ok(false), |thread| !is_last(thread)).unwrap());
        let unknown = |_| Err(ForeignError::NoProcess { pid: last });
        all_outside(process, unknown, |_| true).unwrap_err();
    }

    /// A pause waited for it, and did not come to pass.
    #[test]
    fn who_waits_in_another_call_is_outside_without_being_asked() {
        let stuck = Stuck::start();
        let process = Process::open(stuck.number()).unwrap();
        // It would be late.
        assert!(is_outside(&process, stuck.number(), Instant::now()));
        stuck.is_to_go_on();
        stuck.goes_on();
    }

    #[test]
    fn who_runs_is_outside_once_it_stands_and_who_is_not_seen_to_is_not() {
        let mut runs = Command::new("bash");
        let runs = Vmm::of(runs.args(["-c", "while :; do :; done"]).spawn().unwrap());
        let (process, thread) = (&runs.process, runs.process.pid());
        let never = Instant::now() + Duration::from_secs(300);
        while process.system_call(thread).is_some() {
            std::thread::yield_now();
        }
        assert!(is_outside(process, thread, never));
        // Nobody else can hold it now.
        let held = HeldThread::seize(thread, false, never).unwrap();
        assert!(!is_outside(process, thread, never));
        drop(held);
    }
}
