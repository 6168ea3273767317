//! A thread of the VMM that is held by ptrace, for one pause: seized, stopped, and let go.
//!
//! A thread that stays seized stalls its VMM, whose own signals then stop it; so it is seized for each pause anew. What
//! matters for safety: **if this process dies, the thread continues as if nothing had been**. It stops in event stops and
//! at the ends of system calls, out of which the death of a tracer lets it go on; never for a signal of ours (a single step
//! ends in one, which would then be delivered, and kill the VMM).

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use super::error::ForeignError;
use super::ptrace::{On, SYSTEM_CALL, Seen, go_on, look};
use super::way_back::WayBack;

/// Between two looks, when nothing stops.
const REST: Duration = Duration::from_micros(500);
/// Time that a thread has to stop that is to be let go.
const LET_GO: Duration = Duration::from_secs(30);

/// A thread that is held until this is dropped.
#[derive(Debug)]
pub struct HeldThread {
    thread: Pid,
    is_gone: bool,
    /// What it was seen to stop at, until it goes on.
    at: Cell<Option<Stop>>,
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
    /// Because of a signal that it has not got yet, of this number: also a real-time one.
    Signal(i32),
}

impl Stop {
    /// By what waitpid(2) says.
    const fn of(status: i32) -> Self {
        match status {
            SYSTEM_CALL => Self::SystemCall,
            // An event is above the eight bits of the signal.
            status if status >> 8 != 0 => Self::Event,
            signal => Self::Signal(signal),
        }
    }

    /// The signal that it goes on with, if it is to get it; 0 for none.
    const fn signal(self) -> i32 {
        match self {
            Self::Signal(signal) => signal,
            Self::Event | Self::SystemCall => 0,
        }
    }
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
            at: Cell::new(None),
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
                other => self.resume(other)?,
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
        let seen = look(thread).map_err(|source| gone_or(thread, "waiting for it", source))?;
        match seen {
            Seen::Nothing => Ok(None),
            Seen::Stopped(status) => {
                let stop = Stop::of(status);
                self.at.set(Some(stop));
                Ok(Some(stop))
            }
            Seen::Ended => {
                self.is_gone = true;
                Err(ForeignError::Ended { thread })
            }
        }
    }

    fn go_on(&self, how: On, signal: i32) -> io::Result<()> {
        go_on(self.number(), how, signal)?;
        self.at.set(None);
        Ok(())
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

    /// Lets it run out of this stop to the next beginning or end of a system call; [`Self::poll`] tells when it is there. A signal
    /// that it stopped for it gets.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn to_system_call(&self, from: Stop) -> Result<(), ForeignError> {
        let resumed = self.go_on(On::ToSystemCall, from.signal());
        resumed.map_err(|source| gone_or(self.number(), "resuming it", source))
    }

    /// Lets it run out of this stop until it stops where it was asked to. A signal that it stopped for it gets.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn resume(&self, from: Stop) -> Result<(), ForeignError> {
        let resumed = self.go_on(On::Freely, from.signal());
        resumed.map_err(|source| gone_or(self.number(), "resuming it", source))
    }

    /// Has it leave the stop that it is in for one in which our death does no harm; [`Self::poll`] tells when it is there.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn to_event(&self) -> Result<(), ForeignError> {
        let asked = ptrace::interrupt(self.thread);
        asked.map_err(refused(self.number(), "interrupting it"))?;
        self.resume(Stop::Event)
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
            self.to_system_call(Stop::Event)?;
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
        // One that was not seen to stop is not let go before it is: it may have stopped for a signal, which is to be its own. It stays
        // held where that takes too long, and can be held by nobody then, so there is time for it on the slowest host.
        let deadline = Instant::now() + LET_GO;
        if self.at.get().is_none() {
            let _ = ptrace::interrupt(self.thread);
        }
        let mut detached = Err(io::ErrorKind::TimedOut.into());
        while detached.is_err() && !self.is_gone && Instant::now() < deadline {
            let stop = match self.at.get() {
                Some(stop) => Ok(stop),
                None => self.wait(deadline, "it was to be let go"),
            };
            // What cannot be waited for may be let go all the same.
            let signal = stop.map_or(0, Stop::signal);
            detached = self.go_on(On::Released, signal);
            self.at.set(None);
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

fn gone_or(thread: i32, what: &'static str, source: io::Error) -> ForeignError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => ForeignError::Ended { thread },
        _ => refused_io(thread, what)(source),
    }
}

fn refused_io(thread: i32, what: &'static str) -> impl Fn(io::Error) -> ForeignError {
    move |source| ForeignError::Ptrace {
        thread,
        what,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;

    /// What VMMs kick their vCPUs by.
    const RTMIN: i32 = 34;
    const NEVER: Duration = Duration::from_secs(300);

    /// A process that says so when it gets the signal, and ends.
    struct Waiting {
        child: Child,
        said: BufReader<ChildStdout>,
    }

    impl Waiting {
        fn start() -> Self {
            let script = "trap 'echo got; exit' RTMIN; echo ready; while :; do :; done";
            let mut child = Command::new("bash")
                .args(["-c", script])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let said = BufReader::new(child.stdout.take().unwrap());
            let mut started = Self { child, said };
            assert_eq!(started.says(), "ready\n");
            started
        }

        fn says(&mut self) -> String {
            let mut line = String::new();
            self.said.read_line(&mut line).unwrap();
            line
        }

        /// Who holds it may have seen its end already.
        fn ends(mut self) {
            assert_eq!(self.says(), "got\n");
            let _ = self.child.wait();
        }
    }

    fn kick(waiting: &Waiting) {
        let kill = Command::new("bash")
            .args(["-c", &format!("kill -RTMIN {}", waiting.child.id())])
            .status();
        assert!(kill.unwrap().success());
    }

    fn held(waiting: &Waiting) -> HeldThread {
        HeldThread::seize(waiting.child.id().cast_signed(), false).unwrap()
    }

    /// It was once taken for an error, and lost: the library knows the signals up to 31.
    #[test]
    fn a_real_time_signal_that_comes_meanwhile_is_got() {
        let child = Waiting::start();
        let mut thread = held(&child);
        kick(&child);
        let stop = thread
            .wait(Instant::now() + NEVER, "it was kicked")
            .unwrap();
        assert_eq!(stop, Stop::Signal(RTMIN));
        thread.resume(stop).unwrap();
        child.ends();
    }

    #[test]
    fn who_is_let_go_before_its_stop_was_seen_gets_the_signal_all_the_same() {
        for is_seen in [false, true] {
            let child = Waiting::start();
            let mut thread = held(&child);
            kick(&child);
            if is_seen {
                let deadline = Instant::now() + NEVER;
                thread.wait(deadline, "it was kicked").unwrap();
            }
            drop(thread);
            child.ends();
        }
    }
}
