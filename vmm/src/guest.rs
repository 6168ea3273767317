//! The machine as what tracing needs of a guest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::clock::page::{Beat, Beats, ClockPage};
use tracer::clock::{Relation, RunClock, VcpuClocks};
use tracer::guest::{
    Guest, LiveGuest, NoClockPage, NotLive, Pauses, RegisterError, SharedMemory, StopError,
    StoppedGuest,
};
use tracer::host_events::HostEvents;
use tracer::target::MemoryError;
use tracer::waits::Waits;
use vm_memory::{Bytes, VolatileMemory};

use crate::clock::{offset_is_applied, until_checked};
use crate::host::clock_page::ClockThread;
use crate::live::{Live, LiveError};
use crate::machine::{Machine, PATIENCE};
use crate::memory::Memory;
use crate::quiesce::Quiesced;
use crate::running::Running;
use crate::vcpu::{AskVcpuError, Reply, Request, VcpuHandle};

/// Readings of each vCPU's counter, of which the tightest counts. The host may take our CPU in any of them, but
/// hardly in all.
const SAMPLES: u32 = 16;

impl Guest for Machine {
    type Memory = Memory;
    type Stopped<'g> = Quiesced<'g>;
    type Live<'g> = Live<'g>;
    type Running<'g> = Running<'g, Self>;

    fn vcpus(&self) -> u16 {
        Self::vcpus(self)
    }

    fn memory(&self) -> &Memory {
        Self::memory(self)
    }

    fn window(&self) -> Region {
        let window = Self::memory(self).window();
        Region {
            start: window.start,
            bytes: window.bytes,
        }
    }

    fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        self.layout().locate(at)
    }

    fn stop(&self) -> Result<Quiesced<'_>, StopError> {
        self.quiesce(PATIENCE)
    }

    fn is_held(&self) -> bool {
        self.is_paused_by_user()
    }

    fn goes_on(&self) -> bool {
        false
    }

    fn last_pause(&self) -> Duration {
        Self::last_pause(self)
    }

    fn pauses(&self) -> Pauses {
        self.with_pause_times(|times| times.into())
    }

    fn live(&self) -> Result<Option<Live<'_>>, NotLive> {
        Ok(Self::live(self, PATIENCE)?)
    }

    fn running(&self) -> Option<Running<'_, Self>> {
        Some(Running::of(self, self.ram()))
    }

    fn khz(&self) -> u32 {
        self.tsc_khz()
    }

    fn clocks(&self) -> &Arc<VcpuClocks> {
        Self::clocks(self)
    }

    fn has_own_clocks(&self) -> bool {
        offset_is_applied()
    }

    fn measure_clocks(&self, stopped: &mut Quiesced<'_>) -> Result<(), RegisterError> {
        let clocks = Self::clocks(self);
        let mut relations = Vec::with_capacity(clocks.count());
        for vcpu in 0..Self::vcpus(self) {
            let reply = stopped.ask(vcpu, Request::ReadTsc(SAMPLES), PATIENCE)?;
            relations.push(match reply {
                Reply::Tsc(sample) => Some(Relation::from(sample)),
                _ => None,
            });
        }
        clocks.begin(&relations, until_checked(self.tsc_khz()));
        Ok(())
    }

    fn check_clocks(&self, stopped: &mut Quiesced<'_>) {
        let clocks = Self::clocks(self);
        for vcpu in (0..Self::vcpus(self)).filter(|_| clocks.is_begun()) {
            match stopped.ask(vcpu, Request::ReadTsc(SAMPLES), PATIENCE) {
                Ok(Reply::Tsc(sample)) => {
                    clocks.check(vcpu, sample);
                }
                Ok(_) => {}
                Err(error) => log::debug!("the last times were not checked: {error}"),
            }
        }
    }

    fn keep_clock_page(
        &self,
        at: Gpa,
        clock: RunClock,
        beat: Beat,
        beats: Arc<Beats>,
        continues: bool,
    ) -> Result<Box<dyn ClockPage>, NoClockPage> {
        let memory = Self::memory(self);
        let handles = self.handles().iter();
        let vcpus = handles.filter_map(VcpuHandle::cpu_time).collect();
        let thread = ClockThread::start(memory, at, clock, beat, vcpus, beats, continues);
        match thread {
            Ok(thread) => Ok(Box::new(thread)),
            Err(error) => Err(NoClockPage {
                why: error.to_string(),
            }),
        }
    }

    fn set_detours(&self, places: Vec<(Gva, Gva)>) {
        Self::detours(self).set(places);
    }

    fn detours(&self) -> u64 {
        Self::detours(self).exits()
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        Some(Self::waits(self))
    }

    fn host_events(&self) -> Option<&Arc<HostEvents>> {
        self.host_events.as_ref()
    }
}

impl StoppedGuest for Quiesced<'_> {
    fn fetch_kernel_gs_base(&mut self) -> Result<(), RegisterError> {
        Ok(Self::fetch_kernel_gs_base(self, PATIENCE)?)
    }

    fn syscall_entry(&mut self, vcpu: u16) -> Result<Gva, RegisterError> {
        match self.ask(vcpu, Request::ReadSyscallEntry, PATIENCE)? {
            Reply::SyscallEntry(at) => Ok(at),
            other => Err(RegisterError {
                why: format!("vCPU {vcpu} answered {other:?}"),
            }),
        }
    }
}

impl LiveGuest for Live<'_> {
    fn lost(&self) -> Duration {
        Self::lost(self)
    }
}

impl From<AskVcpuError> for RegisterError {
    fn from(error: AskVcpuError) -> Self {
        Self {
            why: error.to_string(),
        }
    }
}

impl From<LiveError> for NotLive {
    fn from(error: LiveError) -> Self {
        Self {
            why: error.to_string(),
        }
    }
}

fn not_a_word_of_the_window(at: Gpa) -> MemoryError {
    MemoryError::NotWindow {
        address: at,
        length: size_of::<u64>(),
    }
}

impl SharedMemory for Memory {
    fn load(&self, at: Gpa) -> Result<u64, MemoryError> {
        self.load_word(at)
    }

    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        let slice = self.window_slice(at, size_of::<u64>())?;
        let stored = slice.store(word, 0, Ordering::Release);
        stored.map_err(|_| not_a_word_of_the_window(at))
    }

    fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, MemoryError> {
        let slice = self.window_slice(at, size_of::<u64>())?;
        let word = slice.get_atomic_ref::<AtomicU64>(0);
        let word = word.map_err(|_| not_a_word_of_the_window(at))?;
        let swapped = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.is_ok())
    }

    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        Self::copy_words(self, at, into)
    }

    fn populate(&self, at: Gpa, bytes: u64) {
        Self::populate(self, at, bytes);
    }
}
