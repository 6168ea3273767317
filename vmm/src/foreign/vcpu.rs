//! A vCPU of another VMM: its thread, how it is parked, and calls on it.

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_cpuid_entry2, kvm_device_attr, kvm_msr_entry,
};
use vm_memory::ByteValued;

use super::error::ForeignError;
use super::held::{HeldThread, Stands, Stop};
use super::process::{Process, VcpuDescriptor, is_vcpu};
use super::remote;
use super::run_page::{Prepared, RunPage};
use super::shapes::{CPUID_ENTRIES, Cpuid, General, OneMsr, System, TscOffset};
use super::vcpu_file::VcpuFile;
use super::way_back::WayBack;
use crate::vcpu::FullRegisters;

/// Requests of KVM (linux/kvm.h), as the ioctl system call takes them.
pub mod request {
    use kvm_bindings::{
        KVMIO, kvm_cpuid2, kvm_device_attr, kvm_msrs, kvm_regs, kvm_sregs,
        kvm_userspace_memory_region,
    };
    use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

    use crate::foreign::shapes::ClearLog;

    const fn kvm(direction: u32, number: u32, bytes: usize) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "structures are small")]
        let bytes = bytes as u32;
        ioctl_expr(direction, KVMIO, number, bytes)
    }

    pub const RUN: u64 = kvm(_IOC_NONE, 0x80, 0);
    pub const GET_REGS: u64 = kvm(_IOC_READ, 0x81, size_of::<kvm_regs>());
    pub const GET_SREGS: u64 = kvm(_IOC_READ, 0x83, size_of::<kvm_sregs>());
    pub const GET_MSRS: u64 = kvm(_IOC_READ | _IOC_WRITE, 0x88, size_of::<kvm_msrs>());
    pub const GET_CPUID2: u64 = kvm(_IOC_READ | _IOC_WRITE, 0x91, size_of::<kvm_cpuid2>());
    pub const GET_TSC_KHZ: u64 = kvm(_IOC_NONE, 0xa3, 0);
    pub const GET_DEVICE_ATTR: u64 = kvm(_IOC_WRITE, 0xe2, size_of::<kvm_device_attr>());
    pub const SET_MEMORY: u64 = kvm(_IOC_WRITE, 0x46, size_of::<kvm_userspace_memory_region>());
    pub const CLEAR_LOG: u64 = kvm(_IOC_READ | _IOC_WRITE, 0xc0, size_of::<ClearLog>());
}

/// What KVM_RUN returns where nothing is left to be done: a signal came, or the vCPU waits to be started.
const INTERRUPTED: [i64; 2] = [-(libc::EINTR as i64), -(libc::EAGAIN as i64)];
/// How far below its stack a thread's memory is used for what a call takes: its own code may use 128 bytes there.
const BELOW_STACK: u64 = 16 << 10;

/// A vCPU.
#[derive(Debug)]
pub struct ForeignVcpu {
    file: VcpuFile,
    thread: Cell<Option<Executor>>,
    page: RunPage,
    /// How calls are made in the name of its VMM.
    way: WayBack,
}

/// The thread that executes a vCPU.
#[derive(Debug, Clone, Copy)]
struct Executor {
    thread: i32,
    /// Whether a filter decides which system calls it may make.
    is_filtered: bool,
}

/// A vCPU that is on its way out of the guest, and stays out, with all that it was doing complete, until this is dropped.
#[derive(Debug)]
pub struct Parked {
    vcpu: Arc<ForeignVcpu>,
    held: HeldThread,
    prepared: Prepared,
    stage: Stage,
}

/// How far a vCPU is out of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its thread was asked to stop.
    Asked,
    /// Its thread stands somewhere else than where the guest is left.
    Outside,
    /// Its thread is on its way to where the guest is entered.
    Driven,
    /// It is in that call, and leaves at once; what the VMM had said of that.
    Leaving(u8),
    /// It has left, and its thread is to come to a stop in which our death does no harm.
    Settling,
    /// It is out of the guest, and nothing of what it did is half done.
    Parked,
}

impl ForeignVcpu {
    /// The vCPU with this descriptor. Which thread executes it is to be found out.
    ///
    /// # Errors
    /// [`ForeignError::Descriptor`], or [`ForeignError::Window`] when its page cannot be mapped.
    pub fn open(
        process: &Process,
        descriptor: VcpuDescriptor,
        way: WayBack,
    ) -> Result<Self, ForeignError> {
        let what = "the page that a vCPU shares with KVM cannot be mapped";
        let (number, pid) = (descriptor.vcpu, process.pid());
        let ours = process.descriptor(descriptor.fd)?;
        // It may have closed it since it was listed, and opened something else: nobody writes to that.
        let link = format!("/proc/self/fd/{}", ours.as_raw_fd());
        if !is_vcpu(Path::new(&link), number) {
            let vcpu = number;
            return Err(ForeignError::Closed { pid, vcpu });
        }
        let page = RunPage::map(ours);
        let page = page.map_err(|source| ForeignError::Window { what, source })?;
        Ok(Self {
            file: VcpuFile::of(pid, descriptor, page.descriptor()),
            thread: Cell::default(),
            page,
            way,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.file.number()
    }

    /// Its descriptor's number in the VMM; none once that is closed, which may be something else by now.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        self.file.descriptor()
    }

    /// Whether its VMM was seen to have closed it. A thread that executes it goes on until it leaves the guest, and no thread enters
    /// it after that.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.file.is_closed()
    }

    /// Whether its VMM has closed it, and nobody is in it any more: nothing is to be held for its sake.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.file.is_over()
    }

    /// It was seen to be over ([`closed`](super::closed)).
    pub fn is_executed_by_nobody(&self) {
        self.file.is_executed_by_nobody();
        self.lose_thread();
    }

    /// Sees by which of these descriptors its VMM has it now.
    pub fn look_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) {
        let is_back = self.file.look_among(process, descriptors);
        // Whoever executes it now need not be who did.
        if is_back {
            self.lose_thread();
        }
    }

    /// Whether one of these descriptors of its VMM is its own.
    #[must_use]
    pub fn is_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) -> bool {
        self.file.found_among(process, descriptors).is_some()
    }

    /// Whether this descriptor of a thread is its own; none where the system does not say.
    #[must_use]
    pub fn is_descriptor_of(&self, thread: i32, fd: i32) -> Option<bool> {
        self.file.is_descriptor_of(thread, fd)
    }

    /// The thread that executes it, if that is known.
    #[must_use]
    pub fn thread(&self) -> Option<i32> {
        self.thread.get().map(|executor| executor.thread)
    }

    /// This thread of `process` was seen to execute it.
    pub fn set_thread(&self, process: &Process, thread: i32) {
        let is_filtered = process.is_filtered(thread);
        self.thread.set(Some(Executor {
            thread,
            is_filtered,
        }));
    }

    /// The thread that executed it has ended.
    pub fn lose_thread(&self) {
        self.thread.set(None);
    }

    /// Whether the vCPU left the guest last with nothing half done, or has left it for good.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.is_closed() || self.page.is_consistent()
    }

    /// Takes its thread, which runs on until [`Parked::interrupt`]. None when it is not known which thread executes it.
    ///
    /// # Errors
    /// As of [`HeldThread::seize`].
    pub fn seize(self: &Arc<Self>, deadline: Instant) -> Option<Result<Parked, ForeignError>> {
        let Executor {
            thread,
            is_filtered,
        } = self.thread.get()?;
        let prepared = self.page.prepare();
        Some(match HeldThread::seize(thread, is_filtered, deadline) {
            Ok(held) => Ok(Parked {
                vcpu: Arc::clone(self),
                held,
                prepared,
                stage: Stage::Asked,
            }),
            Err(error) => {
                self.page.restore(prepared);
                Err(error)
            }
        })
    }

    /// It is out of the guest, and no thread can enter it: `held`, some thread of the VMM, stands in for the one that
    /// executes it.
    #[must_use]
    pub fn stand_in(self: &Arc<Self>, held: HeldThread) -> Parked {
        Parked {
            vcpu: Arc::clone(self),
            prepared: self.page.prepare(),
            held,
            stage: Stage::Parked,
        }
    }
}

impl Parked {
    /// How far it is out of the guest.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Asks it to leave the guest; [`park`](super::park::park) waits for that.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn interrupt(&self) -> Result<(), ForeignError> {
        self.held.interrupt()
    }

    /// Sees whether the thread has come further, and lets it go on.
    ///
    /// # Errors
    /// [`ForeignError::Ended`] and others of its thread.
    pub fn step(&mut self) -> Result<(), ForeignError> {
        let Some(stop) = self.held.poll()? else {
            return Ok(());
        };
        match (self.stage, stop) {
            (Stage::Asked, Stop::Event) => self.stands(),
            (Stage::Settling, Stop::Event) => {
                self.stage = Stage::Parked;
                Ok(())
            }
            (Stage::Asked | Stage::Settling, Stop::Signal(_) | Stop::SystemCall) => {
                self.held.resume(stop)
            }
            (Stage::Driven, Stop::SystemCall) => self.at_system_call(),
            (Stage::Leaving(before), Stop::SystemCall) => self.has_left(before),
            (Stage::Driven | Stage::Leaving(_), Stop::Signal(_) | Stop::Event) => {
                self.held.to_system_call(stop)
            }
            (Stage::Outside | Stage::Parked, _) => Ok(()),
        }
    }

    /// The thread stands where it was met.
    fn stands(&mut self) -> Result<(), ForeignError> {
        let registers = self.held.registers()?;
        // One that is closed has left the guest, if it was there, and cannot come back.
        let is_out = self.vcpu.is_closed()
            || self.is_running(&registers) && INTERRUPTED.contains(&registers.rax.cast_signed());
        self.stage = match is_out {
            true => Stage::Parked,
            false => Stage::Outside,
        };
        Ok(())
    }

    /// Whether nothing of what the vCPU did is half done, wherever its thread is.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.vcpu.is_consistent()
    }

    /// Whether its thread is in a system call.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let registers = self.held.registers();
        registers.is_ok_and(|registers| registers.orig_rax.cast_signed() >= 0)
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.held.number()
    }

    /// Whether it is this vCPU.
    #[must_use]
    pub fn is(&self, vcpu: &Arc<ForeignVcpu>) -> bool {
        Arc::ptr_eq(&self.vcpu, vcpu)
    }

    /// Its thread, which stands in for those that execute vCPUs, does so for this one from now on.
    pub fn turn_to(&mut self, vcpu: &Arc<ForeignVcpu>) {
        if self.is(vcpu) {
            return;
        }
        self.vcpu.page.restore(self.prepared);
        self.prepared = vcpu.page.prepare();
        self.vcpu = Arc::clone(vcpu);
    }

    /// It may stay where it is.
    pub const fn stay(&mut self) {
        self.stage = Stage::Parked;
    }

    /// Has the thread bring to an end what it does for its vCPU: at its next entry into the guest it leaves at once, with
    /// nothing half done.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn drive(&mut self) -> Result<(), ForeignError> {
        self.stage = Stage::Driven;
        self.held.to_system_call(Stop::Event)
    }

    fn at_system_call(&mut self) -> Result<(), ForeignError> {
        const ENTERS: i64 = -(libc::ENOSYS as i64);
        let registers = self.held.registers()?;
        if self.is_running(&registers) && registers.rax.cast_signed() == ENTERS {
            // Only here, after the VMM's own look at it: it would skip the entry, or take it out again.
            self.stage = Stage::Leaving(self.vcpu.page.exit_immediately(1));
        }
        self.held.to_system_call(Stop::Event)
    }

    fn has_left(&mut self, before: u8) -> Result<(), ForeignError> {
        self.vcpu.page.exit_immediately(before);
        let returned = self.held.registers()?.rax.cast_signed();
        if INTERRUPTED.contains(&returned) {
            self.stage = Stage::Settling;
            return self.held.to_event();
        }
        self.drive()
    }

    /// Whether the thread is in the call that executes the vCPU.
    fn is_running(&self, registers: &libc::user_regs_struct) -> bool {
        let call = [registers.orig_rax, registers.rdi, registers.rsi];
        is_run_of(&self.vcpu, call)
    }

    /// Its registers, when it left the guest.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others, where KVM has to be asked.
    pub fn registers(&mut self, deadline: Instant) -> Result<FullRegisters, ForeignError> {
        if !self.vcpu.page.is_stale() {
            return Ok(self.vcpu.page.registers());
        }
        match self.descriptor() {
            // Nothing of it executes any more.
            Err(ForeignError::Closed { .. }) => return Ok(FullRegisters::default()),
            descriptor => descriptor?,
        };
        // It did not leave the guest for us: the VMM had stopped it already.
        let general = self.ask(
            "KVM_GET_REGS",
            request::GET_REGS,
            General::default(),
            deadline,
        )?;
        let system = self.ask(
            "KVM_GET_SREGS",
            request::GET_SREGS,
            System::default(),
            deadline,
        )?;
        Ok(FullRegisters {
            is_nested: self.vcpu.page.is_nested(),
            general: general.0,
            system: system.0,
            kernel_gs_base: None,
        })
    }

    /// A model-specific register.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn msr(&mut self, index: u32, deadline: Instant) -> Result<u64, ForeignError> {
        let asked = OneMsr {
            count: 1,
            padding: 0,
            entry: kvm_msr_entry {
                index,
                ..kvm_msr_entry::default()
            },
        };
        let told = self.ask("KVM_GET_MSRS", request::GET_MSRS, asked, deadline)?;
        Ok(told.entry.data)
    }

    /// How far the vCPU's counter is ahead of the host's.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn tsc_offset(&mut self, deadline: Instant) -> Result<u64, ForeignError> {
        let value = std::mem::offset_of!(TscOffset, offset) as u64;
        let asked = TscOffset {
            attribute: kvm_device_attr {
                flags: 0,
                group: KVM_VCPU_TSC_CTRL,
                attr: KVM_VCPU_TSC_OFFSET.into(),
                addr: self.scratch()?.wrapping_add(value),
            },
            offset: 0,
        };
        let call = "KVM_GET_DEVICE_ATTR";
        let told = self.ask(call, request::GET_DEVICE_ATTR, asked, deadline)?;
        Ok(told.offset)
    }

    /// What the guest sees of its processor.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn cpuid(&mut self, deadline: Instant) -> Result<Vec<kvm_cpuid_entry2>, ForeignError> {
        let asked = Box::new(Cpuid {
            count: u32::try_from(CPUID_ENTRIES).unwrap_or_default(),
            padding: 0,
            entries: [kvm_cpuid_entry2::default(); CPUID_ENTRIES],
        });
        let told = self.ask("KVM_GET_CPUID2", request::GET_CPUID2, *asked, deadline)?;
        let count = usize::try_from(told.count).unwrap_or(usize::MAX);
        Ok(told.entries.into_iter().take(count).collect())
    }

    /// Ticks of the vCPU's counter in a millisecond.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn tsc_khz(&mut self, deadline: Instant) -> Result<u32, ForeignError> {
        let (call, fd) = ("KVM_GET_TSC_KHZ", self.descriptor()?);
        let khz = self.ioctl(call, fd, request::GET_TSC_KHZ, 0, deadline)?;
        Ok(u32::try_from(khz).unwrap_or(u32::MAX))
    }

    /// Its descriptor in the VMM, which is its own: what came to have that number since is asked nothing.
    ///
    /// # Errors
    /// [`ForeignError::Closed`].
    fn descriptor(&self) -> Result<i32, ForeignError> {
        let vcpu = &self.vcpu;
        let (pid, number) = (vcpu.file.pid(), vcpu.number());
        let process = Process::open(pid)?;
        if !vcpu.file.is_known_one(&process) {
            // Its VMM may have it by another one.
            vcpu.look_among(&process, &process.all_vcpu_descriptors()?);
        }
        vcpu.descriptor()
            .ok_or(ForeignError::Closed { pid, vcpu: number })
    }

    /// Has KVM fill in `asked`, by `request` on the vCPU.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn ask<T: ByteValued>(
        &mut self,
        call: &'static str,
        request: u64,
        mut asked: T,
        deadline: Instant,
    ) -> Result<T, ForeignError> {
        let (at, fd) = (self.scratch()?, self.descriptor()?);
        self.with_scratch(asked.as_mut_slice(), |on| {
            on.ioctl(call, fd, request, at, deadline)
        })?;
        Ok(asked)
    }

    /// A call of ioctl in the thread's name.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn ioctl(
        &mut self,
        call: &'static str,
        fd: i32,
        request: u64,
        argument: u64,
        deadline: Instant,
    ) -> Result<u64, ForeignError> {
        let fd = u64::from(fd.cast_unsigned());
        self.call(
            call,
            libc::SYS_ioctl,
            [fd, request, argument, 0, 0, 0],
            deadline,
        )
    }

    /// A system call in the thread's name.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn call(
        &mut self,
        call: &'static str,
        number: i64,
        arguments: [u64; 6],
        deadline: Instant,
    ) -> Result<u64, ForeignError> {
        const ERRORS: i64 = -4095;
        let (pid, way, below) = (self.vcpu.file.pid(), self.vcpu.way, self.scratch()?);
        if !way.is_there(pid) {
            return Err(ForeignError::NoWayBack { pid });
        }
        let result = self.held.call(way, below, number, arguments, deadline)?;
        match result.cast_signed() {
            error @ ERRORS..0 => Err(ForeignError::Call {
                call,
                source: io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or(i32::MAX)),
            }),
            _ => Ok(result),
        }
    }

    /// Where in the thread's memory there is room for what a call takes.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn scratch(&self) -> Result<u64, ForeignError> {
        let stack = self.held.registers()?.rsp;
        Ok(stack.wrapping_sub(BELOW_STACK) & !63)
    }

    /// Does `what` with `bytes` at [`Self::scratch`], and takes them from there again. The memory there is as it was
    /// afterwards.
    ///
    /// # Errors
    /// Those of `what`, or [`ForeignError::Access`].
    pub fn with_scratch<T>(
        &mut self,
        bytes: &mut [u8],
        what: impl FnOnce(&mut Self) -> Result<T, ForeignError>,
    ) -> Result<T, ForeignError> {
        let (at, pid) = (self.scratch()?, self.vcpu.file.pid());
        let mut before = vec![0; bytes.len()];
        remote::read(pid, at, &mut before)?;
        remote::write(pid, at, bytes)?;
        let done = what(self);
        let read = remote::read(pid, at, bytes);
        remote::write(pid, at, &before)?;
        read?;
        done
    }
}

/// Whether a system call executes this vCPU.
#[must_use]
pub fn is_run_of(vcpu: &ForeignVcpu, [number, fd, request]: [u64; 3]) -> bool {
    let is_its = |own: i32| fd == u64::from(own.cast_unsigned());
    number == libc::SYS_ioctl.cast_unsigned()
        && vcpu.descriptor().is_some_and(is_its)
        && request == request::RUN
}

impl Stands for Parked {
    fn stands(&mut self) -> bool {
        self.held.stands()
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Stage::Leaving(before) = self.stage {
            self.vcpu.page.exit_immediately(before);
        }
        self.vcpu.page.restore(self.prepared);
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// A vCPU of a process that has no descriptor of it: nobody executes it, and its page is of zeros.
    pub fn vcpu_of(process: &Process, vcpu: u16) -> ForeignVcpu {
        let file: OwnedFd = memfd_create("run", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 16).unwrap();
        let page = RunPage::map(file).unwrap();
        let descriptor = VcpuDescriptor { vcpu, fd: -1 };
        ForeignVcpu {
            file: VcpuFile::of(process.pid(), descriptor, page.descriptor()),
            thread: Cell::default(),
            page,
            way: WayBack::find(process).unwrap(),
        }
    }

    /// Whether KVM is to leave its registers in its page.
    pub fn is_prepared(vcpu: &ForeignVcpu) -> bool {
        vcpu.page.is_stale()
    }
}
