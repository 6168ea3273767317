//! A tiny VM: one vCPU in 64-bit mode that runs a few bytes of code until they report a value.
//!
//! It has 64 KiB of memory, no interrupt controller and an empty IDT. So every fault ends it at
//! once, and the first exit is the answer. Code reports by a store through rbx, to an address that
//! is no memory: that leaves the guest from every privilege level.
// UNSAFETY: the VM's memory is handed to KVM.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP,
    KVM_MAX_CPUID_ENTRIES, Msrs, kvm_guest_debug, kvm_msr_entry, kvm_regs, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::counter;

use super::{Ending, Outcome, Ring, Trial, TrialError, Watch};

const MSR_TSC: u32 = 0x10;
const MSR_TSC_AUX: u32 = 0xc000_0103;

const MEMORY_BYTES: usize = 0x1_0000;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
const GDT: u64 = 0x4000;
const TSS: u64 = 0x5000;
pub(super) const CODE: u64 = 0x6000;
/// A word that code may be told something by.
pub(super) const WORD: u64 = 0x8000;
const STACK_TOP: u64 = 0xf000;
/// Mapped, but no memory.
const REPORT: u64 = 0x10_0000;

/// Present, writable, user-accessible.
const TABLE_ENTRY: u64 = 0b111;
/// The same, as a page of 2 MiB.
const LARGE_PAGE: u64 = TABLE_ENTRY | 1 << 7;

const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
const USER_DATA: u16 = 0x18 | 3;
const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;
/// In the order of the selectors above; the task segment's base is [`TSS`].
const GDT_ENTRIES: [u64; 7] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
    0x0000_8b00_0000_0067 | TSS << 16,
    0,
];

/// Protection, numeric errors, write protection, paging.
const CR0: u64 = 1 | 1 << 5 | 1 << 16 | 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LONG_MODE: u64 = 1 << 8 | 1 << 10;
/// Breakpoint 0 on execution.
const DR7: u64 = 1 << 10 | 0b11;

/// The VM.
#[derive(Debug)]
pub(super) struct TrialVm {
    vcpu: VcpuFd,
    /// Last, because fields are dropped in order: KVM is done with it by then.
    memory: GuestMemoryMmap,
}

impl TrialVm {
    /// A VM in 64-bit mode, ready to run code.
    pub(super) fn create() -> Result<Self, TrialError> {
        let kvm = Kvm::new().map_err(TrialError::refused("to open /dev/kvm"))?;
        let vm = kvm
            .create_vm()
            .map_err(TrialError::refused("KVM_CREATE_VM"))?;
        // Intel wants it; elsewhere it does nothing.
        let _ = vm.set_tss_address(0xfffb_d000);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)])
            .map_err(TrialError::system)?;
        give_memory(&vm, &memory)?;
        fill_tables(&memory)?;
        let vcpu = vm
            .create_vcpu(0)
            .map_err(TrialError::refused("KVM_CREATE_VCPU"))?;
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(TrialError::refused("KVM_GET_SUPPORTED_CPUID"))?;
        vcpu.set_cpuid2(&cpuid)
            .map_err(TrialError::refused("KVM_SET_CPUID2"))?;
        Ok(Self { vcpu, memory })
    }

    /// Runs `trial` up to its first exit.
    pub(super) fn run(&mut self, trial: &Trial) -> Result<Outcome, TrialError> {
        self.write_code(trial.code)?;
        self.enter_long_mode(trial.ring)?;
        self.set_registers(trial.count)?;
        self.watch(trial.watch)?;
        if let Some(value) = trial.tsc_aux {
            self.set_msr(MSR_TSC_AUX, value)?;
        }
        if let Some(value) = trial.tsc {
            self.set_msr(MSR_TSC, value)?;
        }
        let unmoved = self.msr(MSR_TSC)?;
        if let Some(ticks) = trial.set_back {
            self.set_back(ticks)?;
        }
        self.vcpu
            .set_kvm_immediate_exit(u8::from(trial.immediate_exit));
        let before = self.msr(MSR_TSC)?;
        let ending = ending(self.vcpu.run());
        let after = self.msr(MSR_TSC)?;
        let tsc_khz = self
            .vcpu
            .get_tsc_khz()
            .map_err(TrialError::refused("KVM_GET_TSC_KHZ"))?;
        Ok(Outcome {
            ending,
            tsc_khz,
            tsc: (before, after),
            // The counter of a new VM is near zero: set back, it is a large number.
            is_set_back: trial
                .set_back
                .is_some_and(|ticks| unmoved.wrapping_sub(after) <= ticks),
        })
    }

    /// As [`Self::run`], while another thread does `meanwhile` with the memory, until it is told that the code has ended.
    pub(super) fn run_while<T: Send>(
        &mut self,
        trial: &Trial,
        meanwhile: impl FnOnce(&GuestMemoryMmap, &AtomicBool) -> T + Send,
    ) -> Result<(Outcome, T), TrialError> {
        let (memory, has_ended) = (self.memory.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meanwhile(&memory, &has_ended));
            let outcome = self.run(trial);
            has_ended.store(true, Ordering::Release);
            let done = other.join();
            let done = done.map_err(|_| TrialError::system("its other thread panicked"));
            Ok((outcome?, done?))
        })
    }

    /// Runs `trial` up to an exit, over and over from its beginning; says how long the guest was entered for each time.
    pub(super) fn time(
        &mut self,
        trial: &Trial,
        expected: &Ending,
        count: usize,
    ) -> Result<Vec<Duration>, TrialError> {
        self.write_code(trial.code)?;
        self.enter_long_mode(trial.ring)?;
        self.watch(trial.watch)?;
        let mut times = Vec::with_capacity(count);
        while times.len() < count {
            self.set_registers(trial.count)?;
            let start = Instant::now();
            let exit = self.vcpu.run();
            let took = start.elapsed();
            match ending(exit) {
                found if found == *expected => times.push(took),
                Ending::Interrupted => {}
                other => return Err(TrialError::Ended(other.to_string())),
            }
            if let Ending::PortWritten(_) = expected {
                self.complete()?;
            }
        }
        Ok(times)
    }

    /// Has KVM finish the instruction that left the guest, and execute none.
    fn complete(&mut self) -> Result<(), TrialError> {
        self.vcpu.set_kvm_immediate_exit(1);
        let ending = ending(self.vcpu.run());
        self.vcpu.set_kvm_immediate_exit(0);
        match ending {
            Ending::Interrupted => Ok(()),
            other => Err(TrialError::Ended(other.to_string())),
        }
    }

    fn write_code(&self, code: &[u8]) -> Result<(), TrialError> {
        let written = self.memory.write_slice(code, GuestAddress(CODE));
        written.map_err(TrialError::system)
    }

    fn enter_long_mode(&self, ring: Ring) -> Result<(), TrialError> {
        let mut sregs = self
            .vcpu
            .get_sregs()
            .map_err(TrialError::refused("KVM_GET_SREGS"))?;
        let (code, data) = match ring {
            Ring::Kernel => (KERNEL_CODE, KERNEL_DATA),
            Ring::User => (USER_CODE, USER_DATA),
        };
        sregs.cs = segment(code, 0xb, true);
        for register in [
            &mut sregs.ss,
            &mut sregs.ds,
            &mut sregs.es,
            &mut sregs.fs,
            &mut sregs.gs,
        ] {
            *register = segment(data, 0x3, false);
        }
        sregs.tr = kvm_segment {
            base: TSS,
            limit: 0x67,
            selector: TASK,
            type_: 0xb,
            present: 1,
            ..Default::default()
        };
        sregs.gdt.base = GDT;
        sregs.gdt.limit = 8 * 7 - 1;
        sregs.idt.base = 0;
        sregs.idt.limit = 0;
        sregs.cr0 = CR0;
        sregs.cr3 = PML4;
        sregs.cr4 = CR4_PAE;
        sregs.efer = EFER_LONG_MODE;
        self.vcpu
            .set_sregs(&sregs)
            .map_err(TrialError::refused("KVM_SET_SREGS"))
    }

    fn set_registers(&self, count: u64) -> Result<(), TrialError> {
        let registers = kvm_regs {
            rip: CODE,
            rsp: STACK_TOP,
            rbx: REPORT,
            rcx: count,
            rflags: 2,
            ..Default::default()
        };
        self.vcpu
            .set_regs(&registers)
            .map_err(TrialError::refused("KVM_SET_REGS"))
    }

    /// Sets the counter back by so many ticks.
    fn set_back(&self, ticks: u64) -> Result<(), TrialError> {
        let set = counter::set_back(&self.vcpu, ticks);
        set.map_err(TrialError::refused("to set the offset of a vCPU's TSC"))
    }

    fn watch(&self, watch: Watch) -> Result<(), TrialError> {
        let mut debug = kvm_guest_debug::default();
        match watch {
            Watch::Nothing => return Ok(()),
            Watch::SoftwareBreakpoint => debug.control = KVM_GUESTDBG_USE_SW_BP,
            Watch::SingleStep => debug.control = KVM_GUESTDBG_SINGLESTEP,
            Watch::HardwareBreakpoint(offset) => {
                debug.control = KVM_GUESTDBG_USE_HW_BP;
                // DR0 is the address, DR7 says what to do with it.
                debug.arch.debugreg = [CODE + offset, 0, 0, 0, 0, 0, 0, DR7];
            }
        }
        debug.control |= KVM_GUESTDBG_ENABLE;
        self.vcpu
            .set_guest_debug(&debug)
            .map_err(TrialError::refused("KVM_SET_GUEST_DEBUG"))
    }

    fn msr(&self, index: u32) -> Result<u64, TrialError> {
        let mut msrs = one_msr(index, 0)?;
        self.vcpu
            .get_msrs(&mut msrs)
            .map_err(TrialError::refused("KVM_GET_MSRS"))?;
        let entry = msrs.as_slice().first();
        entry
            .map(|entry| entry.data)
            .ok_or_else(|| TrialError::system("KVM returned no MSR"))
    }

    fn set_msr(&self, index: u32, value: u64) -> Result<(), TrialError> {
        let msrs = one_msr(index, value)?;
        let set = self
            .vcpu
            .set_msrs(&msrs)
            .map_err(TrialError::refused("KVM_SET_MSRS"))?;
        if set == 1 {
            return Ok(());
        }
        let source = kvm_ioctls::Error::new(libc::EINVAL);
        Err(TrialError::Kvm {
            step: "to set an MSR",
            source,
        })
    }
}

/// What `exit` means for the trial.
fn ending(exit: Result<VcpuExit<'_>, kvm_ioctls::Error>) -> Ending {
    match exit {
        Ok(VcpuExit::MmioWrite(REPORT, data)) => <[u8; 8]>::try_from(data).map_or_else(
            |_| Ending::Other(format!("a report of {} bytes", data.len())),
            |bytes| Ending::Reported(u64::from_le_bytes(bytes)),
        ),
        Ok(VcpuExit::Debug(debug)) => Ending::Watched(debug.pc.wrapping_sub(CODE)),
        Ok(VcpuExit::IoOut(port, _)) => Ending::PortWritten(port),
        Ok(VcpuExit::Intr) => Ending::Interrupted,
        Ok(VcpuExit::Shutdown) => Ending::Other("a fault".to_owned()),
        Ok(other) => Ending::Other(format!("KVM exit {other:?}")),
        Err(error) if error.errno() == libc::EINTR => Ending::Interrupted,
        Err(error) => Ending::Other(format!("KVM_RUN failed: {error}")),
    }
}

fn give_memory(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<(), TrialError> {
    let host = memory
        .get_host_address(GuestAddress(0))
        .map_err(TrialError::system)?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: host as u64,
    };
    // SAFETY: the mapping is MEMORY_BYTES long and outlives the VM: the vCPU holds the last
    // reference to the VM, and `TrialVm` drops the memory after it.
    unsafe { vm.set_user_memory_region(region) }
        .map_err(TrialError::refused("KVM_SET_USER_MEMORY_REGION"))
}

/// Page tables that map the first 2 MiB onto themselves, and the GDT.
fn fill_tables(memory: &GuestMemoryMmap) -> Result<(), TrialError> {
    let gdt = (GDT..).step_by(8).zip(GDT_ENTRIES);
    let tables = [
        (PML4, PDPT | TABLE_ENTRY),
        (PDPT, PD | TABLE_ENTRY),
        (PD, LARGE_PAGE),
    ];
    for (at, value) in tables.into_iter().chain(gdt) {
        memory
            .write_obj(value, GuestAddress(at))
            .map_err(TrialError::system)?;
    }
    Ok(())
}

/// The descriptor cache of a flat segment.
fn segment(selector: u16, type_: u8, long: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: if selector & 3 == 3 { 3 } else { 0 },
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        ..Default::default()
    }
}

fn one_msr(index: u32, data: u64) -> Result<Msrs, TrialError> {
    let entry = kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    Msrs::from_entries(&[entry]).map_err(|error| TrialError::System(format!("{error:?}")))
}
