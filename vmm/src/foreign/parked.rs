//! A vCPU of another VMM that is out of its guest, or on its way there: how it is parked, and calls in the name of its thread.
//! What KVM can be asked by them is in [`questions`](super::questions).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use vm_memory::ByteValued;

use super::error::ForeignError;
use super::held::{HeldThread, Stands, Stop};
use super::remote;
use super::run_page::Prepared;
use super::vcpu::{Executor, ForeignVcpu, is_run_of};

/// What KVM_RUN returns where nothing is left to be done: a signal came, or the vCPU waits to be started.
const INTERRUPTED: [i64; 2] = [-(libc::EINTR as i64), -(libc::EAGAIN as i64)];
/// How far below its stack a thread's memory is used for what a call takes: its own code may use 128 bytes there.
const BELOW_STACK: u64 = 16 << 10;

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

impl Parked {
    /// Takes its thread, which runs on until [`Parked::interrupt`]. None when it is not known which thread executes it.
    ///
    /// # Errors
    /// As of [`HeldThread::seize`].
    pub fn seize(vcpu: &Arc<ForeignVcpu>, deadline: Instant) -> Option<Result<Self, ForeignError>> {
        let Executor {
            thread,
            is_filtered,
        } = vcpu.executor()?;
        let prepared = vcpu.page().prepare();
        Some(match HeldThread::seize(thread, is_filtered, deadline) {
            Ok(held) => Ok(Self {
                vcpu: Arc::clone(vcpu),
                held,
                prepared,
                stage: Stage::Asked,
            }),
            Err(error) => {
                vcpu.page().restore(prepared);
                Err(error)
            }
        })
    }

    /// It is out of the guest, and no thread can enter it: `held`, some thread of the VMM, stands in for the one that
    /// executes it.
    #[must_use]
    pub fn stand_in(vcpu: &Arc<ForeignVcpu>, held: HeldThread) -> Self {
        Self {
            vcpu: Arc::clone(vcpu),
            prepared: vcpu.page().prepare(),
            held,
            stage: Stage::Parked,
        }
    }

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
        self.vcpu.page().restore(self.prepared);
        self.prepared = vcpu.page().prepare();
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
            self.stage = Stage::Leaving(self.vcpu.page().exit_immediately(1));
        }
        self.held.to_system_call(Stop::Event)
    }

    fn has_left(&mut self, before: u8) -> Result<(), ForeignError> {
        self.vcpu.page().exit_immediately(before);
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

    /// The vCPU.
    #[must_use]
    pub fn vcpu(&self) -> &ForeignVcpu {
        &self.vcpu
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
        let (at, fd) = (self.scratch()?, self.vcpu.own_descriptor()?);
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
        let (pid, way, below) = (self.vcpu.pid(), self.vcpu.way(), self.scratch()?);
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
        let (at, pid) = (self.scratch()?, self.vcpu.pid());
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

impl Stands for Parked {
    fn stands(&mut self) -> bool {
        self.held.stands()
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Stage::Leaving(before) = self.stage {
            self.vcpu.page().exit_immediately(before);
        }
        self.vcpu.page().restore(self.prepared);
    }
}
