//! A thread of the VMM that is held by ptrace, for one pause: seized, stopped, and let go.
//!
//! A thread that stays seized stalls its VMM, whose own signals then stop it; so it is seized for each pause anew. What
//! matters for safety: **if this process dies, the thread continues as if nothing had been**. It stops in event stops and
//! at the ends of system calls, out of which the death of a tracer lets it go on; never for a signal of ours (a single step
//! ends in one, which would then be delivered, and kill the VMM).

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use super::error::ForeignError;
use super::process::{is_over, tracer_of};
use super::ptrace::{On, SYSTEM_CALL, Seen, go_on, look};
use super::standing::Standing;
use super::way_back::WayBack;

/// Between two looks, when nothing stops.
const REST: Duration = Duration::from_micros(500);
/// For so long threads are waited for that are to be let go and do not stand yet, all of them together, before they are left for
/// later: what they were held with has gone on by then, but other guests of whoever waits may stand.
const LET_GO: Duration = Duration::from_millis(50);
/// A thread that is not seen to stop is asked so often whether it has ended. A pause takes less.
const UNSEEN: Duration = Duration::from_millis(5);
/// Between two looks at threads that have still to be let go.
pub const LOOK: Duration = Duration::from_millis(20);

thread_local! {
    /// Threads that were asked to stop and are to be let go as soon as they have: they wait where nothing wakes them (for a disk, a
    /// child that begins). They may stop at any time, so this process is not to be.
    static LATE: RefCell<Vec<HeldThread>> = const { RefCell::new(Vec::new()) };
}

/// A thread that is held until this is dropped.
#[derive(Debug)]
pub struct HeldThread {
    thread: Pid,
    /// Its end was seen, or it was let go: there is nothing to be done with it any more.
    is_gone: bool,
    /// It has ended. While it is the first of its process and others of it are left, that is told to nobody who waits for it; it is to be
    /// let go as if it were late.
    has_ended: bool,
    /// When it was taken.
    since: Instant,
    /// Its system calls are not filtered meanwhile, if they are at all.
    is_unfiltered: bool,
    /// What it was seen to stop at, until it goes on.
    at: Cell<Option<Stop>>,
    /// Since it was asked to stop; nothing of one that has ended stands.
    standing: RefCell<Option<Standing>>,
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
    /// long as it is held: one that was seized without that before, and is late, has to be let go first.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`], [`ForeignError::Ended`], [`ForeignError::Late`].
    pub fn seize(thread: i32, unfiltered: bool, deadline: Instant) -> Result<Self, ForeignError> {
        let rest = Rest::until(deadline);
        let_late_go();
        while let Some(late) = taken_from_late(thread) {
            // A call in its name would end its VMM: what lifts the filter is said when it is seized.
            if late.is_unfiltered || !unfiltered {
                return Ok(late);
            }
            drop(late);
            if !rest.a_moment() {
                let what = "it was to be let go";
                return Err(ForeignError::Late { thread, what });
            }
        }
        let pid = Pid::from_raw(thread);
        let mut options = Options::PTRACE_O_TRACESYSGOOD;
        if unfiltered {
            options |= Options::from_bits_retain(libc::PTRACE_O_SUSPEND_SECCOMP);
        }
        super::ptrace::keep_stops();
        let what = match unfiltered {
            true => "seizing it, whose system calls are filtered, which takes CAP_SYS_ADMIN, too",
            false => "seizing it",
        };
        ptrace::seize(pid, options).map_err(|errno| match errno {
            // One that ends just now is refused to all.
            nix::errno::Errno::EPERM if is_over(thread) => ForeignError::Ended { thread },
            errno => refused(thread, what)(errno),
        })?;
        Ok(Self {
            thread: pid,
            is_gone: false,
            has_ended: false,
            since: Instant::now(),
            is_unfiltered: unfiltered,
            at: Cell::new(None),
            standing: RefCell::new(None),
            _here: PhantomData,
        })
    }

    /// Asks it to stop: [`Self::wait_stopped`] waits for that.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn interrupt(&self) -> Result<(), ForeignError> {
        self.standing.borrow_mut().get_or_insert_with(Standing::now);
        ptrace::interrupt(self.thread).map_err(refused(self.number(), "interrupting it"))
    }

    /// Whether it stands where it was asked to, as far as was seen.
    #[must_use]
    pub fn is_standing(&self) -> bool {
        self.at.get() == Some(Stop::Event)
    }

    /// The same, seen now. A signal that it has stopped for instead it gets, and stands after that.
    ///
    /// # Errors
    /// [`ForeignError::Ended`], [`ForeignError::Ptrace`].
    pub fn has_stopped(&mut self) -> Result<bool, ForeignError> {
        let at = match self.at.get() {
            None => self.poll()?,
            at => at,
        };
        match at {
            Some(Stop::Event) => Ok(true),
            Some(other) => self.resume(other).map(|()| false),
            None => Ok(false),
        }
    }

    /// Whether it was seen to end.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.is_gone || self.has_ended
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
        let stop = self.seen()?;
        // Whoever waited for it would wait for others of its process, which may wait for us.
        if stop.is_none() && self.since.elapsed() >= UNSEEN {
            self.since = Instant::now();
            if is_over(thread) {
                self.has_ended = true;
                *self.standing.get_mut() = None;
                return Err(ForeignError::Ended { thread });
            }
        }
        Ok(stop)
    }

    /// The same, as who waits for it is told.
    fn seen(&mut self) -> Result<Option<Stop>, ForeignError> {
        let thread = self.number();
        match look(thread).map_err(refused(thread, "waiting for it"))? {
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

    /// Lets it go if it stands by now, or is gone. False while it does not.
    fn has_been_let_go(&mut self) -> bool {
        let stop = match self.at.get() {
            Some(stop) => Ok(Some(stop)),
            None => self.seen(),
        };
        let (signal, is_seen) = match stop {
            Ok(None) => {
                // Nothing of one that has ended stands; of its end who holds it is told later.
                if is_over(self.number()) {
                    *self.standing.get_mut() = None;
                }
                return false;
            }
            Ok(Some(stop)) => (stop.signal(), true),
            Err(ForeignError::Ended { .. }) => return true,
            // What cannot be waited for may be let go all the same.
            Err(_) => (0, false),
        };
        match self.go_on(On::Released, signal) {
            // It was killed where it stood. Its process ends when who holds it has seen its end.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) && is_seen => {
                self.at.set(None);
                return self.seen().is_err();
            }
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                log::error!("thread {} of the VMM is not let go: {error}", self.thread);
            }
            _ => {}
        }
        self.is_gone = true;
        true
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
        resumed.map_err(refused(self.number(), "resuming it"))
    }

    /// Lets it run out of this stop until it stops where it was asked to. A signal that it stopped for it gets.
    ///
    /// # Errors
    /// [`ForeignError::Ptrace`].
    pub fn resume(&self, from: Stop) -> Result<(), ForeignError> {
        let resumed = self.go_on(On::Freely, from.signal());
        resumed.map_err(refused(self.number(), "resuming it"))
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
            .map_err(refused(self.number(), "reading its extended registers"))?;
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
        let (mut ends, mut from) = (2, Stop::Event);
        while ends > 0 {
            self.to_system_call(from)?;
            // Whatever else it stops for comes before the call begins.
            from = match self.wait(deadline, "a call was made in its name")? {
                Stop::SystemCall => {
                    ends -= 1;
                    Stop::SystemCall
                }
                // Nobody can block that: its process stops by it when the thread is let go.
                stopped @ Stop::Signal(libc::SIGSTOP) => stopped,
                Stop::Event | Stop::Signal(_) => Stop::Event,
            };
        }
        let after = self.registers();
        self.settle(deadline)?;
        Ok(after?.rax)
    }

    fn signal_mask(&self) -> Result<u64, ForeignError> {
        let mut mask = 0;
        super::ptrace::signal_mask(self.number(), &mut mask)
            .map_err(refused(self.number(), "reading its signal mask"))?;
        Ok(mask)
    }

    fn set_signal_mask(&self, mask: u64) -> Result<(), ForeignError> {
        super::ptrace::set_signal_mask(self.number(), mask)
            .map_err(refused(self.number(), "setting its signal mask"))
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

    /// Leaves the CPU to others for a moment, and lets those go that were to be let go before. False when it is too late.
    pub fn a_moment(&self) -> bool {
        let is_time = Instant::now() < self.deadline;
        let_late_go();
        super::ptrace::wait_for_stop(REST);
        is_time
    }
}

/// Who does not stand yet is let go when it does ([`let_late_go`]). Nobody waits for it here: others may stand meanwhile.
impl Drop for HeldThread {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        // One that was not seen to stop is not let go before it is: it may have stopped for a signal, which is to be its own.
        if self.at.get().is_none()
            && ptrace::interrupt(self.thread) == Err(nix::errno::Errno::ESRCH)
        {
            return;
        }
        if self.has_been_let_go() {
            return;
        }
        let mut late = Some(Self {
            is_gone: false,
            at: Cell::new(None),
            standing: RefCell::new(self.standing.take()),
            ..*self
        });
        let kept = LATE.try_with(|all| all.borrow_mut().extend(late.take()));
        // A thread that ends lets go whatever it holds: nothing more is done about it, least of all this again.
        if let (Err(_), Some(late)) = (kept, &mut late) {
            late.is_gone = true;
        }
    }
}

/// Lets those go that were to be let go before, and have stopped by now. Says whether there are more of them. Whoever has held threads
/// does this now and then.
pub fn let_late_go() -> bool {
    let mut late = LATE.take();
    late.retain_mut(|thread| !thread.has_been_let_go());
    LATE.with_borrow_mut(|all| {
        all.append(&mut late);
        !all.is_empty()
    })
}

/// Waits by `wait`, at most so long, until that says that what it waits for has come, and lets those go meanwhile that were to be let go
/// before. Nobody else can: who has seized a thread waits for much, also for a disk. Says whether it has come.
pub fn wait_and_let_go(at_most: Duration, wait: &mut dyn FnMut(Duration) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        let are_more = let_late_go();
        let left = at_most.saturating_sub(begun.elapsed());
        let part = if are_more { left.min(LOOK) } else { left };
        let has_come = wait(part);
        if has_come || part == left {
            return has_come;
        }
    }
}

/// Rests so long, and lets those go meanwhile.
pub fn rest(so_long: Duration) {
    wait_and_let_go(so_long, &mut |part| {
        std::thread::sleep(part);
        false
    });
}

/// One of them, which is held again.
fn taken_from_late(thread: i32) -> Option<HeldThread> {
    LATE.with_borrow_mut(|all| {
        let found = all.iter().position(|late| late.number() == thread)?;
        Some(all.swap_remove(found))
    })
}

/// Held threads: those that stand are let go first, and the others waited for, all together.
#[derive(Debug)]
pub struct Together<T: Stands>(Vec<T>);

/// What is held and stands still, or does not yet.
pub trait Stands {
    /// Whether it is known to, or to be gone.
    fn stands(&mut self) -> bool;
}

impl Stands for HeldThread {
    fn stands(&mut self) -> bool {
        if self.at.get().is_none() && !self.has_ended() {
            // What went wrong is met again when it is let go.
            let _ = self.poll();
        }
        self.at.get().is_some() || self.has_ended()
    }
}

impl<T: Stands> From<Vec<T>> for Together<T> {
    fn from(all: Vec<T>) -> Self {
        Self(all)
    }
}

impl<T: Stands> Together<T> {
    /// Each on its own.
    pub fn apart(mut self) -> Vec<T> {
        std::mem::take(&mut self.0)
    }
}

impl<T: Stands> Deref for Together<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Stands> DerefMut for Together<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T: Stands> Drop for Together<T> {
    fn drop(&mut self) {
        let mut late = Vec::new();
        for mut one in std::mem::take(&mut self.0) {
            if !one.stands() {
                late.push(one);
            }
        }
        if late.is_empty() {
            return;
        }
        drop(late);
        let rest = Rest::until(Instant::now() + LET_GO);
        while let_late_go() && rest.a_moment() {}
    }
}

/// What a request was refused for. One that has been killed meanwhile is not there for any.
fn refused<E: Into<io::Error>>(thread: i32, what: &'static str) -> impl Fn(E) -> ForeignError {
    move |error| {
        let source = error.into();
        match source.raw_os_error() {
            Some(libc::ESRCH) => ForeignError::Ended { thread },
            _ => ForeignError::Ptrace {
                thread,
                what,
                tracer: tracer_of(thread),
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;
    use crate::foreign::standing::while_nobody_stands;
    use crate::foreign::stuck::Stuck;

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

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn kick(waiting: &Waiting) {
        let kill = Command::new("bash")
            .args(["-c", &format!("kill -RTMIN {}", waiting.child.id())])
            .status();
        assert!(kill.unwrap().success());
    }

    /// All that were held with it stood still for half a minute more, and it stood for good when it came to it.
    #[test]
    fn who_does_not_stop_holds_up_nobody_and_is_let_go_when_it_does() {
        let (stuck, child) = (Stuck::start(), Waiting::start());
        let thread = HeldThread::seize(stuck.number(), false, Instant::now() + NEVER).unwrap();
        let mut together = Together::from(vec![thread, held(&child)]);
        let deadline = Instant::now() + NEVER;
        for thread in together.iter() {
            thread.interrupt().unwrap();
        }
        together[1].wait_stopped(deadline).unwrap();
        drop(together);
        assert_eq!(LATE.with_borrow(Vec::len), 1);
        kick(&child);
        child.ends();
        // It can be held again meanwhile.
        let again = HeldThread::seize(stuck.number(), false, Instant::now() + NEVER).unwrap();
        assert_eq!(LATE.with_borrow(Vec::len), 0);
        drop(again);
        stuck.is_to_go_on();
        while let_late_go() {}
        stuck.goes_on();
    }

    /// Its filter would end its VMM at the first call in its name.
    #[test]
    fn who_was_late_with_its_filter_is_not_held_as_one_without() {
        let stuck = Stuck::late();
        let number = stuck.number();
        let again = HeldThread::seize(number, true, Instant::now());
        assert!(matches!(again, Err(ForeignError::Late { thread, .. }) if thread == number));
        drop(again);
        drop(HeldThread::seize(number, false, Instant::now() + NEVER).unwrap());
        stuck.is_to_go_on();
        // It is let go first; whether we may lift a filter is another question.
        let again = HeldThread::seize(number, true, Instant::now() + NEVER);
        assert!(
            !matches!(again, Err(ForeignError::Late { .. })),
            "{again:?}"
        );
        drop(again);
        while let_late_go() {}
        stuck.goes_on();
    }

    /// Ctrl-Z would leave it there.
    #[test]
    fn who_is_asked_to_stop_stands() {
        let stuck = Stuck::start();
        let _held = seized(stuck.number());
        let never = || unreachable!("a thread stands");
        assert!(!while_nobody_stands(never, Instant::now(), || true));
    }

    #[test]
    fn who_rests_lets_go_who_was_late() {
        let stuck = Stuck::late();
        rest(Duration::ZERO);
        assert!(let_late_go(), "it does not stand yet");
        stuck.is_to_go_on();
        while LATE.with_borrow(|late| !late.is_empty()) {
            rest(Duration::from_millis(1));
        }
        stuck.goes_on();
    }

    /// Its end was once waited for by who was to forget it, and that by the next one, for ever.
    #[test]
    fn a_thread_that_ends_leaves_who_does_not_stop_to_the_system() {
        let stuck = Stuck::start();
        let number = stuck.number();
        let ends = std::thread::spawn(move || {
            let thread = HeldThread::seize(number, false, Instant::now() + NEVER).unwrap();
            thread.interrupt().unwrap();
            drop(thread);
            LATE.with_borrow(Vec::len)
        });
        assert_eq!(ends.join().unwrap(), 1);
        // It goes on, and nobody holds it.
        stuck.is_to_go_on();
        stuck.goes_on();
    }

    /// Nobody else sees its end then, and its process would never end.
    #[test]
    fn the_end_of_who_is_killed_where_it_stands_is_seen() {
        let mut child = Waiting::start();
        let mut thread = held(&child);
        thread.interrupt().unwrap();
        thread.wait_stopped(Instant::now() + NEVER).unwrap();
        child.child.kill().unwrap();
        drop(thread);
        while let_late_go() {}
        // Who has made it sees it after that; here that is the same process, for which it is over.
        assert!(!std::path::Path::new(&format!("/proc/{}", child.child.id())).exists());
    }

    /// A process of two threads, and these, the first one first.
    fn with_a_second_thread() -> (Child, [i32; 2]) {
        const SCRIPT: &str = "import threading, time\n\
            threading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n\
            print('begun', flush=True)\ntime.sleep(1000)";
        let mut vmm = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(vmm.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        let process = crate::foreign::process::Process::open(vmm.id().cast_signed()).unwrap();
        let threads = process.threads().unwrap().try_into().unwrap();
        (vmm, threads)
    }

    /// The end of the first of its threads is not told before the others have been let go.
    #[test]
    fn who_is_killed_with_all_its_threads_held_ends() {
        let (mut vmm, threads) = with_a_second_thread();
        let mut together = Together::from(threads.map(seized).into_iter().collect::<Vec<_>>());
        for thread in together.iter_mut() {
            thread.wait_stopped(Instant::now() + NEVER).unwrap();
        }
        vmm.kill().unwrap();
        drop(together);
        while let_late_go() {}
        // Who has made it is this process, which has seen it.
        assert!(!std::path::Path::new(&format!("/proc/{}", vmm.id())).exists());
        let _ = vmm.wait();
    }

    /// It is not told of the end of the first while it holds the second: it waited for it for as long as it would have for a stop.
    #[test]
    fn who_waits_for_the_first_of_a_process_that_was_killed_is_told_at_once() {
        let (mut vmm, threads) = with_a_second_thread();
        let [mut first, mut second] = threads.map(seized);
        second.wait_stopped(Instant::now() + NEVER).unwrap();
        vmm.kill().unwrap();
        // It may stop before it is killed.
        while first.wait_stopped(Instant::now() + NEVER).is_ok() {}
        assert!(first.has_ended() && first.stands());
        let is_ended =
            |refused| matches!(refused, ForeignError::Ended { thread } if thread == threads[0]);
        assert!(is_ended(first.signal_mask().unwrap_err()));
        assert!(is_ended(first.registers().unwrap_err()));
        drop([first, second]);
        while let_late_go() {}
        assert!(!std::path::Path::new(&format!("/proc/{}", vmm.id())).exists());
        let _ = vmm.wait();
    }

    fn seized(thread: i32) -> HeldThread {
        let seized = HeldThread::seize(thread, false, Instant::now() + NEVER).unwrap();
        seized.interrupt().unwrap();
        seized
    }

    /// It was once forgotten: the process ran on.
    #[test]
    fn a_process_that_is_stopped_during_a_call_in_its_name_is_stopped_after_that() {
        let child = Waiting::start();
        let (pid, deadline) = (child.child.id().cast_signed(), Instant::now() + NEVER);
        let mut thread = held(&child);
        thread.interrupt().unwrap();
        thread.wait_stopped(deadline).unwrap();
        let way = WayBack::find(&crate::foreign::process::Process::open(pid).unwrap()).unwrap();
        nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::SIGSTOP).unwrap();
        let below = thread.registers().unwrap().rsp - (16 << 10);
        let called = thread.call(way, below, libc::SYS_getpid, [0; 6], deadline);
        assert_eq!(called.unwrap(), u64::from(child.child.id()));
        drop(thread);
        let stat = format!("/proc/{pid}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::SIGCONT).unwrap();
        kick(&child);
        child.ends();
    }

    fn held(waiting: &Waiting) -> HeldThread {
        HeldThread::seize(
            waiting.child.id().cast_signed(),
            false,
            Instant::now() + NEVER,
        )
        .unwrap()
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
            while let_late_go() {}
            child.ends();
        }
    }
}
