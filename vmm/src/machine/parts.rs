//! What a machine is built from: its configuration, what this host's KVM gives for it, and why it could not be.

use std::io;
use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_CAP_SYNC_REGS, KVM_MAX_CPUID_ENTRIES, KVM_PMU_CAP_DISABLE,
    KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_enable_cap, kvm_pit_config,
};
use kvm_ioctls::{Cap, Kvm, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::devices::Ports;
use crate::devices::console::ConsoleQueue;
use crate::devices::serial::SerialPort;
use crate::layout;
use crate::loader::{Initrd, LoadError};
use crate::memory::CreateMemoryError;
use crate::remedy;
use crate::vcpu::{
    self, CpuModel, EventSender, Gate, KickTargets, ReadyVcpu, Surroundings, Waiters,
};
use terms::addr::Gpa;
use tracer::clock::{HeldTime, VcpuClocks};
use tracer::host_events::HostEvents;
use tracer::waits::Waits;

/// The version of KVM's API that has been stable since 2007.
const API_VERSION: i32 = 12;

/// What a machine is made of.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// An initial RAM disk.
    pub initrd: Option<Initrd>,
    /// The kernel's command line, before ` vcpus=N` is added.
    pub cmdline: String,
    /// How many vCPUs.
    pub vcpus: u64,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// Size of the window region in bytes.
    pub window_bytes: u64,
    /// Whether the guest can run virtual machines itself.
    pub nested: bool,
    /// Whether its vCPUs' threads tell when they enter the guest and when they are back.
    pub host_events: bool,
}

/// Why a machine could not be built or started.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// `/dev/kvm` is not there.
    #[error(
        "/dev/kvm does not exist: load the kvm_intel or kvm_amd module, or turn on virtualisation in the firmware (or nesting in the outer hypervisor); `vmm doctor` says more"
    )]
    NoKvm,
    /// `/dev/kvm` is there, but not for us.
    #[error(
        "no permission on /dev/kvm: {}; `vmm doctor` says more",
        remedy::of_permission()
    )]
    NoPermission,
    /// Opening `/dev/kvm` failed otherwise.
    #[error("cannot open /dev/kvm: {source}; {}", remedy::of_errno(source.errno()))]
    OpenKvm {
        /// What the system said.
        source: kvm_ioctls::Error,
    },
    /// `/dev/kvm` is no such device.
    #[error("/dev/kvm is not KVM's device: it has no API version; `vmm doctor` says more")]
    NotKvm,
    /// `/dev/kvm` is something else than the KVM that we know.
    #[error("/dev/kvm has API version {version}, not {API_VERSION}; `vmm doctor` says more")]
    ApiVersion {
        /// What it says.
        version: i32,
    },
    /// A vCPU count that cannot be.
    #[error("--vcpus {asked}: must be from 1 to {most} on this host")]
    Vcpus {
        /// What was asked for.
        asked: u64,
        /// The most that KVM gives.
        most: u64,
    },
    /// KVM gives guests no virtual machines of their own.
    #[error(
        "--nested: this host's KVM offers guests neither VMX nor SVM; load kvm_intel or kvm_amd with nested=1"
    )]
    NotNested,
    /// Memory.
    #[error(transparent)]
    Memory(#[from] CreateMemoryError),
    /// Kernel.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A KVM call.
    #[error("KVM refused {what}: {source}; {}", remedy::of_errno(source.errno()))]
    Kvm {
        /// What was tried.
        what: &'static str,
        /// What it said.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// Threads, eventfds, signals.
    #[error("cannot set up {what}: {source}{}", mended(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Asked to start twice.
    #[error("the machine has been started already")]
    AlreadyStarted,
}

pub(super) fn kvm_refused(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> BuildError {
    move |source| BuildError::Kvm { what, source }
}

pub(super) fn system_refused(what: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::System { what, source }
}

/// The host's KVM.
///
/// # Errors
/// [`BuildError`], where there is none, or not for us.
pub fn open_kvm() -> Result<Kvm, BuildError> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENXIO | libc::ENODEV => BuildError::NoKvm,
        libc::EACCES | libc::EPERM => BuildError::NoPermission,
        _ => BuildError::OpenKvm { source: error },
    })?;
    match kvm.get_api_version() {
        API_VERSION => Ok(kvm),
        ..0 => Err(BuildError::NotKvm),
        version => Err(BuildError::ApiVersion { version }),
    }
}

/// What mends an error of the system that has nothing to do with KVM.
fn mended(error: &io::Error) -> String {
    let errno = error.raw_os_error();
    errno.map_or_else(String::new, |errno| {
        format!("; {}", remedy::of_errno(errno))
    })
}

/// What its vCPUs are told of themselves.
pub(super) fn cpu_model(config: &MachineConfig, vcpus: u16, kvm: &Kvm) -> CpuModel {
    CpuModel {
        vcpus: vcpus.into(),
        tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer),
        nested: config.nested,
    }
}

pub(super) fn has_sync_registers(kvm: &Kvm) -> bool {
    let wanted = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS;
    let kinds = kvm.check_extension_raw(KVM_CAP_SYNC_REGS.into());
    kinds.cast_unsigned() & wanted == wanted
}

/// Where its vCPUs wait for readers.
pub(super) fn waiting_rooms(
    gate: &Arc<Gate>,
    events: &EventSender,
    targets: &Arc<KickTargets>,
    clocks: &Arc<VcpuClocks>,
) -> Arc<Waits> {
    let waiters = Waiters {
        gate: Arc::clone(gate),
        events: events.clone(),
        targets: Arc::clone(targets),
    };
    Arc::new(Waits::new(Arc::clone(clocks), Arc::new(waiters)))
}

/// Where its vCPUs' threads tell what they do, if they are to.
pub(super) fn host_events(
    config: &MachineConfig,
    vcpus: u16,
    time: &Arc<HeldTime>,
) -> Option<Arc<HostEvents>> {
    let tells = config.host_events;
    tells.then(|| Arc::new(HostEvents::new(vcpus, Arc::clone(time))))
}

/// The most vCPUs that a machine can have: as many as KVM gives, and its tables have room for.
#[must_use]
pub fn most_vcpus(kvm: &Kvm) -> u64 {
    (kvm.get_max_vcpus() as u64).min(layout::VCPUS_MAX)
}

pub(super) fn check_vcpus(asked: u64, kvm: &Kvm) -> Result<u16, BuildError> {
    let most = most_vcpus(kvm);
    match u16::try_from(asked) {
        Ok(count) if count > 0 && asked <= most => Ok(count),
        _ => Err(BuildError::Vcpus { asked, most }),
    }
}

/// What KVM supports, which must include what was asked for.
pub(super) fn check_cpuid(config: &MachineConfig, kvm: &Kvm) -> Result<CpuId, BuildError> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(kvm_refused("its supported CPUID"))?;
    if config.nested && !vcpu::has_virtualisation(&cpuid) {
        return Err(BuildError::NotNested);
    }
    if config.nested && !kvm.check_extension(Cap::NestedState) {
        let missing = kvm_ioctls::Error::new(libc::ENOTSUP);
        let what = "to say when a guest of the guest executes (KVM_CAP_NESTED_STATE)";
        return Err(kvm_refused(what)(missing));
    }
    Ok(cpuid)
}

/// Asks for vCPUs without performance counters. Older KVMs cannot; there CPUID alone says that there are none.
pub(super) fn leave_out_counters(kvm: &Kvm, vm: &VmFd) {
    let supported = kvm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into());
    if supported.cast_unsigned() & KVM_PMU_CAP_DISABLE == 0 {
        return;
    }
    let mut without = kvm_enable_cap {
        cap: KVM_CAP_PMU_CAPABILITY,
        ..kvm_enable_cap::default()
    };
    without.args = [KVM_PMU_CAP_DISABLE.into(), 0, 0, 0];
    if let Err(error) = vm.enable_cap(&without) {
        log::debug!("KVM keeps its performance counters: {error}");
    }
}

pub(super) fn create_devices(vm: &VmFd, console: ConsoleQueue) -> Result<Arc<Ports>, BuildError> {
    let tss = usize::try_from(layout::KVM_TSS.0).unwrap_or_default();
    vm.set_identity_map_address(layout::KVM_IDENTITY_MAP.0)
        .map_err(kvm_refused("the identity map address"))?;
    vm.set_tss_address(tss)
        .map_err(kvm_refused("the TSS address"))?;
    vm.create_irq_chip()
        .map_err(kvm_refused("the in-kernel interrupt controllers"))?;
    let pit = kvm_pit_config {
        flags: kvm_bindings::KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    vm.create_pit2(pit)
        .map_err(kvm_refused("the in-kernel timer (PIT)"))?;
    let irq = EventFd::new(EFD_NONBLOCK).map_err(system_refused("the serial interrupt"))?;
    let irq = Arc::new(irq);
    vm.register_irqfd(&irq, layout::SERIAL_IRQ)
        .map_err(kvm_refused("the serial interrupt"))?;
    Ok(Arc::new(Ports::new(
        SerialPort::new(irq, console.clone()),
        console,
    )))
}

/// So many vCPUs that begin at `entry`, and the frequency of their counters.
///
/// # Errors
/// [`BuildError`] where KVM refuses.
pub(super) fn create_vcpus(
    vm: &VmFd,
    vcpus: u16,
    entry: Gpa,
    around: &Surroundings,
) -> Result<(Vec<ReadyVcpu>, u32), BuildError> {
    let mut ready = Vec::new();
    let mut tsc_khz = 0;
    for number in 0..vcpus {
        let fd = vm
            .create_vcpu(number.into())
            .map_err(kvm_refused("a vCPU"))?;
        if number == 0 {
            tsc_khz = fd.get_tsc_khz().map_err(kvm_refused("the TSC frequency"))?;
        }
        let vcpu = ReadyVcpu::prepare(fd, number, entry, around);
        ready.push(vcpu.map_err(kvm_refused("the initial vCPU state"))?);
    }
    Ok((ready, tsc_khz))
}
