//! A guest of another VMM, found and made ready to be traced: the second provider beside [`crate::machine::Machine`].

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::Image;
use kvm_bindings::kvm_cpuid_entry2;
use terms::addr::Gpa;
use trace::export::uftrace::PauseSpread;
use tracer::clock::{HeldTime, VcpuClocks};
use tracer::guest::StopError;
use tracer::host_events::HostEvents;
use tracer::target::{PhysicalMemory, VcpuRegisters};
use vm_memory::GuestRegionMmap;

use super::again::{Nested, until_outside};
use super::backing::map_all;
use super::counters;
use super::error::ForeignError;
use super::kernel_watch::KernelWatch;
use super::lock;
use super::memory::{ForeignRam, Range, RemoteRam};
use super::park::{AllParked, park};
use super::parked::Parked;
use super::process::{Mapping, Process};
use super::slots::{Slots, added, find};
use super::threads::settle;
use super::top_table::TopTable;
use super::userfaults::Userfaults;
use super::vcpus::Vcpus;
use super::window::{ForeignWindow, unmap_there};
use crate::clock::HOST;
use crate::host::kernel_events::KernelEvents;
use crate::kernel_text::KernelText;
use crate::memory::Ram;
use crate::pause_times::PauseTimes;
use crate::vcpu::FullRegisters;

/// Time that a vCPU has to get out of the guest.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Time that one has to come back to its kernel which KVM does not say to be elsewhere: what has another kernel's page tables stays
/// so, and is to be seen as it is.
const IN_SUSPICION: Duration = Duration::from_millis(100);
/// Time that attaching and letting go have, each with hundreds of calls.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// A guest of another VMM.
#[derive(Debug)]
pub struct Foreign {
    process: Process,
    vm: i32,
    vcpus: Vcpus,
    ram: ForeignRam,
    window: Option<ForeignWindow>,
    has_gigabyte_pages: bool,
    tsc_khz: u32,
    clocks: Arc<VcpuClocks>,
    top: TopTable,
    hold: RefCell<Hold>,
    times: RefCell<PauseTimes>,
    last_pause: Cell<Duration>,
    is_paused_by_user: Cell<bool>,
    /// Its VMM has ended.
    is_gone: bool,
    /// Nothing in the guest leads to the window.
    window_is_free: Cell<bool>,
    /// Whether its kernel still runs; none before that is known.
    kernel: Option<KernelWatch>,
    is_replaced: bool,
    /// What the host does with its vCPUs, where that is told.
    host_events: Option<Arc<HostEvents>>,
}

/// Who holds the vCPUs.
#[derive(Debug, Default)]
struct Hold {
    holders: u32,
    parked: Option<AllParked>,
    registers: Vec<FullRegisters>,
}

impl Foreign {
    /// Finds the guest of a process, and gives it memory that it shares with us.
    ///
    /// # Errors
    /// [`ForeignError`]; then nothing of ours is in it.
    pub fn attach(pid: i32) -> Result<Self, ForeignError> {
        let process = Process::open(pid)?;
        process.vm_descriptor()?;
        lock::left_in(&process)?;
        let opened = Self::with_window(process, |process, slots, bits, ram_end| {
            // Again: its threads are ours now, and nobody else can give it a window before we have.
            lock::left_in(process)?;
            ForeignWindow::open(process, slots, bits, ram_end).map(Some)
        })?;
        opened.ok_or(ForeignError::NotVmm { pid })
    }

    /// Finds the guest of a process with a window that somebody has left there, as [`Self::left_in`] says; none when the guest
    /// did not have it: then it is gone.
    ///
    /// # Errors
    /// [`ForeignError`]; then it is still there.
    pub(crate) fn found(pid: i32, left: &Mapping) -> Result<Option<Self>, ForeignError> {
        let found = Self::with_window(Process::open(pid)?, |process, slots, _, _| {
            let found = ForeignWindow::found(process, left)?;
            if found.is_none() {
                unmap_there(slots.parked, left.start, slots.deadline)?;
            }
            Ok(found)
        })?;
        // Until it is known that nothing leads there.
        found.iter().for_each(|guest| guest.set_window_free(false));
        Ok(found)
    }

    /// The windows in a process that tracers have left there that were killed.
    ///
    /// # Errors
    /// [`ForeignError::Traced`] when one of them lives, and others.
    pub(crate) fn left_in(pid: i32) -> Result<Vec<Mapping>, ForeignError> {
        let process = Process::open(pid)?;
        process.vm_descriptor()?;
        // In this order: who is refused has held nobody.
        lock::left_in(&process)?;
        settle(&process)?;
        lock::left_in(&process)
    }

    /// Finds the guest, with the window that `window` makes or finds while it is held.
    fn with_window(
        process: Process,
        window: impl FnOnce(
            &Process,
            &mut Slots<'_>,
            u32,
            u64,
        ) -> Result<Option<(ForeignWindow, File)>, ForeignError>,
    ) -> Result<Option<Self>, ForeignError> {
        let vm = process.vm_descriptor()?;
        let vcpus = Vcpus::of(&process)?;
        // Takes as long as its page tables are large: before anybody waits for it.
        let userfaults = Userfaults::of(process.pid());
        let mut times = PauseTimes::default();
        let deadline = Instant::now() + LONG;
        let mut parked = park(&process, vcpus.found(), deadline)?;
        times.parked(parked.held());
        let registers = parked.registers(deadline)?;
        let caller = parked.caller(process.pid())?;
        let cpuid = caller.cpuid(deadline)?;
        let tsc_khz = caller.tsc_khz(deadline)?;
        let mut slots = Slots::of(&mut parked, &process, vm, deadline)?;
        slots.forget_trial()?;
        close_left(&process, &mut slots)?;
        let ram = find(&process, &mut slots, &registers)?;
        tell(&ram, slots.are_logged);
        let (bits, end) = (physical_bits(&cpuid), ram.end());
        let Some((window, file)) = window(&process, &mut slots, bits, end)? else {
            return Ok(None);
        };
        let files = mappable(&process, &ram, userfaults);
        let mapped = map(&mut slots, &window, file, files)?;
        let top = TopTable::of(&ram, &registers);
        let paused = parked.let_go(&mut times);
        Ok(Some(Self {
            process,
            clocks: Arc::new(VcpuClocks::new(vcpus.count(), HOST)),
            vm,
            vcpus,
            ram: ForeignRam::new(ram, mapped),
            window: Some(window),
            has_gigabyte_pages: has_gigabyte_pages(&cpuid),
            tsc_khz,
            top,
            hold: RefCell::default(),
            times: RefCell::new(times),
            last_pause: Cell::new(paused.length),
            is_paused_by_user: Cell::new(false),
            is_gone: false,
            window_is_free: Cell::new(true),
            kernel: None,
            is_replaced: false,
            host_events: None,
        }))
    }

    /// What the host does with its vCPUs is told from now on, by the host's kernel.
    pub fn tell_of_host(&mut self, source: KernelEvents) {
        let time = Arc::new(HeldTime::new(HOST));
        let events = HostEvents::new(self.vcpus.count(), time);
        events.know_by(Box::new(source));
        for (number, vcpu) in (0..).zip(self.vcpus.found()) {
            let thread = vcpu.thread().and_then(|thread| u32::try_from(thread).ok());
            match thread {
                Some(thread) => events.executed_by(thread, number),
                None => log::warn!("nothing is told of vCPU {number}: its thread is not known"),
            }
        }
        self.host_events = Some(Arc::new(events));
    }

    pub(super) const fn host_events(&self) -> Option<&Arc<HostEvents>> {
        self.host_events.as_ref()
    }

    /// The VMM's process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) const fn vcpus(&self) -> &Vcpus {
        &self.vcpus
    }

    pub(crate) const fn all_memory(&self) -> &ForeignRam {
        &self.ram
    }

    pub(super) const fn window(&self) -> Option<&ForeignWindow> {
        self.window.as_ref()
    }

    pub(super) const fn has_gigabyte_pages(&self) -> bool {
        self.has_gigabyte_pages
    }

    pub(super) const fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    pub(super) const fn clocks(&self) -> &Arc<VcpuClocks> {
        &self.clocks
    }

    pub(super) const fn top(&self) -> &TopTable {
        &self.top
    }

    pub(crate) const fn is_paused_by_user(&self) -> &Cell<bool> {
        &self.is_paused_by_user
    }

    pub(crate) const fn times(&self) -> &RefCell<PauseTimes> {
        &self.times
    }

    pub(super) const fn last_pause(&self) -> Duration {
        self.last_pause.get()
    }

    /// Whether its VMM has ended.
    pub(crate) const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Its VMM has ended: there is nobody to be stopped, and nothing to be given back.
    pub(crate) fn forget(&mut self) {
        self.is_gone = true;
        self.vcpus.clear();
        self.window = None;
    }

    /// This is the kernel that runs: it is noticed when it does not any more.
    pub(crate) fn watch(&mut self, kernel: &Image) {
        self.kernel = KernelWatch::of(self, kernel);
    }

    /// Looks, now and then, whether the kernel still runs, and at a counter. True when it does not.
    pub(crate) fn has_lost_kernel(&mut self) -> bool {
        let due = self.kernel.take_if(|kernel| kernel.is_due());
        let Some(mut kernel) = due else {
            return false;
        };
        let asked = Instant::now();
        match self.hold() {
            Ok(registers) => {
                let vcpus: Vec<_> = registers.iter().map(VcpuRegisters::from).collect();
                self.is_replaced = kernel.look(self.ram.memory().ram(), &vcpus);
                let read = |vcpu| self.with_parked(vcpu, |one, until| one.tsc_offset(until));
                counters::look(&self.clocks, read);
                self.release();
                // Who is held anyway has not been paused for it.
                if self.hold.borrow().holders == 0 {
                    kernel.paused(self.last_pause());
                }
            }
            Err(error) => {
                log::debug!("whether the kernel still runs is not known: {error}");
                kernel.put_off(asked.elapsed());
            }
        }
        self.kernel = Some(kernel);
        self.is_replaced
    }

    /// How long the pauses took in which that was looked at; none while nobody watches.
    pub(crate) fn kernel_looks(&self) -> Option<PauseSpread> {
        self.kernel.as_ref().map(KernelWatch::pauses)
    }

    /// Whether its kernel was seen not to run any more.
    pub(crate) const fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Where its kernel's text lies, once that is known, but for a look at the kernel itself.
    pub(super) fn kernel_text(&self) -> Option<KernelText> {
        self.kernel.as_ref().map(KernelWatch::text)
    }

    pub(crate) const fn window_is_free(&self) -> bool {
        self.window_is_free.get()
    }

    pub(crate) fn set_window_free(&self, is_free: bool) {
        self.window_is_free.set(is_free);
    }

    /// Adds a holder: all vCPUs are parked when this returns. Returns their registers.
    pub(crate) fn hold(&self) -> Result<Vec<FullRegisters>, StopError> {
        let mut hold = self.hold.borrow_mut();
        if hold.holders == 0 {
            let (parked, registers) = self.park_outside_guests()?;
            (hold.parked, hold.registers) = (Some(parked), registers);
        }
        hold.holders += 1;
        Ok(hold.registers.clone())
    }

    /// Parks all vCPUs at a moment in which none executes a guest of the guest, or its firmware. One that only seems to is waited for
    /// [`IN_SUSPICION`].
    fn park_outside_guests(&self) -> Result<(AllParked, Vec<FullRegisters>), StopError> {
        let begun = Instant::now();
        let attempt = |deadline| {
            let (parked, registers) = self.park_all(deadline)?;
            let suspects = self.kernel_text();
            let suspects = suspects.filter(|_| begun.elapsed() < IN_SUSPICION);
            let memory = self.ram.memory().ram();
            Ok(match outside_of_kernel(&registers, memory, suspects) {
                None => Ok((parked, registers)),
                Some(vcpu) => {
                    let stood = parked.let_go(&mut self.times.borrow_mut()).length;
                    Err(Nested { vcpu, stood })
                }
            })
        };
        until_outside(PATIENCE, attempt, |error| self.missed(error))
    }

    /// Parks all vCPUs, those too that came since the last time.
    fn park_all(&self, deadline: Instant) -> Result<(AllParked, Vec<FullRegisters>), ForeignError> {
        let mut parked = self.park_listed(deadline)?;
        match parked.registers(deadline) {
            Ok(registers) => Ok((parked, registers)),
            Err(error) => {
                parked.let_go(&mut self.times.borrow_mut());
                Err(error)
            }
        }
    }

    fn park_listed(&self, deadline: Instant) -> Result<AllParked, ForeignError> {
        loop {
            let listed = self.vcpus.list(&self.process)?;
            let parked = park(&self.process, &self.vcpus.all(), deadline)?;
            let mut times = self.times.borrow_mut();
            times.parked(parked.held());
            match self.vcpus.are_all(listed, &self.process) {
                Ok(true) => return Ok(parked),
                others => {
                    parked.let_go(&mut times);
                    others?;
                }
            }
        }
    }

    /// Takes a holder away: the vCPUs continue when it was the last one.
    pub(crate) fn release(&self) {
        let mut hold = self.hold.borrow_mut();
        hold.holders = hold.holders.saturating_sub(1);
        if hold.holders > 0 {
            return;
        }
        if let Some(parked) = hold.parked.take() {
            let paused = parked.let_go(&mut self.times.borrow_mut());
            self.last_pause.set(paused.length);
        }
    }

    /// Does `what` with a vCPU that is held.
    ///
    /// # Errors
    /// Those of `what`, or [`ForeignError::NotHeld`].
    pub(super) fn with_parked<T>(
        &self,
        vcpu: u16,
        what: impl FnOnce(&mut Parked, Instant) -> Result<T, ForeignError>,
    ) -> Result<T, ForeignError> {
        let pid = self.process.pid();
        let mut hold = self.hold.borrow_mut();
        let parked = hold.parked.as_mut();
        let parked = parked.ok_or(ForeignError::NotHeld { pid, vcpu })?;
        what(parked.get_mut(pid, vcpu)?, Instant::now() + PATIENCE)
    }

    /// Where memory begins that the guest, which is held, has got since it was attached to, if it has got any.
    ///
    /// # Errors
    /// [`ForeignError`] where that cannot be found out.
    pub(super) fn added_memory(&self) -> Result<Option<Gpa>, ForeignError> {
        let pid = self.process.pid();
        let mut hold = self.hold.borrow_mut();
        let parked = hold.parked.as_mut();
        let parked = parked.ok_or(ForeignError::NotHeld { pid, vcpu: 0 })?;
        // Slots are granted and taken back, one after the other: that took 0.8 s on a busy host.
        let deadline = Instant::now() + LONG;
        let mut slots = Slots::of(parked, &self.process, self.vm, deadline)?;
        added(&mut slots, self.ram.memory().ram().ranges())
    }

    /// Takes our memory out of the guest and the VMM. Nothing in the guest leads there any more.
    ///
    /// # Errors
    /// [`ForeignError`]; what is still there is told by it.
    pub(crate) fn leave(&mut self) -> Result<(), ForeignError> {
        let Some(window) = &self.window else {
            return Ok(());
        };
        let deadline = Instant::now() + LONG;
        let mut parked = self.park_listed(deadline)?;
        let slots = Slots::of(&mut parked, &self.process, self.vm, deadline);
        let closed = slots.and_then(|mut slots| window.close(&mut slots));
        parked.let_go(&mut self.times.borrow_mut());
        closed?;
        // Not before: what is still there is tried again, and told, and nobody else takes it for left meanwhile.
        self.window = None;
        Ok(())
    }

    fn missed(&self, error: &ForeignError) -> StopError {
        log::debug!("{error}");
        let late = match error {
            ForeignError::Late { thread, .. } => Some(*thread),
            _ => None,
        };
        let mut vcpus = self.vcpus.all().into_iter();
        // It may have to wait for a thread that executes none.
        match vcpus.find(|vcpu| late.is_some() && vcpu.thread() == late) {
            Some(vcpu) => StopError::Missed {
                vcpu: vcpu.number(),
                deadline: PATIENCE,
            },
            None => StopError::Refused {
                why: error.to_string(),
            },
        }
    }
}

/// One that tracing has never begun on is left as it was.
impl Drop for Foreign {
    fn drop(&mut self) {
        if self.window_is_free()
            && let Err(error) = self.leave()
            && !self.process.is_ending()
        {
            log::error!(
                "tracing memory is left in the guest: {error}; `vmm attach --restore` takes it away"
            );
        }
    }
}

/// The first vCPU that executes a guest of the guest or its firmware, as KVM says; where `kernel` is told, or as it seems.
fn outside_of_kernel(
    vcpus: &[FullRegisters],
    memory: &impl PhysicalMemory,
    kernel: Option<KernelText>,
) -> Option<usize> {
    let seems = |vcpu: &FullRegisters| {
        kernel.is_some_and(|kernel| kernel.may_be_left(memory, &VcpuRegisters::from(vcpu)))
    };
    vcpus.iter().position(|vcpu| vcpu.is_nested || seems(vcpu))
}

/// Says where the guest's RAM is, and what somebody else does with it.
fn tell(ram: &RemoteRam, is_logged: bool) {
    for Range { guest, host } in ram.ranges() {
        let (start, end) = (guest.start.0, guest.end());
        log::debug!("RAM {start:#x}-{end:#x} at {host:#x} of its VMM");
    }
    if is_logged {
        log::warn!(
            "KVM notes which pages of this guest are written: it is being migrated, or its snapshots are by difference. What of it is \
             copied while it is traced leads to memory that is not in the copy: let it go before that"
        );
    }
}

/// What of a guest's RAM is mapped here. Nothing where it cannot be told what is served.
fn mappable(
    process: &Process,
    ram: &RemoteRam,
    userfaults: io::Result<Userfaults>,
) -> Vec<GuestRegionMmap> {
    let mappings = process.mappings().unwrap_or_default();
    match userfaults {
        Ok(userfaults) => map_all(process.pid(), ram.ranges(), &mappings, &userfaults),
        Err(error) => {
            log::debug!(
                "RAM of process {} is copied, not mapped: {error}",
                process.pid()
            );
            Vec::new()
        }
    }
}

/// What of a guest's memory is mapped here: its window, which is all of `file`, and these parts of its RAM. A window
/// that was made for that and cannot be mapped is taken away.
fn map(
    slots: &mut Slots<'_>,
    window: &ForeignWindow,
    file: File,
    ram: Vec<GuestRegionMmap>,
) -> Result<Ram, ForeignError> {
    let mapped = window.map(file, ram);
    if mapped.is_err() {
        window.undo(slots)?;
    }
    mapped
}

/// Closes what a tracer has left open in the VMM that was killed between two calls.
fn close_left(process: &Process, slots: &mut Slots<'_>) -> Result<(), ForeignError> {
    for fd in lock::descriptors_left_in(process)? {
        let arguments = [u64::from(fd.cast_unsigned()), 0, 0, 0, 0, 0];
        let parked = &mut *slots.parked;
        parked.call("close", libc::SYS_close, arguments, slots.deadline)?;
    }
    Ok(())
}

/// Bits of the physical addresses that the guest's processor has (CPUID 0x80000008).
fn physical_bits(cpuid: &[kvm_cpuid_entry2]) -> u32 {
    const LEAF: u32 = 0x8000_0008;
    const WITHOUT: u32 = 36;
    let leaf = cpuid.iter().find(|entry| entry.function == LEAF);
    leaf.map_or(WITHOUT, |leaf| {
        // What a guest reaches is less than what its processor has where the host's tables have fewer levels: GuestPhysAddrSize.
        match (leaf.eax & 0xff, leaf.eax >> 16 & 0xff) {
            (bits, 0) => bits,
            (bits, reached) => bits.min(reached),
        }
    })
}

/// Whether the guest's processor has pages of 1 GiB (CPUID 0x80000001).
fn has_gigabyte_pages(cpuid: &[kvm_cpuid_entry2]) -> bool {
    const LEAF: u32 = 0x8000_0001;
    const PAGES: u32 = 1 << 26;
    let leaf = cpuid.iter().find(|entry| entry.function == LEAF);
    leaf.is_some_and(|leaf| leaf.edx & PAGES != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use terms::region::Region;

    use super::*;
    use crate::kernel_text::testing::{TEXT, two_vcpus};
    use crate::layout::{GIB, MIB};
    use crate::memory::Window;

    /// Older kernels of the host do not say that a vCPU is in a guest of the guest.
    #[test]
    fn a_vcpu_that_seems_to_be_in_a_guest_of_the_guest_is_told() {
        let (ram, vcpus) = two_vcpus([TEXT.place.0, 0x60_0000]);
        let full = |vcpu: VcpuRegisters, vmxe: u64, is_nested| {
            let mut full = FullRegisters {
                is_nested,
                ..FullRegisters::default()
            };
            let system = &mut full.system;
            (system.cr0, system.cr3, system.efer) = (vcpu.cr0, vcpu.cr3, vcpu.efer);
            system.cr4 = vcpu.cr4 | vmxe;
            full
        };
        let [with, without] = vcpus;
        for (vmxe, is_nested, kernel, outside) in [
            (1 << 13, false, Some(TEXT), Some(1)),
            (0, false, Some(TEXT), None),
            (1 << 13, false, None, None),
            (0, true, None, Some(0)),
        ] {
            let vcpus = [full(with, vmxe, is_nested), full(without, vmxe, false)];
            assert_eq!(outside_of_kernel(&vcpus, ram.memory(), kernel), outside);
        }
    }

    /// It was once forgotten, with its lock, when the vCPUs could not be parked for that.
    #[test]
    fn a_window_that_cannot_be_taken_away_is_not_forgotten() {
        let mut other = Command::new("cat");
        let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
        let pid = other.id().cast_signed();
        let file = File::from(memfd_create("window", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, MIB).unwrap();
        let (start, bytes) = (Gpa(GIB), MIB);
        let lock = lock::Lock::take(&file).unwrap();
        let guest = Region { start, bytes };
        let window = ForeignWindow::of(Range { guest, host: 0 }, 0, lock, false);
        let mapped = Ram::in_files(file, Window { start, bytes }, Vec::new()).unwrap();
        let ram = RemoteRam::new(pid, []);
        let mut foreign = Foreign {
            process: Process::open(pid).unwrap(),
            vm: -1,
            // None that could be parked.
            vcpus: Vcpus::default(),
            window: Some(window),
            has_gigabyte_pages: false,
            tsc_khz: 1,
            clocks: Arc::new(VcpuClocks::new(1, HOST)),
            top: TopTable::of(&ram, &[]),
            ram: ForeignRam::new(ram, mapped),
            hold: RefCell::default(),
            times: RefCell::default(),
            last_pause: Cell::default(),
            is_paused_by_user: Cell::default(),
            is_gone: false,
            window_is_free: Cell::new(true),
            kernel: None,
            is_replaced: false,
            host_events: None,
        };
        for _ in 0..2 {
            let left = foreign.leave();
            assert!(
                matches!(left, Err(ForeignError::NotHeld { .. })),
                "{left:?}"
            );
            assert!(foreign.window.is_some());
        }
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
