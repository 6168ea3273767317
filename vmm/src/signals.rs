//! SIGINT, SIGTERM and SIGHUP as a file that the event loop reads, so that they end a run cleanly; and a way out
//! that does not need the loop.
//!
//! A thread of its own takes the signals. The first is passed on to the loop. With the second one the user says that
//! this takes too long, whatever the main thread does: the terminal is put back and the process ends by that signal. What
//! it had begun to write stays as it is; what else stays is said ([`set_last_words`]). Ctrl-Z stops the process after the terminal was put back.
//!
//! What whoever started us wants of signals holds: a hangup that is ignored (`nohup`) ends nothing, and one that is blocked
//! comes all the same, but programs that we start are given that as we were ([`as_inherited`]).

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::signal::{
    self, block_signal, create_sigset, get_blocked_signals, unblock_signal,
};

use crate::confine::{self, Role};
use crate::foreign::while_nobody_stands;
use crate::terminal;

/// The signals that end a run, also where they are ignored: a shell's script starts what it puts into the background so.
const WANTED: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];
/// The one that does so unless it is ignored: that is what `nohup` is for.
const HANGUP: libc::c_int = libc::SIGHUP;
/// Those that stop and continue it.
const STOPPING: [libc::c_int; 2] = [libc::SIGTSTP, libc::SIGCONT];
/// `timeout` and others send a signal twice, to the process and to its group: what comes again from the same sender
/// within this time is the same word. A terminal is nobody's process, so Ctrl-C counts each time.
const ECHO: Duration = Duration::from_millis(300);

/// What was blocked before any of it was taken.
static INHERITED: OnceLock<libc::sigset_t> = OnceLock::new();

/// What is said when the process ends at once.
static LAST_WORDS: Mutex<Option<String>> = Mutex::new(None);

/// From now on this is said when a second signal ends the process, of what stays then; or nothing.
pub fn set_last_words(words: Option<String>) {
    *LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner) = words;
}

/// The signals, readable: once one has come, for ever.
#[derive(Debug, Clone)]
pub struct Signals(Arc<EventFd>);

impl Signals {
    /// Takes the signals from now on. They are blocked in this thread, and in all threads that it creates afterwards;
    /// so is SIGXFSZ: a trace that outgrows a limit is an error of its write, not the end of the VMM. SIGCHLD is kept, too, for
    /// who waits for the stops of threads that it holds.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn take_over() -> io::Result<Self> {
        let taken = taken(is_ignored(HANGUP));
        // A second time they are blocked already.
        let blocked = get_blocked_signals().map_err(refused)?;
        let blocked = create_sigset(&blocked);
        let _ = INHERITED.set(blocked.map_err(io::Error::from)?);
        for signal in taken.iter().copied().chain([libc::SIGXFSZ, libc::SIGCHLD]) {
            block(signal)?;
        }
        let arrivals = arrivals(&taken)?;
        let told = Arc::new(EventFd::new(EFD_NONBLOCK)?);
        let tell = Arc::clone(&told);
        std::thread::Builder::new()
            .name(Role::Signals.name().to_owned())
            .spawn(move || {
                confine::enter(Role::Signals);
                attend(arrivals, &tell);
            })?;
        Ok(Self(told))
    }

    /// Whether there was one.
    pub fn take(&mut self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// From now on this signal waits in this thread, and in all that it creates afterwards. That whoever started us has blocked it
/// already is as good.
///
/// # Errors
/// When the system refuses.
pub fn block(signal: libc::c_int) -> io::Result<()> {
    match block_signal(signal) {
        Ok(()) | Err(signal::Error::SignalAlreadyBlocked(_)) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

fn refused(error: signal::Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// The program that this starts has blocked what was blocked when this process was started, and not what we have blocked since:
/// nobody there takes that, so that no signal would end it.
pub fn as_inherited(command: &mut Command) {
    let Some(inherited) = INHERITED.get().copied() else {
        return;
    };
    let restore = move || {
        // SAFETY: the set is initialised, and no other one is asked for.
        let failed = unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const inherited,
                std::ptr::null_mut(),
            )
        };
        match failed {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: between fork and exec this makes one system call, and takes neither a lock nor memory.
    unsafe { command.pre_exec(restore) };
}

/// The signals that the thread takes.
fn taken(hangup_is_ignored: bool) -> Vec<libc::c_int> {
    let hangup = (!hangup_is_ignored).then_some(HANGUP);
    WANTED.into_iter().chain(hangup).chain(STOPPING).collect()
}

/// Whether nothing happens when this signal comes.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call changes nothing, and `action` has room for what it writes.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call has succeeded, so it has filled the structure.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// A file whose reads wait for the next of these signals.
fn arrivals(taken: &[libc::c_int]) -> io::Result<File> {
    let set = create_sigset(taken).map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
    // SAFETY: `set` is an initialised signal set; the call creates a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    signal: u32,
    /// 0 when it was the system itself.
    sender: u32,
}

/// The thread's work.
fn attend(mut arrivals: File, tell: &EventFd) {
    let mut first: Option<(Arrival, Instant)> = None;
    let mut asked = None;
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    while arrivals.read_exact(&mut record).is_ok() {
        let arrival = Arrival::of(&record);
        if stops_or_continues(arrival.signal, &arrivals, &mut asked) {
            continue;
        }
        match first {
            None => {
                // Fails only when it was told 2^64 times.
                let _ = tell.write(1);
                first = Some((arrival, Instant::now()));
            }
            Some((before, since)) if arrival.is_echo(before, since.elapsed()) => {}
            Some(_) => end_now(arrival.signal),
        }
    }
}

/// Whether the signal was one of [`STOPPING`], and has done that: unless the next one comes before that can be done. `asked` is since
/// when it is to stop, and has not: who asks again waits no longer for that.
fn stops_or_continues(signal: u32, arrivals: &File, asked: &mut Option<Instant>) -> bool {
    let before = asked.take();
    match libc::c_int::try_from(signal) {
        Ok(libc::SIGTSTP) => {
            let begun = before.unwrap_or_else(Instant::now);
            let mut has_stopped = false;
            terminal::lend(|| {
                let stop = || {
                    // SAFETY: the call sends a signal to this process, which stops it until it is continued.
                    unsafe { libc::raise(libc::SIGSTOP) };
                };
                has_stopped =
                    while_nobody_stands(stop, begun, || is_there(arrivals, PollFlags::IN));
            });
            if !has_stopped {
                *asked = Some(begun);
                terminal::take_again();
            }
            true
        }
        Ok(libc::SIGCONT) => {
            terminal::take_again();
            true
        }
        _ => false,
    }
}

/// Whether a file can be read or written at once.
fn is_there(file: &impl AsFd, what: PollFlags) -> bool {
    let mut one = [PollFd::new(file, what)];
    matches!(poll(&mut one, Some(&Timespec::default())), Ok(1..))
}

impl Arrival {
    /// What a record of `signalfd` says.
    fn of(record: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = record.get(at..).and_then(|rest| rest.first_chunk());
            bytes.copied().map_or(0, u32::from_ne_bytes)
        };
        Self {
            signal: word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo)),
            sender: word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid)),
        }
    }

    fn is_echo(self, before: Self, after: Duration) -> bool {
        self.sender != 0 && self == before && after < ECHO
    }
}

/// Says them, if that holds up nobody.
fn say_last_words() {
    let Ok(words) = LAST_WORDS.try_lock() else {
        return;
    };
    let mut stderr = io::stderr();
    let is_taken = is_there(&stderr, PollFlags::OUT);
    if let Some(words) = words.as_ref().filter(|_| is_taken) {
        let _ = writeln!(stderr, "vmm: {words}");
    }
}

/// Ends the process as the signal does to whoever does not handle it.
fn end_now(signal: u32) {
    terminal::put_back();
    say_last_words();
    let signal = libc::c_int::try_from(signal).unwrap_or(libc::SIGTERM);
    // It may be ignored ([`WANTED`]).
    // SAFETY: the call installs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let _ = unblock_signal(signal);
    // SAFETY: the call sends a signal to this process, for which nothing is installed: it does not come back.
    unsafe { libc::raise(signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_that_is_ignored_is_not_taken_and_any_other_signal_is() {
        assert_eq!(taken(false), [&WANTED[..], &[HANGUP], &STOPPING].concat());
        assert_eq!(taken(true), [WANTED, STOPPING].concat());
        // Rust's start has done so; nobody can do so.
        assert!(is_ignored(libc::SIGPIPE) && !is_ignored(libc::SIGKILL));
    }

    /// Nothing ran below a supervisor that had blocked one of them; and what a trigger started could be ended by none.
    #[test]
    fn signals_that_are_blocked_already_are_taken_and_what_is_started_is_as_we_were() {
        let blocked = || get_blocked_signals().unwrap();
        std::thread::spawn(move || {
            block(libc::SIGTERM).unwrap();
            let before = blocked();
            let _signals = Signals::take_over().unwrap();
            let missing = |signal: &libc::c_int| !blocked().contains(signal);
            let kept = [libc::SIGXFSZ, libc::SIGCHLD];
            let expected = taken(is_ignored(HANGUP)).into_iter().chain(kept);
            assert_eq!(expected.filter(missing).collect::<Vec<_>>(), [0; 0]);
            let mut shows = Command::new("grep");
            shows.args(["SigBlk", "/proc/self/status"]);
            as_inherited(&mut shows);
            let shown = String::from_utf8(shows.output().unwrap().stdout).unwrap();
            let mask = shown.trim_start_matches("SigBlk:").trim();
            let mask = u64::from_str_radix(mask, 16).unwrap();
            let theirs = (1..=64).filter(|signal| mask & 1 << (signal - 1) != 0);
            assert_eq!(theirs.collect::<Vec<libc::c_int>>(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_same_sender_says_it_twice_and_a_terminal_means_it() {
        let timeout = Arrival {
            signal: 15,
            sender: 77,
        };
        let at_once = Duration::from_micros(5);
        assert!(timeout.is_echo(timeout, at_once));
        assert!(!timeout.is_echo(timeout, ECHO));
        let other = Arrival {
            sender: 78,
            ..timeout
        };
        assert!(!other.is_echo(timeout, at_once));
        let key = Arrival {
            signal: 2,
            sender: 0,
        };
        assert!(!key.is_echo(key, at_once));
    }
}
