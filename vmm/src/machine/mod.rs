//! A virtual machine: memory, interrupt controllers, ports, vCPUs.
//!
//! Life: [`Machine::build`] loads the kernel; [`Machine::before_start`] gives access to it while
//! nothing runs; [`Machine::start`] starts the vCPUs; [`Machine::quiesce`] pauses them all for as
//! long as its guard lives; [`Machine::stop`] ends them.

mod parts;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::Image;
use kvm_ioctls::{Kvm, VmFd};
use terms::addr::Gva;
use tracer::clock::VcpuClocks;
use tracer::guest::StopError;
use tracer::host_events::HostEvents;
use tracer::waits::Waits;

use crate::breakpoint::{BreakpointError, TextTrap};
use crate::clock::HOST;
use crate::devices::Ports;
use crate::devices::console::ConsoleQueue;
use crate::live::{BreakpointService, Live, LiveError};
use crate::loader::{self, BootOptions, ElfLayout, KernelFile};
use crate::memory::{Memory, Ram};
use crate::memslots::MemorySlots;
use crate::not_started::NotYetStarted;
use crate::pause_times::PauseTimes;
use crate::quiesce::{Holders, Quiesced};
use crate::vcpu::{self, Detours, Gate, KickTargets, ReadyVcpu, Request, Surroundings, VcpuEvents};

pub use parts::{BuildError, MachineConfig, most_vcpus, open_kvm};
use parts::{
    check_cpuid, check_vcpus, cpu_model, create_devices, create_vcpus, has_sync_registers,
    host_events, kvm_refused, leave_out_counters, system_refused, waiting_rooms,
};

/// Time that a vCPU has to get out of the guest, unless the caller says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A virtual machine.
#[derive(Debug)]
pub struct Machine {
    // Fields are dropped in this order: vCPUs before the VM, the VM before its memory.
    holders: Holders,
    ready: Vec<ReadyVcpu>,
    _vm: Arc<VmFd>,
    _kvm: Kvm,
    ports: Arc<Ports>,
    detours: Arc<Detours>,
    events: VcpuEvents,
    layout: ElfLayout,
    ram: Ram,
    vcpus: u16,
    user_paused: Cell<bool>,
    breakpoint: Cell<Option<Gva>>,
    trap: TextTrap,
    tsc_khz: u32,
    clocks: Arc<VcpuClocks>,
    /// What the host does with its vCPUs, if that is told.
    pub(crate) host_events: Option<Arc<HostEvents>>,
    waits: Arc<Waits>,
    /// Who serves breakpoints while text is changed live.
    breakpoints: Option<BreakpointService>,
}

impl Machine {
    /// Builds a machine with `kernel` loaded, whose console prints to `console`.
    ///
    /// # Errors
    /// [`BuildError`] that names the option, file or capability in the way.
    pub fn build(
        config: &MachineConfig,
        kernel: &KernelFile,
        console: ConsoleQueue,
    ) -> Result<Self, BuildError> {
        let kvm = open_kvm()?;
        let vcpus = check_vcpus(config.vcpus, &kvm)?;
        let cpuid = check_cpuid(config, &kvm)?;
        let ram = Ram::create(config.memory_mib, config.window_bytes)?;
        let layout = loader::load(&ram, kernel, &boot_options(config))?;
        let vm = Arc::new(kvm.create_vm().map_err(kvm_refused("a new VM"))?);
        leave_out_counters(&kvm, &vm);
        let slots = MemorySlots::new(Arc::clone(&vm), ram.memory().clone())
            .map_err(kvm_refused("the guest's memory"))?;
        let ports = create_devices(&vm, console)?;
        let (sender, events) = vcpu::events().map_err(system_refused("the event channel"))?;
        let gate = Arc::new(Gate::default());
        let detours = Arc::new(Detours::default());
        let targets = Arc::new(KickTargets::default());
        let clocks = Arc::new(VcpuClocks::new(vcpus, HOST));
        let around = Surroundings {
            ports: Arc::clone(&ports),
            detours: Arc::clone(&detours),
            waits: waiting_rooms(&gate, &sender, &targets, &clocks),
            targets,
            events: sender,
            gate: Arc::clone(&gate),
            memory: ram.memory().clone(),
            cpuid,
            model: cpu_model(config, vcpus, &kvm),
            sync_registers: has_sync_registers(&kvm),
            host_events: host_events(config, vcpus, clocks.time()),
            clocks,
        };
        let (ready, tsc_khz) = create_vcpus(&vm, vcpus, layout.entry, &around)?;
        Ok(Self {
            holders: Holders::new(Vec::new(), gate, Arc::clone(around.clocks.time()))
                .with_slots(slots)
                .with_gigabyte_pages(vcpu::has_gigabyte_pages(&around.cpuid)),
            ready,
            _vm: vm,
            _kvm: kvm,
            ports,
            detours,
            events,
            layout,
            ram,
            vcpus,
            user_paused: Cell::new(false),
            breakpoint: Cell::new(None),
            trap: TextTrap::default(),
            tsc_khz,
            clocks: around.clocks,
            host_events: around.host_events,
            waits: around.waits,
            breakpoints: None,
        })
    }

    /// Access to the loaded kernel, as long as no vCPU has run.
    #[must_use]
    pub fn before_start(&mut self) -> Option<NotYetStarted<'_>> {
        let unstarted = !self.is_started();
        unstarted.then(|| NotYetStarted::new(&self.ram, &self.layout))
    }

    /// Where its vCPUs wait for readers.
    #[must_use]
    pub const fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Starts every vCPU.
    ///
    /// # Errors
    /// [`BuildError::System`] when threads cannot be made.
    pub fn start(&mut self) -> Result<(), BuildError> {
        if self.is_started() {
            return Err(BuildError::AlreadyStarted);
        }
        vcpu::install_handler().map_err(system_refused("the kick signal"))?;
        let mut handles = Vec::new();
        let mut failed = None;
        for ready in self.ready.drain(..) {
            match ready.start() {
                Ok(handle) => handles.push(handle),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.holders.take_over(handles);
        match failed {
            None => Ok(()),
            Some(error) => Err(system_refused("a vCPU thread")(error)),
        }
    }

    fn is_started(&self) -> bool {
        self.ready.is_empty()
    }

    /// Pauses every vCPU, consistent, until the guard is dropped (and every other holder is gone).
    ///
    /// # Errors
    /// [`StopError`] names the vCPU that missed the deadline; then the guest runs on.
    pub fn quiesce(&self, patience: Duration) -> Result<Quiesced<'_>, StopError> {
        Quiesced::hold(&self.holders, &self.ram, patience)
    }

    /// Lets text be written while the guest runs, from now on: its kernel serves the breakpoints.
    ///
    /// # Errors
    /// [`LiveError::NoService`] when it does not.
    pub fn serve_breakpoints(&mut self, image: &Image) -> Result<(), LiveError> {
        self.breakpoints = Some(BreakpointService::find(image, &self.layout)?);
        Ok(())
    }

    /// Access to the guest's text while it runs; none where nobody serves breakpoints.
    ///
    /// # Errors
    /// [`LiveError`]; then nothing is different.
    pub fn live(&self, patience: Duration) -> Result<Option<Live<'_>>, LiveError> {
        let begin =
            |service| Live::begin(&self.holders, &self.ram, &self.layout, service, patience);
        self.breakpoints.map(begin).transpose()
    }

    /// Pauses the guest until [`Machine::resume`]. Tracing can be changed meanwhile. Says whether
    /// that changed anything.
    ///
    /// # Errors
    /// [`StopError`] names the vCPU that missed the deadline; then the guest runs on.
    pub fn pause(&self, patience: Duration) -> Result<bool, StopError> {
        if self.user_paused.get() {
            return Ok(false);
        }
        self.holders.hold(patience)?;
        self.user_paused.set(true);
        Ok(true)
    }

    /// Ends a [`Machine::pause`]. Says whether there was one.
    pub fn resume(&self) -> bool {
        let was = self.user_paused.replace(false);
        if was {
            self.holders.release();
        }
        was
    }

    /// Whether the user has paused the guest.
    #[must_use]
    pub fn is_paused_by_user(&self) -> bool {
        self.user_paused.get()
    }

    /// Arms one breakpoint on every vCPU, or none. A vCPU that reaches it is trapped there, and a
    /// [`vcpu::VcpuEventKind::Breakpoint`] is sent.
    ///
    /// # Errors
    /// When the machine cannot be quiesced, KVM refuses, or the text trap that some hosts need
    /// cannot be written.
    pub fn set_breakpoint(&mut self, at: Option<Gva>) -> Result<(), BreakpointError> {
        for ready in &mut self.ready {
            ready.set_breakpoint(at).map_err(BreakpointError::Refused)?;
        }
        let mut quiesced = None;
        if self.is_started() {
            let mut stopped = self.quiesce(PATIENCE)?;
            for vcpu in 0..self.vcpus {
                stopped.ask(vcpu, Request::SetBreakpoint(at), PATIENCE)?;
            }
            quiesced = Some(stopped);
        }
        self.trap.put(at, &self.ram, &self.layout)?;
        drop(quiesced);
        self.breakpoint.set(at);
        Ok(())
    }

    /// Ticks of the guests' time-stamp counter in a millisecond, as KVM reports them.
    #[must_use]
    pub fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    /// The counters of the vCPUs.
    #[must_use]
    pub fn clocks(&self) -> &Arc<VcpuClocks> {
        &self.clocks
    }

    /// Where the breakpoint is armed.
    #[must_use]
    pub fn breakpoint(&self) -> Option<Gva> {
        self.breakpoint.get()
    }

    /// Frees the vCPUs that are trapped at the breakpoint. It must be disarmed before.
    pub fn leave_breakpoint(&self) {
        self.handles().iter().for_each(vcpu::VcpuHandle::untrap);
    }

    /// Lets a vCPU continue whose guest has announced something.
    pub fn acknowledge(&self, vcpu: u16) {
        if let Some(handle) = self.holders.vcpus().get(usize::from(vcpu)) {
            handle.acknowledge(Instant::now() + PATIENCE);
        }
    }

    /// Its vCPUs, once they have been started: what each of them does.
    #[must_use]
    pub fn handles(&self) -> &[vcpu::VcpuHandle] {
        self.holders.vcpus()
    }

    /// How long pauses took so far.
    pub fn with_pause_times<T>(&self, look: impl FnOnce(&PauseTimes) -> T) -> T {
        self.holders.with_times(look)
    }

    /// How long the guest was paused last, from the request until its last vCPU continued. Waits a
    /// moment for that; zero when there was no pause, or the user has paused the guest anyway.
    #[must_use]
    pub fn last_pause(&self) -> Duration {
        if self.user_paused.get() {
            return Duration::ZERO;
        }
        self.holders.last_pause()
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.ram.memory()
    }

    /// All of its memory, to be written: for what stands in for the guest itself.
    #[must_use]
    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Where the kernel's segments lie.
    #[must_use]
    pub fn layout(&self) -> &ElfLayout {
        &self.layout
    }

    /// How many vCPUs there are.
    #[must_use]
    pub fn vcpus(&self) -> u16 {
        self.vcpus
    }

    /// Where vCPUs continue that leave the guest at probes.
    #[must_use]
    pub fn detours(&self) -> &Detours {
        &self.detours
    }

    /// The I/O ports.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Where vCPU threads report what the main thread must see to.
    #[must_use]
    pub fn events(&self) -> &VcpuEvents {
        &self.events
    }

    /// Ends every vCPU thread. Returns the numbers of those that did not end within `patience`.
    pub fn stop(&mut self, patience: Duration) -> Vec<u16> {
        let deadline = Instant::now() + patience;
        self.holders.vcpus().iter().for_each(vcpu::VcpuHandle::stop);
        let mut late = Vec::new();
        for handle in self.holders.vcpus_mut() {
            if !handle.join(deadline) {
                late.push(handle.number());
            }
        }
        late
    }
}

fn boot_options(config: &MachineConfig) -> BootOptions<'_> {
    BootOptions {
        cmdline: &config.cmdline,
        vcpus: config.vcpus,
        initrd: config.initrd.as_ref(),
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let late = self.stop(PATIENCE);
        if !late.is_empty() {
            log::error!("vCPU threads {late:?} did not end");
        }
    }
}
