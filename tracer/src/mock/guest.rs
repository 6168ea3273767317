//! A guest without a hypervisor: a [`MockTarget`] that is stopped for moments, of which the rest is somebody's who
//! plays the guest. It has several vCPUs, and records calls as stubs would.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::region::Region;

use super::MockTarget;
use crate::clock::page::{Beat, Beats, ClockPage, Stall};
use crate::clock::{HostClock, RunClock, VcpuClocks};
use crate::collect::{Poller, Pollers, SharedDrain};
use crate::guest::{
    Guest, LiveGuest, NoClockPage, NotLive, Pauses, RegisterError, SharedMemory, StopError,
    StoppedGuest,
};
use crate::record::{Detail, RECORD_BYTES, Record};
use crate::ring::geometry::Position;
use crate::session::SessionMemory;
use crate::stub::cell::{HEAD, LIMIT, LOST};
use crate::target::{
    AtomicTarget, LiveTarget, MemoryError, NotProvided, NotSynchronised, PhysicalMemory,
    StoppedTarget, TargetMemory, TextMemory, VcpuRegisters, WindowMemory,
};
use trace::event::Step;

/// Ticks of its counters in a millisecond.
const KHZ: u32 = 1_000_000;

/// The host of mock guests: its time stands still, so that a run is the same each time.
pub const HOST: HostClock = HostClock {
    counter: || 1 << 40,
    now: || Duration::ZERO,
    rest: |_| {},
};

/// A virtual machine made of maps.
#[derive(Debug, Clone)]
pub struct MockGuest {
    memory: MockMemory,
    vcpus: u16,
    clocks: Arc<VcpuClocks>,
    /// Whether its kernel serves breakpoints, so that text can be changed while it runs.
    pub serves_breakpoints: bool,
    /// The vCPU that does not stop,
    pub stuck: Option<u16>,
    /// and how many stops there have to be before.
    pub stuck_from: u64,
    /// Whether words of its text can be exchanged while it runs.
    pub is_mapped: bool,
    /// How far its text has moved since it was loaded, in bytes.
    pub moved_by: u64,
    /// What the guest does right before a word is exchanged: its own patching.
    pub meanwhile: Option<Meanwhile>,
    /// What the guest does right before its text is written while it runs.
    pub before_running: Option<fn(&mut MockTarget)>,
    /// Whether it goes on when tracing has ended.
    pub goes_on: bool,
    /// Whether somebody keeps its clock page so.
    pub keeps_page: fn(Beat) -> bool,
    /// How long it is stopped each time.
    pub pause: Duration,
    /// How often it was stopped.
    stops: Arc<AtomicU64>,
    /// Shared with all who hold it stopped.
    held: Arc<()>,
}

/// What a guest does right before a word at this address is exchanged.
pub type Meanwhile = fn(&mut MockTarget, Gva);

/// The guest while all its vCPUs run.
#[derive(Debug)]
pub struct MockRunning {
    memory: MockMemory,
    meanwhile: Option<Meanwhile>,
}

/// Its memory. Clones are the same.
#[derive(Debug, Clone)]
pub struct MockMemory(Arc<Mutex<MockTarget>>);

/// A clock page that somebody keeps, of whom each that continues another one notes a stall.
#[derive(Debug)]
struct MockPage(Beat);

impl ClockPage for MockPage {
    fn beat(&self) -> Beat {
        self.0
    }

    fn spin(&self, _spins: bool) {}
}

/// The guest while nobody runs.
#[derive(Debug)]
pub struct MockStopped {
    memory: MockMemory,
    vcpus: Vec<VcpuRegisters>,
    _held: Arc<()>,
}

impl MockGuest {
    /// A guest with the memory and the vCPUs of `target`.
    #[must_use]
    pub fn new(target: MockTarget) -> Self {
        let vcpus = u16::try_from(StoppedTarget::vcpus(&target).len()).unwrap_or(u16::MAX);
        Self {
            memory: MockMemory(Arc::new(Mutex::new(target))),
            vcpus,
            clocks: Arc::new(VcpuClocks::new(vcpus, HOST)),
            serves_breakpoints: false,
            stuck: None,
            stuck_from: 0,
            is_mapped: false,
            moved_by: 0,
            meanwhile: None,
            before_running: None,
            goes_on: false,
            keeps_page: |_| false,
            pause: Duration::ZERO,
            stops: Arc::default(),
            held: Arc::default(),
        }
    }

    /// How often it was stopped.
    #[must_use]
    pub fn stops(&self) -> u64 {
        self.stops.load(Ordering::Relaxed)
    }

    /// Says whether somebody holds it stopped, whenever it is asked.
    pub fn is_stopped(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let held = Arc::downgrade(&self.held);
        move || held.strong_count() > 1
    }

    fn is_about_to_be_changed(&self) {
        if let Some(before) = self.before_running {
            before(&mut self.target());
        }
    }

    /// Its vCPUs as they stand still, for whatever.
    fn halted(&self) -> MockStopped {
        MockStopped {
            memory: self.memory.clone(),
            vcpus: StoppedTarget::vcpus(&*self.target()).to_vec(),
            _held: Arc::clone(&self.held),
        }
    }

    /// What it is made of, to be changed as the guest itself could.
    pub fn target(&self) -> MutexGuard<'_, MockTarget> {
        self.memory.lock()
    }

    /// A call of `function` on `vcpu` at `ticks`, recorded as the stub of a session does whose rings are at `place`:
    /// in discard mode a full ring counts it as lost. False when it could not be.
    ///
    /// # Errors
    /// [`MemoryError`] when the rings are in no memory.
    pub fn call(
        &self,
        place: &SessionMemory,
        vcpu: u16,
        function: FunctionId,
        ticks: u64,
    ) -> Result<bool, MemoryError> {
        self.step(place, vcpu, function, ticks, None)
    }

    /// The same of a step of a graph, with the address at which its return address lies.
    ///
    /// # Errors
    /// As of [`Self::call`].
    pub fn step(
        &self,
        place: &SessionMemory,
        vcpu: u16,
        function: FunctionId,
        ticks: u64,
        step: Option<(Step, u64)>,
    ) -> Result<bool, MemoryError> {
        let mut target = self.target();
        let Some(cell) = place.cells.get(usize::from(vcpu)) else {
            return Ok(false);
        };
        let at = |offset: i32| cell.wrapping_add(u64::from(offset.unsigned_abs()));
        let head = target.read_word(at(HEAD))?;
        if head >= target.read_word(at(LIMIT))? {
            let lost = target.read_word(at(LOST))?;
            target.write_word(at(LOST), lost.wrapping_add(1))?;
            return Ok(false);
        }
        let Some(position) = Position::of_word(head, vcpu) else {
            return Ok(false);
        };
        let geometry = place.geometry;
        target.write_word(at(HEAD), position.after(1).word(vcpu))?;
        let mark = position.0 / geometry.slots();
        let spill = geometry.spill(head);
        let record = Record::new(ticks, function, mark).with(spill);
        let ring = u64::from(vcpu) * geometry.bytes();
        let slot = geometry.slot(position) * RECORD_BYTES;
        if let Some(((step, at), details)) = step.zip(place.details) {
            let detail = Detail::new(at, step, mark).0.wrapping_add(spill);
            target.write_word(details.wrapping_add(ring + slot), detail)?;
        }
        target.write_word(place.rings.wrapping_add(ring + slot), record.0)?;
        Ok(true)
    }
}

impl MockMemory {
    fn lock(&self) -> MutexGuard<'_, MockTarget> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest for MockGuest {
    type Memory = MockMemory;
    type Stopped<'g> = MockStopped;
    type Live<'g> = MockStopped;
    type Running<'g> = MockRunning;

    fn vcpus(&self) -> u16 {
        self.vcpus
    }

    fn memory(&self) -> &MockMemory {
        &self.memory
    }

    fn window(&self) -> Region {
        self.target().region()
    }

    fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        let loaded = at.wrapping_add(self.moved_by);
        let loaded = self.target().physical(loaded, 1).ok()?;
        // What follows in its page.
        Some((loaded, 0x1000 - loaded.0 % 0x1000))
    }

    fn stop(&self) -> Result<MockStopped, StopError> {
        if let Some(vcpu) = self.stuck
            && self.stops() >= self.stuck_from
        {
            let deadline = Duration::from_secs(2);
            return Err(StopError::Missed { vcpu, deadline });
        }
        self.stops.fetch_add(1, Ordering::Relaxed);
        Ok(self.halted())
    }

    fn is_held(&self) -> bool {
        false
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn last_pause(&self) -> Duration {
        self.pause
    }

    fn pauses(&self) -> Pauses {
        Pauses::default()
    }

    fn live(&self) -> Result<Option<MockStopped>, NotLive> {
        self.is_about_to_be_changed();
        Ok(self.serves_breakpoints.then(|| self.halted()))
    }

    fn running(&self) -> Option<MockRunning> {
        self.is_about_to_be_changed();
        self.is_mapped.then(|| MockRunning {
            memory: self.memory.clone(),
            meanwhile: self.meanwhile,
        })
    }

    fn khz(&self) -> u32 {
        KHZ
    }

    fn clocks(&self) -> &Arc<VcpuClocks> {
        &self.clocks
    }

    fn has_own_clocks(&self) -> bool {
        false
    }

    fn measure_clocks(&self, _stopped: &mut MockStopped) -> Result<(), RegisterError> {
        Ok(())
    }

    fn check_clocks(&self, _stopped: &mut MockStopped) {}

    fn keep_clock_page(
        &self,
        _at: Gpa,
        _clock: RunClock,
        beat: Beat,
        beats: Arc<Beats>,
        continues: bool,
    ) -> Result<Box<dyn ClockPage>, NoClockPage> {
        if (self.keeps_page)(beat) {
            if continues {
                beats.note(Stall { begin: 0, end: 0 });
            }
            return Ok(Box::new(MockPage(beat)));
        }
        Err(NoClockPage {
            why: "nobody keeps a clock page for this guest".to_owned(),
        })
    }

    fn set_detours(&self, _places: Vec<(Gva, Gva)>) {}

    fn detours(&self) -> u64 {
        0
    }
}

impl StoppedGuest for MockStopped {
    fn fetch_kernel_gs_base(&mut self) -> Result<(), RegisterError> {
        Ok(())
    }

    fn syscall_entry(&mut self, _vcpu: u16) -> Result<Gva, RegisterError> {
        Ok(Gva(0))
    }
}

impl LiveGuest for MockStopped {
    fn lost(&self) -> Duration {
        Duration::ZERO
    }
}

impl PhysicalMemory for MockMemory {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.lock().read_physical(at, into)
    }
}

impl WindowMemory for MockMemory {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.lock().write_window(at, bytes)
    }
}

impl SharedMemory for MockMemory {
    fn load(&self, at: Gpa) -> Result<u64, MemoryError> {
        self.lock().read_word(at)
    }

    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        self.lock().write_window(at, &word.to_le_bytes())
    }

    fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, MemoryError> {
        let mut target = self.lock();
        let is_there = target.read_word(at)? == old;
        if is_there {
            target.write_window(at, &new.to_le_bytes())?;
        }
        Ok(is_there)
    }

    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        let target = self.lock();
        let mut bytes = vec![0; size_of_val(into)];
        target.read_physical(at, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        for (into, word) in into.iter_mut().zip(words) {
            *into = u64::from_le_bytes(*word);
        }
        Ok(())
    }

    fn populate(&self, _at: Gpa, _bytes: u64) {}
}

impl PhysicalMemory for MockStopped {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl WindowMemory for MockStopped {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_window(at, bytes)
    }
}

impl TargetMemory for MockStopped {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.lock().read(at, into)
    }
}

impl TextMemory for MockStopped {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.lock().write_physical(at, bytes)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.lock().write(at, bytes)
    }
}

impl StoppedTarget for MockStopped {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.vcpus
    }

    fn ram(&self) -> Vec<Region> {
        self.memory.lock().ram()
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.memory.lock().has_gigabyte_pages
    }

    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        self.memory.lock().provide(part)
    }
}

impl LiveTarget for MockStopped {
    fn synchronise(&mut self) -> Result<(), NotSynchronised> {
        Ok(())
    }
}

impl PhysicalMemory for MockRunning {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl TargetMemory for MockRunning {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.lock().read(at, into)
    }
}

impl AtomicTarget for MockRunning {
    fn reaches(&self, at: Gva) -> bool {
        self.memory.lock().reaches(at)
    }

    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError> {
        let mut target = self.memory.lock();
        if let Some(meanwhile) = self.meanwhile {
            meanwhile(&mut target, at);
        }
        target.exchange(at, old, new)
    }
}

/// Nobody polls: what a session records is read when it is asked for, and at its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPollers;

impl Pollers for NoPollers {
    fn start(&self, _drain: Arc<SharedDrain>) -> std::io::Result<Box<dyn Poller>> {
        Ok(Box::new(Self))
    }
}

impl Poller for NoPollers {
    fn makes_rounds(&self) -> bool {
        false
    }

    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, stands: &dyn Fn() -> bool) -> bool {
        let stands = stands();
        if !stands {
            last();
        }
        !stands
    }
}
