//! Who holds the vCPUs of a machine, and how long each pause took.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terms::region::Region;
use tracer::target::NotProvided;

use crate::memslots::MemorySlots;
use crate::pause_times::PauseTimes;
use crate::vcpu::{FullRegisters, Gate, VcpuHandle};
use tracer::clock::HeldTime;
use tracer::guest::{Paused, StopError};

/// How long the end of a pause is waited for where its length is asked for.
const SETTLE_PATIENCE: Duration = Duration::from_millis(100);

/// When a pause was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requested {
    pub at: Instant,
    /// The guest's time.
    pub counter: u64,
}

impl Requested {
    /// Now, when the counter of the guest's time is so far.
    pub fn now(counter: u64) -> Self {
        Self {
            at: Instant::now(),
            counter,
        }
    }
}

/// A pause that is over, or about to be: its end is when the last vCPU continued.
#[derive(Debug, Clone, Copy)]
struct Ended {
    requested: Requested,
    released: Instant,
}

/// The vCPUs of a machine and who holds them.
#[derive(Debug)]
pub(crate) struct Holders {
    vcpus: Vec<VcpuHandle>,
    gate: Arc<Gate>,
    time: Arc<HeldTime>,
    holders: Cell<u32>,
    times: RefCell<PauseTimes>,
    /// The last pause, until its length is known.
    ended: Cell<Option<Ended>>,
    last: Cell<Duration>,
    has_gigabyte_pages: bool,
    slots: Option<MemorySlots>,
}

impl Holders {
    pub(crate) fn new(vcpus: Vec<VcpuHandle>, gate: Arc<Gate>, time: Arc<HeldTime>) -> Self {
        Self {
            vcpus,
            gate,
            time,
            holders: Cell::new(0),
            times: RefCell::new(PauseTimes::default()),
            ended: Cell::new(None),
            last: Cell::new(Duration::ZERO),
            has_gigabyte_pages: false,
            slots: None,
        }
    }

    /// The same, whose vCPUs have pages of 1 GiB or not.
    pub(crate) fn with_gigabyte_pages(mut self, has_them: bool) -> Self {
        self.has_gigabyte_pages = has_them;
        self
    }

    /// The same, whose memory the vCPUs reach through these.
    pub(crate) fn with_slots(mut self, slots: MemorySlots) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Lets the vCPUs reach more of the window's region.
    pub(crate) fn provide(&self, part: Region) -> Result<(), NotProvided> {
        let none = || NotProvided {
            at: part.start,
            bytes: part.bytes,
            why: "there is no virtual machine".to_owned(),
        };
        self.slots.as_ref().ok_or_else(none)?.provide(part)
    }

    /// Whether the vCPUs have pages of 1 GiB.
    pub(crate) const fn has_gigabyte_pages(&self) -> bool {
        self.has_gigabyte_pages
    }

    /// The vCPUs have been started.
    pub(crate) fn take_over(&mut self, vcpus: Vec<VcpuHandle>) {
        self.vcpus = vcpus;
    }

    /// The guest's time.
    pub(crate) const fn time(&self) -> &Arc<HeldTime> {
        &self.time
    }

    pub(crate) fn vcpus(&self) -> &[VcpuHandle] {
        &self.vcpus
    }

    pub(crate) fn vcpus_mut(&mut self) -> &mut [VcpuHandle] {
        &mut self.vcpus
    }

    pub(crate) fn with_times<T>(&self, look: impl FnOnce(&PauseTimes) -> T) -> T {
        self.settle(Instant::now());
        look(&self.times.borrow())
    }

    pub(crate) fn last_pause(&self) -> Duration {
        self.settle(Instant::now() + SETTLE_PATIENCE);
        self.last.get()
    }

    /// Finds out how long the last pause was, when every vCPU has continued by `deadline`.
    fn settle(&self, deadline: Instant) {
        let Some(ended) = self.ended.take() else {
            return;
        };
        let resumed = |vcpu: &VcpuHandle| vcpu.resumed_after(ended.released, deadline);
        let last = self
            .vcpus
            .iter()
            .filter_map(resumed)
            .max()
            .unwrap_or(ended.released);
        let Requested { at, counter } = ended.requested;
        let length = last.saturating_duration_since(at);
        self.last.set(length);
        let paused = Paused { counter, length };
        self.times.borrow_mut().released(paused);
    }

    /// Has every vCPU pass a serialising point, without stopping them together.
    ///
    /// # Errors
    /// The number of a vCPU that did not come by until `deadline`.
    pub(crate) fn pass(&self, deadline: Instant) -> Result<(), u16> {
        let wanted: Vec<u64> = self.vcpus.iter().map(VcpuHandle::ask_pass).collect();
        let mut asked = self.vcpus.iter().zip(wanted);
        match asked.find(|(handle, wanted)| !handle.wait_passed(*wanted, deadline)) {
            Some((late, _)) => Err(late.number()),
            None => Ok(()),
        }
    }

    /// The most that each vCPU can have lost by passes.
    pub(crate) fn away(&self) -> Vec<Duration> {
        self.vcpus.iter().map(VcpuHandle::away).collect()
    }

    /// Adds a holder: all vCPUs are parked when this returns.
    pub(crate) fn hold(&self, patience: Duration) -> Result<Vec<FullRegisters>, StopError> {
        let first = !self.is_held();
        if first {
            self.settle(Instant::now());
        }
        let requested = Instant::now();
        if first {
            self.vcpus.iter().for_each(VcpuHandle::hold);
        }
        match self.collect(requested + patience, patience) {
            Ok(registers) => {
                self.holders.set(self.holders.get() + 1);
                if first {
                    self.times.borrow_mut().parked(requested.elapsed());
                }
                Ok(registers)
            }
            Err(error) => {
                if first {
                    self.let_go();
                }
                Err(error)
            }
        }
    }

    fn collect(
        &self,
        deadline: Instant,
        patience: Duration,
    ) -> Result<Vec<FullRegisters>, StopError> {
        let mut all = Vec::with_capacity(self.vcpus.len());
        for handle in &self.vcpus {
            let vcpu = handle.number();
            if !handle.wait_parked(deadline) {
                return Err(StopError::Missed {
                    vcpu,
                    deadline: patience,
                });
            }
            all.push(handle.registers().ok_or(StopError::NoRegisters { vcpu })?);
        }
        Ok(all)
    }

    /// Takes a holder away; the last one lets the vCPUs run.
    pub(crate) fn release(&self) {
        let left = self.holders.get().saturating_sub(1);
        self.holders.set(left);
        if left == 0 {
            self.let_go();
        }
    }

    fn let_go(&self) {
        self.vcpus.iter().for_each(VcpuHandle::release);
        self.gate.open();
    }

    /// Whether there is a holder.
    pub(super) fn is_held(&self) -> bool {
        self.holders.get() > 0
    }

    /// The pause that was asked for then ends now.
    pub(super) fn ends(&self, requested: Requested) {
        let released = Instant::now();
        self.ended.set(Some(Ended {
            requested,
            released,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::VcpuState;
    use crate::vcpu::fake::FakeVcpu;

    /// Longer than any machine needs to run a thread.
    const LONG: Duration = Duration::from_secs(60);

    fn machine(vcpus: &[FakeVcpu], gate: &Arc<Gate>) -> Holders {
        let handles = vcpus.iter().map(FakeVcpu::handle).collect();
        Holders::new(
            handles,
            Arc::clone(gate),
            Arc::new(HeldTime::new(crate::clock::HOST)),
        )
    }

    #[test]
    fn a_vcpu_that_misses_the_deadline_is_named_and_all_run_on() {
        let gate = Arc::new(Gate::default());
        let vcpus = [0, 1, 2].map(|number| FakeVcpu::start(number, &gate));
        let holders = machine(&vcpus, &gate);
        vcpus[1].obey(false);
        let error = holders.hold(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, StopError::Missed { vcpu: 1, .. }));
        assert_eq!(
            error.to_string(),
            "vCPU 1 did not pause within 20ms; the guest runs on unchanged"
        );
        assert!(!holders.is_held());
        for vcpu in &vcpus {
            vcpu.wait_until(VcpuState::Running, LONG);
        }
        assert!(holders.with_times(|times| times.parked.spread().count == 0));
        // Nothing of it is left: the next pause is one.
        vcpus[1].obey(true);
        assert_eq!(holders.hold(LONG).unwrap().len(), 3);
        assert_eq!(holders.with_times(|times| times.parked.spread().count), 1);
        holders.release();
        for vcpu in &vcpus {
            vcpu.wait_until(VcpuState::Running, LONG);
        }
    }

    #[test]
    fn holders_nest() {
        let gate = Arc::new(Gate::default());
        let vcpus = [FakeVcpu::start(0, &gate)];
        let holders = machine(&vcpus, &gate);
        holders.hold(LONG).unwrap();
        holders.hold(LONG).unwrap();
        holders.release();
        assert!(holders.is_held());
        assert_eq!(holders.vcpus()[0].state(), VcpuState::Parked);
        holders.release();
        vcpus[0].wait_until(VcpuState::Running, LONG);
    }

    #[test]
    fn a_vcpu_without_registers_is_named() {
        let gate = Arc::new(Gate::default());
        let vcpus = [0, 1].map(|number| FakeVcpu::start(number, &gate));
        let holders = machine(&vcpus, &gate);
        vcpus[1].forget_registers();
        let error = holders.hold(LONG).unwrap_err();
        assert!(matches!(error, StopError::NoRegisters { vcpu: 1 }));
        vcpus[0].wait_until(VcpuState::Running, LONG);
    }

    /// It was once the end of whatever it had rested for since: for room in a ring, for one.
    #[test]
    fn a_pause_ends_where_its_vcpus_first_go_on() {
        let gate = Arc::new(Gate::default());
        let vcpus = [FakeVcpu::start(0, &gate)];
        let holders = machine(&vcpus, &gate);
        let handle = &holders.vcpus()[0];
        let went_on = |released| handle.resumed_after(released, released + LONG);
        holders.hold(LONG).unwrap();
        let released = Instant::now();
        holders.release();
        vcpus[0].wait_until(VcpuState::Running, LONG);
        let first = went_on(released).unwrap();
        vcpus[0].begin_rest();
        vcpus[0].end_rest();
        assert_eq!(went_on(released), Some(first));
        // For one that rests for its own reason the pause is over when it is released.
        vcpus[0].begin_rest();
        let released = Instant::now();
        handle.release();
        let after = Instant::now();
        vcpus[0].end_rest();
        assert!(went_on(released).unwrap() <= after);
    }
}
