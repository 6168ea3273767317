//! A guest of another VMM as what tracing needs of a guest.

use std::sync::Arc;
use std::time::Duration;

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::clock::page::{Beat, Beats, ClockPage};
use tracer::clock::{RunClock, VcpuClocks};
use tracer::guest::{Guest, LiveGuest, NoClockPage, NotLive, Pauses, RegisterError, StopError};
use tracer::host_events::HostEvents;
use tracer::target::{
    LiveTarget, MemoryError, NotSynchronised, PhysicalMemory, TargetMemory, TextMemory,
    WindowMemory,
};

use super::counters::{self, Counter};
use super::machine::Foreign;
use super::memory::ForeignMemory;
use super::stopped::ForeignStopped;
use super::window::ForeignWindow;
use crate::clock::{host_speed, offset_is_applied};
use crate::host::clock_page::ClockThread;
use crate::running::Running;
use crate::vcpu::cpu_time::CpuTime;

impl Guest for Foreign {
    type Memory = ForeignMemory;
    type Stopped<'g> = ForeignStopped<'g>;
    type Live<'g> = Never;
    type Running<'g> = Running<'g, Self>;

    fn vcpus(&self) -> u16 {
        Self::vcpus(self).count()
    }

    fn memory(&self) -> &ForeignMemory {
        self.all_memory().memory()
    }

    fn window(&self) -> Region {
        let nothing = Region {
            start: Gpa(0),
            bytes: 0,
        };
        // Whoever knows where it is may lead the guest there.
        self.set_window_free(false);
        Self::window(self).map_or(nothing, ForeignWindow::region)
    }

    fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        self.top().locate(self.all_memory().memory().ram(), at)
    }

    fn stop(&self) -> Result<ForeignStopped<'_>, StopError> {
        ForeignStopped::stop(self)
    }

    fn is_held(&self) -> bool {
        self.is_paused_by_user().get()
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn last_pause(&self) -> Duration {
        match self.is_held() {
            true => Duration::ZERO,
            false => Self::last_pause(self),
        }
    }

    fn pauses(&self) -> Pauses {
        Pauses::from(&*self.times().borrow())
    }

    /// Nobody serves breakpoints: they would go to the guest's own handler, or to its VMM.
    fn live(&self) -> Result<Option<Never>, NotLive> {
        Ok(None)
    }

    fn running(&self) -> Option<Running<'_, Self>> {
        let mapped = self.all_memory().mapped();
        mapped.map(|mapped| Running::of(self, mapped))
    }

    fn khz(&self) -> u32 {
        self.tsc_khz()
    }

    fn clocks(&self) -> &Arc<VcpuClocks> {
        Self::clocks(self)
    }

    fn has_own_clocks(&self) -> bool {
        let has_own = offset_is_applied();
        if has_own {
            // Tried now, where no guest stands still for it.
            let _ = host_speed();
        }
        has_own
    }

    fn measure_clocks(&self, _: &mut ForeignStopped<'_>) -> Result<(), RegisterError> {
        let read = |vcpu| {
            self.with_parked(vcpu, |parked, until| {
                Ok(Counter {
                    offset: parked.tsc_offset(until)?,
                    khz: parked.tsc_khz(until)?,
                })
            })
        };
        let (clocks, khz) = (Self::clocks(self), self.tsc_khz());
        Ok(counters::begin(clocks, host_speed(), khz, read)?)
    }

    fn check_clocks(&self, _: &mut ForeignStopped<'_>) {
        let read = |vcpu| self.with_parked(vcpu, |parked, until| parked.tsc_offset(until));
        counters::look_at_all(Self::clocks(self), read);
    }

    fn keep_clock_page(
        &self,
        at: Gpa,
        clock: RunClock,
        beat: Beat,
        beats: Arc<Beats>,
        continues: bool,
    ) -> Result<Box<dyn ClockPage>, NoClockPage> {
        let window = self.all_memory().memory().mapped();
        let pid = self.process().pid();
        let vcpus = self.vcpus().found().iter();
        let threads = vcpus.filter_map(|vcpu| vcpu.thread());
        let vcpus = threads.map(|thread| CpuTime::of_process(pid, thread));
        let thread = ClockThread::start(window, at, clock, beat, vcpus.collect(), beats, continues);
        match thread {
            Ok(thread) => Ok(Box::new(thread)),
            Err(error) => Err(NoClockPage {
                why: error.to_string(),
            }),
        }
    }

    /// No vCPU leaves the guest for us.
    fn set_detours(&self, _: Vec<(Gva, Gva)>) {}

    fn detours(&self) -> u64 {
        0
    }

    fn host_events(&self) -> Option<&Arc<HostEvents>> {
        Self::host_events(self)
    }
}

/// Text is never written while the guest runs: there is no value of this.
#[derive(Debug)]
pub enum Never {}

impl PhysicalMemory for Never {
    fn read_physical(&self, _: Gpa, _: &mut [u8]) -> Result<(), MemoryError> {
        match *self {}
    }
}

impl WindowMemory for Never {
    fn write_window(&mut self, _: Gpa, _: &[u8]) -> Result<(), MemoryError> {
        match *self {}
    }
}

impl TargetMemory for Never {
    fn read(&self, _: Gva, _: &mut [u8]) -> Result<(), MemoryError> {
        match *self {}
    }
}

impl TextMemory for Never {
    fn write_physical(&mut self, _: Gpa, _: &[u8]) -> Result<(), MemoryError> {
        match *self {}
    }

    fn write(&mut self, _: Gva, _: &[u8]) -> Result<(), MemoryError> {
        match *self {}
    }
}

impl LiveTarget for Never {
    fn synchronise(&mut self) -> Result<(), NotSynchronised> {
        match *self {}
    }
}

impl LiveGuest for Never {
    fn lost(&self) -> Duration {
        match *self {}
    }
}
