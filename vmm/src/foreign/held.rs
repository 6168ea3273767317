//! A thread of the VMM that is held by ptrace, for one pause: seized, stopped, and let go.
//!
//! A thread that stays seized stalls its VMM, whose own signals then stop it; so it is seized for each pause anew. What
//! matters for safety: **if this process dies, the thread continues as if nothing had been**. It stops in event stops and
//! at the ends of system calls, out of which the death of a tracer lets it go on; never for a signal of ours (a single step
//! ends in one, which would then be delivered, and kill the VMM).

use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::error::ForeignError;
use super::way_back::WayBack;

/// Between two looks, when nothing stops.
const REST: Duration = Duration::from_micros(500);

/// A thread that is held until this is dropped.
#[derive(Debug)]
pub struct HeldThread {
    thread: Pid,
    is_gone: bool,
    /// Only the thread that seized it can do anything with it.
    _here: PhantomData<*const ()>,
}

/// At what a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Where it was asked to, or where its process is stopped.
    Event,
    /// At the beginning or the end of a system call.
    SystemCall,
    /// Because of a signal that it has not got yet.
    Signal(Signal),
}

impl HeldThread {
    /// Seizes a thread, which runs on until it is asked to stop. `unfiltered` lifts the filter of its system calls for as
    /// long as it is held.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn seize(thread: i32, unfiltered: bool) -> Result<Self, ForeignError> {
        let pid = Pid::from_raw(thread);
        let mut options = Options::PTRACE_O_TRACESYSGOOD;
        if unfiltered {
            options |= Options::from_bits_retain(libc::PTRACE_O_SUSPEND_SECCOMP);
        }
        super::ptrace::keep_stops();
        ptrace::seize(pid, options).map_err(refused(thread, "seizing it"))?;
        Ok(Self {
            thread: pid,
            is_gone: false,
            _here: PhantomData,
        })
    }

    /// Asks it to stop: [`Self::wait_stopped`] waits for that.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn interrupt(&self) -> Result<(), ForeignError> {
        ptrace::interrupt(self.thread).map_err(refused(self.number(), "interrupting it"))
    }

    /// Whether it was seen to end.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.thread.as_raw()
    }

    /// Waits until it stands still where it was asked to. Signals that it has not got yet it gets before.
    ///
    /// # Errors
    /// [`ForeignError::Late`], [`ForeignError::Ended`].
    pub fn wait_stopped(&mut self, deadline: Instant) -> Result<(), ForeignError> {
        loop {
            match self.wait(deadline, "it was asked to stop")? {
                Stop::Event => return Ok(()),
                Stop::SystemCall => self.resume(None)?,
                Stop::Signal(signal) => self.resume(Some(signal))?,
            }
        }
    }

    /// Waits for the next stop, whatever it is.
    fn wait(&mut self, deadline: Instant, what: &'static str) -> Result<Stop, ForeignError> {
        let rest = Rest::until(deadline);
        loop {
            if let Some(stop) = self.poll()? {
                return Ok(stop);
            }
            if !rest.a_moment() {
                let thread = self.number();
                return Err(ForeignError::Late { thread, what });
            }
        }
    }

    /// At what it has stopped, if it has since it was resumed.
    ///
    /// # Errors
    /// [`ForeignError::Ended`], [`ForeignError::Ptrace`].
    pub fn poll(&mut self) -> Result<Option<Stop>, ForeignError> {
        let thread = self.number();
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        match waitpid(self.thread, Some(flags)) {
            Ok(WaitStatus::PtraceEvent(..)) => Ok(Some(Stop::Event)),
            Ok(WaitStatus::PtraceSyscall(_)) => Ok(Some(Stop::SystemCall)),
            Ok(WaitStatus::Stopped(_, signal)) => Ok(Some(Stop::Signal(signal))),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                self.is_gone = true;
                Err(ForeignError::Ended { thread })
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(None),
            Err(errno) => Err(refused(thread, "waiting for it")(errno)),
        }
    }

    /// Its registers.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn registers(&self) -> Result<user_regs_struct, ForeignError> {
        ptrace::getregs(self.thread).map_err(refused(self.number(), "reading its registers"))
    }

    fn set_registers(&self, registers: &user_regs_struct) -> Result<(), ForeignError> {
        let set = ptrace::setregs(self.thread, *registers);
        set.map_err(refused(self.number(), "setting its registers"))
    }

    /// Lets it run to the next beginning or end of a system call, with this signal; [`Self::poll`] tells when it is there.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn to_system_call(&self, signal: Option<Signal>) -> Result<(), ForeignError> {
        ptrace::syscall(self.thread, signal).map_err(refused(self.number(), "resuming it"))
    }

    /// Lets it run, with this signal, until it stops where it was asked to.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn resume(&self, signal: Option<Signal>) -> Result<(), ForeignError> {
        ptrace::cont(self.thread, signal).map_err(refused(self.number(), "resuming it"))
    }

    /// Has it leave the stop that it is in for one in which our death does no harm; [`Self::poll`] tells when it is there.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn to_event(&self) -> Result<(), ForeignError> {
        let asked = ptrace::interrupt(self.thread);
        asked.map_err(refused(self.number(), "interrupting it"))?;
        self.resume(None)
    }

    /// The same, and waits for it.
    fn settle(&mut self, deadline: Instant) -> Result<(), ForeignError> {
        self.to_event()?;
        self.wait_stopped(deadline)
    }

    /// Makes one system call in its name. Signals wait. Returns what the call returned: a negated error number, or a value.
    /// Whatever becomes of us, the thread comes back to where it was. Its stack is used from `below` downward.
    ///
    /// # Errors
    /// [`ForeignError::Late`], [`ForeignError::Ended`], [`ForeignError::Ptrace`], [`ForeignError::Access`].
    pub fn call(
        &mut self,
        way: WayBack,
        below: u64,
        number: i64,
        arguments: [u64; 6],
        deadline: Instant,
    ) -> Result<u64, ForeignError> {
        let before = self.registers()?;
        let mask = self.signal_mask()?;
        let extended = super::ptrace::extended_registers(self.number())
            .map_err(refused_io(self.number(), "reading its extended registers"))?;
        let at = below.wrapping_sub(WayBack::room(&extended)) & !63;
        let stack = way.stack(at, &before, mask, &extended);
        super::remote::write(self.number(), at, &stack)?;
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let called = self.make_call(
            &user_regs_struct {
                rip: way.call,
                rsp: at,
                rax: number.cast_unsigned(),
                // No call that was interrupted is begun again from here.
                orig_rax: u64::MAX,
                rdi,
                rsi,
                rdx,
                r10,
                r8,
                r9,
                ..before
            },
            deadline,
        );
        // In this order: until the last one it would come back by itself.
        let unmasked = self.set_signal_mask(mask);
        let restored = self.set_registers(&before);
        let result = called?;
        unmasked?;
        restored?;
        Ok(result)
    }

    /// Has the thread make the call that `during` is the beginning of. It stops in stops only in which our death does no
    /// harm.
    fn make_call(
        &mut self,
        during: &user_regs_struct,
        deadline: Instant,
    ) -> Result<u64, ForeignError> {
        // In this order: the thread knows its way back, signals included, before any is blocked.
        self.set_registers(during)?;
        self.set_signal_mask(u64::MAX)?;
        let mut ends = 2;
        while ends > 0 {
            self.to_system_call(None)?;
            // Whatever else it stops for comes before the call begins.
            if self.wait(deadline, "a call was made in its name")? == Stop::SystemCall {
                ends -= 1;
            }
        }
        let after = self.registers();
        self.settle(deadline)?;
        Ok(after?.rax)
    }

    fn signal_mask(&self) -> Result<u64, ForeignError> {
        let mut mask = 0;
        super::ptrace::signal_mask(self.number(), &mut mask)
            .map_err(refused_io(self.number(), "reading its signal mask"))?;
        Ok(mask)
    }

    fn set_signal_mask(&self, mask: u64) -> Result<(), ForeignError> {
        super::ptrace::set_signal_mask(self.number(), mask)
            .map_err(refused_io(self.number(), "setting its signal mask"))
    }
}

/// Looks again after a moment: as soon as something has stopped.
#[derive(Debug)]
pub struct Rest {
    deadline: Instant,
}

impl Rest {
    /// Until then.
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self { deadline }
    }

    /// Leaves the CPU to others for a moment. False when it is too late.
    pub fn a_moment(&self) -> bool {
        let is_time = Instant::now() < self.deadline;
        super::ptrace::wait_for_stop(REST);
        is_time
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        // One that was not seen to stop is not let go before it does.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut detached = ptrace::detach(self.thread, None);
        if detached.is_err() {
            // It runs, or has not been seen to stop yet.
            let _ = ptrace::interrupt(self.thread);
        }
        while detached.is_err() && !self.is_gone && Instant::now() < deadline {
            let signal = match self.wait(deadline, "it was to be let go") {
                Ok(Stop::Signal(signal)) => Some(signal),
                _ => None,
            };
            detached = ptrace::detach(self.thread, signal);
        }
        if let (Err(error), false) = (detached, self.is_gone) {
            log::error!("thread {} of the VMM is not let go: {error}", self.thread);
        }
    }
}

fn refused(thread: i32, what: &'static str) -> impl Fn(nix::errno::Errno) -> ForeignError {
    move |errno| match errno {
        nix::errno::Errno::ESRCH => ForeignError::Ended { thread },
        errno => refused_io(thread, what)(errno.into()),
    }
}

fn refused_io(thread: i32, what: &'static str) -> impl Fn(io::Error) -> ForeignError {
    move |source| ForeignError::Ptrace {
        thread,
        what,
        source,
    }
}
