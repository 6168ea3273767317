//! All vCPUs of a guest out of it, consistent.
//!
//! Most threads are stopped as their vCPU leaves the guest, with nothing half done, and hold no lock of their VMM there. One
//! that stands elsewhere may hold a lock, or wait for one that another one holds, and what its vCPU did may be half
//! done. So **all of those are driven together** to their next entry into the guest, which they leave at once; one after
//! the other they would wait for each other. Where nothing is half done and nobody has to be driven (the VMM has
//! stopped its guest) they stay where they are.
//!
//! A VMM that has stopped its guest has first brought to an end what was half done, by an entry that leaves at once; what KVM says
//! of the exit before stays. So a thread that waits in a system call for [`SETTLED`], and does not come to its next entry, is where
//! it will be, whatever its vCPU's last exit was.
//!
//! Which thread executes a vCPU shows only while it does. While that is not known of one, because the VMM had stopped its guest
//! before we came, or keeps the descriptor of one that it has taken out of the guest, **all threads of the VMM are held**: each of them can
//! execute whatever vCPU the VMM has a descriptor of, and a thread that is made for that enters the guest at once. Then none can enter the
//! guest, and any that stands can be asked for the registers of all such vCPUs ([`parked`](super::parked)). One that the VMM has no descriptor of, and that is over ([`closed`](super::closed)), needs
//! nobody held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracer::guest::Paused;

use super::error::ForeignError;
use super::held::{HeldThread, Rest, Together};
use super::others::{Others, hold_others, recognise};
use super::parked::{Parked, Stage};
use super::parked_vcpus::ParkedVcpus;
use super::process::Process;
use super::threads::find_threads;
use super::urgent::Urgent;
use super::vcpu::ForeignVcpu;
use crate::clock::host_tsc;
use crate::pause_times::PauseTimes;
use crate::quiesce::Requested;
use crate::vcpu::FullRegisters;

/// How long a thread that may have something to bring to an end has for it.
const SETTLED: Duration = Duration::from_millis(100);

/// All vCPUs of a guest, out of it until this is dropped.
#[derive(Debug)]
pub(super) struct AllParked {
    /// All that there are.
    all: Vec<Arc<ForeignVcpu>>,
    /// Those of them that are not over, in the same order.
    vcpus: ParkedVcpus,
    /// Threads that could be one that executes a vCPU.
    others: Together<HeldThread>,
    /// When the first of them was asked to stop: until then the guest ran as ever.
    asked: Requested,
    /// Until all of them were let go.
    _urgent: Urgent,
}

impl AllParked {
    /// For how long the guest stands still by now.
    pub fn held(&self) -> Duration {
        self.asked.at.elapsed()
    }

    /// Lets all of them go; when and for how long the guest stood still, which is counted.
    pub fn let_go(self, times: &mut PauseTimes) -> Paused {
        drop(self.vcpus);
        let length = self.asked.at.elapsed();
        drop(self.others);
        let paused = Paused {
            counter: self.asked.counter,
            length,
        };
        times.released(paused);
        paused
    }

    /// One of them.
    ///
    /// # Errors
    /// [`ForeignError::Closed`] of one that is over, [`ForeignError::NotHeld`] of one that there is not.
    pub fn get_mut(&mut self, pid: i32, vcpu: u16) -> Result<&mut Parked, ForeignError> {
        let wanted = self.all.get(usize::from(vcpu));
        let wanted = wanted.ok_or(ForeignError::NotHeld { pid, vcpu })?;
        let vcpu = wanted.number();
        let found = self.vcpus.get_mut(wanted);
        found.ok_or(ForeignError::Closed { pid, vcpu })
    }

    /// Their registers; those of one that is over are zeros.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others, where KVM has to be asked.
    pub fn registers(&mut self, deadline: Instant) -> Result<Vec<FullRegisters>, ForeignError> {
        let each = self.all.iter().map(|vcpu| {
            let parked = self.vcpus.get_mut(vcpu);
            parked.map_or_else(
                || Ok(FullRegisters::default()),
                |parked| parked.registers(deadline),
            )
        });
        each.collect()
    }

    /// One in the name of whose thread calls can be made.
    ///
    /// # Errors
    /// [`ForeignError::NotHeld`] of a guest without vCPUs.
    pub fn caller(&mut self, pid: i32) -> Result<&mut Parked, ForeignError> {
        let first = self.vcpus.first_mut();
        first.ok_or(ForeignError::NotHeld { pid, vcpu: 0 })
    }
}

impl AllParked {
    /// The same, and all other threads of the VMM.
    ///
    /// # Errors
    /// [`ForeignError::NotHeld`] of a guest without vCPUs.
    pub fn caller_and_others<'p>(
        &'p mut self,
        process: &'p Process,
    ) -> Result<(&'p mut Parked, Others<'p>), ForeignError> {
        let pid = process.pid();
        let parked = self.vcpus.threads();
        let others = Others::of(process, parked, &mut self.others);
        let first = self.vcpus.first_mut();
        let first = first.ok_or(ForeignError::NotHeld { pid, vcpu: 0 })?;
        Ok((first, others))
    }
}

/// Parks all vCPUs that are not over. Where all are, somebody has to stand all the same, to be asked in its name: the first is parked.
///
/// # Errors
/// [`ForeignError::Late`] names one that was not out in time, [`ForeignError::Ended`] one whose thread has ended, with its VMM,
/// [`ForeignError::NoThread`] one that no thread executes though it is not done with what it did; then all of them continue, a late one as
/// soon as it stops.
pub(super) fn park(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    deadline: Instant,
) -> Result<AllParked, ForeignError> {
    let all = vcpus.to_vec();
    let mut executed = all.clone();
    executed.retain(|vcpu| !vcpu.is_over());
    if executed.is_empty() {
        executed.extend(all.first().cloned());
    }
    let parked = park_each(process, &executed, deadline)?;
    Ok(AllParked { all, ..parked })
}

/// Parks these.
fn park_each(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    deadline: Instant,
) -> Result<AllParked, ForeignError> {
    let rest = Rest::until(deadline);
    let settled = Instant::now() + SETTLED;
    loop {
        find_threads(process, vcpus)?;
        let known = match park_known(vcpus, settled, deadline) {
            // Its vCPU was taken out of the guest, or gets another one.
            Err(ForeignError::Ended { thread })
                if !process.is_ending() && have_lost(vcpus, thread) =>
            {
                continue;
            }
            parked => parked?,
        };
        if known.vcpus.are_executed() {
            return Ok(known);
        }
        let others = hold_others(process, vcpus, deadline)?;
        let unknown = vcpus.iter().filter(|vcpu| vcpu.thread().is_none());
        let is_news = recognise(process, vcpus, &others)?;
        let half_done = unknown.clone().find(|vcpu| !vcpu.is_consistent());
        match half_done {
            None if !is_news => return joined(process, vcpus, known, others, deadline),
            Some(_) if !is_news && Instant::now() >= settled => {
                return joined(process, vcpus, known, others, deadline);
            }
            _ => {}
        }
        let half_done = half_done.map(|vcpu| vcpu.number());
        drop((known, others));
        if !rest.a_moment() {
            let pid = process.pid();
            return Err(match half_done {
                Some(vcpu) => ForeignError::NoThread { pid, vcpu },
                None => ForeignError::Late {
                    thread: pid,
                    what: "the threads that execute its vCPUs were looked for, which went on changing",
                },
            });
        }
    }
}

/// Whether one of them was executed by this thread, which has ended: it is not known now which thread executes it.
fn have_lost(vcpus: &[Arc<ForeignVcpu>], thread: i32) -> bool {
    let mut vcpus = vcpus.iter();
    let lost = vcpus.find(|vcpu| vcpu.thread() == Some(thread));
    lost.inspect(|vcpu| vcpu.lose_thread()).is_some()
}

/// Parks those of which it is known which thread executes them.
fn park_known(
    vcpus: &[Arc<ForeignVcpu>],
    settled: Instant,
    deadline: Instant,
) -> Result<AllParked, ForeignError> {
    let is_done = |vcpu: &Parked| vcpu.is_consistent() && vcpu.is_blocked();
    match out_of_guest(vcpus, is_done, settled.min(deadline)) {
        Err(ForeignError::Late { .. }) if settled < deadline => {
            out_of_guest(vcpus, Parked::is_blocked, deadline)
        }
        parked => parked,
    }
}

/// The same; those that stand elsewhere stay where they are if `may_stay` says so of all of them, and are driven otherwise.
fn out_of_guest(
    vcpus: &[Arc<ForeignVcpu>],
    may_stay: impl Fn(&Parked) -> bool,
    deadline: Instant,
) -> Result<AllParked, ForeignError> {
    let seized = vcpus
        .iter()
        .filter_map(|vcpu| Parked::seize(vcpu, deadline));
    let seized: Result<Vec<_>, _> = seized.collect();
    let mut parked = Together::from(seized?);
    // Not before all are seized: the first would stand still meanwhile.
    let asked = Requested::now(host_tsc());
    parked.iter().try_for_each(Parked::interrupt)?;
    // While they are on their way: it takes as long as a stop.
    let urgent = Urgent::now();
    step_until(&mut parked, deadline, |stage| stage != Stage::Asked)?;
    let is_outside = |vcpu: &&mut Parked| vcpu.stage() == Stage::Outside;
    let mut outside = parked.iter_mut().filter(is_outside);
    let all_stay = outside.all(|vcpu| may_stay(vcpu));
    for vcpu in parked.iter_mut().filter(is_outside) {
        match all_stay {
            true => vcpu.stay(),
            false => vcpu.drive()?,
        }
    }
    step_until(&mut parked, deadline, |stage| stage == Stage::Parked)?;
    Ok(AllParked {
        all: vcpus.to_vec(),
        vcpus: ParkedVcpus::of(vcpus, parked),
        others: Vec::new().into(),
        asked,
        _urgent: urgent,
    })
}

/// All vCPUs: for those that no thread executes one of the others stands in.
fn joined(
    process: &Process,
    vcpus: &[Arc<ForeignVcpu>],
    known: AllParked,
    mut others: Together<HeldThread>,
    deadline: Instant,
) -> Result<AllParked, ForeignError> {
    let Some(unknown) = vcpus.iter().find(|vcpu| vcpu.thread().is_none()) else {
        return Ok(known);
    };
    let one = one_that_stands(&mut others, deadline)?;
    let one = one.ok_or_else(|| ForeignError::NoThread {
        pid: process.pid(),
        vcpu: unknown.number(),
    })?;
    Ok(AllParked {
        vcpus: known.vcpus.with(Parked::stand_in(unknown, one)),
        others,
        ..known
    })
}

/// Takes one of them that stands; none when there are no more.
fn one_that_stands(
    held: &mut Vec<HeldThread>,
    deadline: Instant,
) -> Result<Option<HeldThread>, ForeignError> {
    let rest = Rest::until(deadline);
    loop {
        // Who ends meanwhile is none of them.
        held.retain_mut(|thread| !matches!(thread.has_stopped(), Err(ForeignError::Ended { .. })));
        let stands = held.iter().rposition(HeldThread::is_standing);
        let Some(last) = held.last() else {
            return Ok(None);
        };
        if let Some(at) = stands {
            return Ok(Some(held.remove(at)));
        }
        if !rest.a_moment() {
            let (thread, what) = (last.number(), "a call was to be made in its name");
            return Err(ForeignError::Late { thread, what });
        }
    }
}

/// Returns when each of them is as far as `is_there` says.
fn step_until(
    vcpus: &mut [Parked],
    deadline: Instant,
    is_there: impl Fn(Stage) -> bool,
) -> Result<(), ForeignError> {
    let rest = Rest::until(deadline);
    loop {
        let mut missing = None;
        for vcpu in vcpus.iter_mut().filter(|vcpu| !is_there(vcpu.stage())) {
            vcpu.step()?;
            if !is_there(vcpu.stage()) {
                missing = Some(vcpu.thread());
            }
        }
        let Some(thread) = missing else { return Ok(()) };
        if !rest.a_moment() {
            let what = "its vCPU was to leave the guest";
            return Err(ForeignError::Late { thread, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::foreign::vcpu::testing::{is_prepared, vcpu_of};

    /// A process of two threads, which ends when nobody can write to it any more.
    fn of_two_threads() -> (Child, Process) {
        const SCRIPT: &str = "import threading, time, sys\n\
            threading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n\
            print('begun', flush=True)\nsys.stdin.readline()";
        let mut vmm = Command::new("python3");
        let vmm = vmm.args(["-c", SCRIPT]).stdin(Stdio::piped());
        let mut vmm = vmm.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(vmm.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        let process = Process::open(vmm.id().cast_signed()).unwrap();
        (vmm, process)
    }

    /// So many, by number.
    fn vcpus_of(process: &Process, count: u16) -> Vec<Arc<ForeignVcpu>> {
        let vcpus = (0..count).map(|number| vcpu_of(process, number));
        vcpus.map(Arc::new).collect()
    }

    fn ends(mut vmm: Child) {
        drop(vmm.stdin.take());
        assert!(vmm.wait().unwrap().success());
    }

    /// A VMM that keeps vCPUs out of its guest can have more of them than threads: no pause came to pass.
    #[test]
    fn one_thread_stands_in_for_all_vcpus_that_nobody_executes() {
        let (vmm, process) = of_two_threads();
        let (pid, deadline) = (process.pid(), Instant::now() + Duration::from_secs(300));
        let [first, second] = process.threads().unwrap().try_into().unwrap();
        let vcpus = vcpus_of(&process, 5);
        vcpus[1].set_thread(&process, first);
        vcpus[4].is_executed_by_nobody();
        let mut parked = park(&process, &vcpus, deadline).unwrap();
        for (number, executes) in [(0, second), (1, first), (3, second), (2, second)] {
            let one = parked.get_mut(pid, number).unwrap();
            assert!(one.is(&vcpus[usize::from(number)]));
            let thread = one.call("gettid", libc::SYS_gettid, [0; 6], deadline);
            assert_eq!(thread.unwrap(), u64::from(executes.cast_unsigned()));
            // What is asked about it is not what was in its page before.
            assert!(is_prepared(&vcpus[usize::from(number)]));
        }
        let over = parked.get_mut(pid, 4);
        assert!(matches!(over, Err(ForeignError::Closed { vcpu: 4, .. })));
        assert!(parked.caller(pid).unwrap().is(&vcpus[0]));
        let (caller, mut others) = parked.caller_and_others(&process).unwrap();
        assert!(caller.is(&vcpus[0]));
        others.hold(deadline).unwrap();
        let mut times = PauseTimes::default();
        let paused = parked.let_go(&mut times);
        assert_eq!(
            (times.released.spread().count, times.each),
            (1, vec![paused])
        );
        assert!(!vcpus.iter().any(|vcpu| is_prepared(vcpu)));
        ends(vmm);
    }

    /// Its memory for tracing could not be given back.
    #[test]
    fn of_a_guest_whose_vcpus_are_all_over_one_is_parked() {
        let (vmm, process) = of_two_threads();
        let (pid, deadline) = (process.pid(), Instant::now() + Duration::from_secs(300));
        let vcpus = vcpus_of(&process, 3);
        vcpus.iter().for_each(|vcpu| vcpu.is_executed_by_nobody());
        let mut parked = park(&process, &vcpus, deadline).unwrap();
        assert_eq!(parked.registers(deadline).unwrap().len(), 3);
        let caller = parked.caller(pid).unwrap();
        let own = caller.call("getpid", libc::SYS_getpid, [0; 6], deadline);
        assert_eq!(own.unwrap(), u64::from(pid.cast_unsigned()));
        for vcpu in [1, 2] {
            let over = parked.get_mut(pid, vcpu);
            assert!(matches!(over, Err(ForeignError::Closed { .. })));
        }
        let none = parked.get_mut(pid, 3);
        assert!(matches!(none, Err(ForeignError::NotHeld { vcpu: 3, .. })));
        drop(parked);
        ends(vmm);
    }
}
