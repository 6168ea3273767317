//! vCPUs: one thread each, and the handle by which it is controlled.

mod brief;
pub mod cpu_time;
mod cpuid;
mod debug;
mod detours;
mod event;
#[cfg(test)]
pub(crate) mod fake;
mod gate;
mod guest_time;
mod handle;
mod host_log;
#[cfg(test)]
mod interleavings;
mod kick;
mod mailbox;
mod msr;
mod registers;
mod sync;
mod thread;

use std::sync::Arc;

use kvm_bindings::{CpuId, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use terms::addr::{Gpa, Gva};

pub use detours::Detours;
pub use event::{VcpuEvent, VcpuEventKind, VcpuEvents};
pub use handle::{AskVcpuError, VcpuHandle};
pub use kick::install_handler;
pub use mailbox::{Reply, Request, VcpuState};
pub use registers::FullRegisters;

pub(crate) use cpuid::{CpuModel, has_gigabyte_pages, has_virtualisation};
pub(crate) use event::{EventSender, Waiters, events};
pub(crate) use gate::Gate;
pub(crate) use kick::KickTargets;

use crate::devices::Ports;
use crate::loader::entry_state;
use crate::memory::Memory;
use mailbox::Shared;
use thread::Vcpu;
use tracer::clock::VcpuClocks;
use tracer::host_events::HostEvents;
use tracer::waits::Waits;

const MSR_MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const DELIVER_EXTINT: u8 = 7;
const DELIVER_NMI: u8 = 4;

/// What every vCPU of a machine shares.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) ports: Arc<Ports>,
    pub(crate) detours: Arc<Detours>,
    pub(crate) events: EventSender,
    pub(crate) gate: Arc<Gate>,
    pub(crate) clocks: Arc<VcpuClocks>,
    /// The threads of all vCPUs that run.
    pub(crate) targets: Arc<KickTargets>,
    /// Where vCPUs wait for readers.
    pub(crate) waits: Arc<Waits>,
    pub(crate) memory: Memory,
    pub(crate) cpuid: CpuId,
    pub(crate) model: CpuModel,
    /// KVM leaves the registers in the shared page at each exit.
    pub(crate) sync_registers: bool,
    /// Where vCPU threads tell when they enter the guest and when they are back.
    pub(crate) host_events: Option<Arc<HostEvents>>,
}

/// A vCPU that has been set up and not started.
#[derive(Debug)]
pub(crate) struct ReadyVcpu {
    number: u16,
    vcpu: Vcpu,
    shared: Arc<Shared>,
}

impl ReadyVcpu {
    /// Sets up `fd` as vCPU `number`. The boot vCPU will enter the kernel at `entry`; the others
    /// wait for INIT and SIPI.
    pub(crate) fn prepare(
        fd: VcpuFd,
        number: u16,
        entry: Gpa,
        around: &Surroundings,
    ) -> Result<Self, kvm_ioctls::Error> {
        let mut cpuid = around.cpuid.clone();
        cpuid::fit(&mut cpuid, number.into(), around.model);
        fd.set_cpuid2(&cpuid)?;
        if number == 0 {
            set_boot_state(&fd, entry)?;
        }
        let shared = Arc::new(Shared::new(Arc::clone(&around.gate)));
        let vcpu = Vcpu::new(number, fd, Arc::clone(&shared), around)?;
        Ok(Self {
            number,
            vcpu,
            shared,
        })
    }

    /// Arms one breakpoint, or none.
    pub(crate) fn set_breakpoint(&mut self, at: Option<Gva>) -> Result<(), kvm_ioctls::Error> {
        self.vcpu.set_breakpoint(at)
    }

    pub(crate) fn start(self) -> std::io::Result<VcpuHandle> {
        VcpuHandle::start(self.vcpu, self.number, self.shared)
    }
}

fn set_boot_state(fd: &VcpuFd, entry: Gpa) -> Result<(), kvm_ioctls::Error> {
    fd.set_sregs(&entry_state::system_registers(fd.get_sregs()?))?;
    fd.set_regs(&entry_state::registers(entry))?;
    fd.set_fpu(&entry_state::fpu())?;
    let fast_strings = kvm_msr_entry {
        index: MSR_MISC_ENABLE,
        data: FAST_STRINGS,
        ..Default::default()
    };
    let msrs = kvm_bindings::Msrs::from_entries(&[fast_strings])
        .map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
    // Some KVMs do not have this MSR; nothing depends on it.
    if fd.set_msrs(&msrs).is_err() {
        log::debug!("IA32_MISC_ENABLE cannot be set");
    }
    connect_interrupt_pins(fd)
}

/// The PIC's interrupts come in at LINT0, NMIs at LINT1, as firmware leaves them.
fn connect_interrupt_pins(fd: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut lapic = fd.get_lapic()?;
    for (register, delivery) in [(LVT_LINT0, DELIVER_EXTINT), (LVT_LINT1, DELIVER_NMI)] {
        // Bits 10:8 of the entry, so bits 2:0 of its second byte; bit 16 (masked) of its third.
        if let Some(byte) = lapic.regs.get_mut(register + 1) {
            *byte = (byte.cast_unsigned() & !7 | delivery).cast_signed();
        }
        if let Some(byte) = lapic.regs.get_mut(register + 2) {
            *byte &= !1;
        }
    }
    fd.set_lapic(&lapic)
}
