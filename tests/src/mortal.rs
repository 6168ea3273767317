//! A program that dies at a step of our choice: it is killed at one of the system calls of its first thread.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::place::patience;

/// What something is done to others by (x86-64): ptrace, process_vm_writev, pidfd_getfd, pwrite64.
const ON_OTHERS: [u64; 4] = [101, 311, 438, 18];

/// Which calls count as steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Those by which something is done to others.
    OnOthers,
    /// All.
    All,
}

impl Steps {
    fn have(self, call: u64) -> bool {
        self == Self::All || ON_OTHERS.contains(&call)
    }
}

/// What became of it.
#[derive(Debug)]
pub struct Lived {
    /// How many steps it made: each call is one at its beginning and one at its end.
    pub steps: u64,
    /// Its exit status, if it was not killed by us; that of a signal is negative.
    pub ended: Option<i32>,
    /// What it said by then.
    pub said: String,
}

/// One that stands still at a step.
#[derive(Debug)]
pub struct Held {
    child: Child,
    pid: Pid,
    steps: u64,
}

impl Held {
    /// Lets it go on.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn let_go(self) -> Child {
        ptrace::detach(self.pid, None).expect("it stands still");
        self.child
    }

    fn kill(mut self) -> Lived {
        self.child.kill().expect("it runs");
        let ended = self.child.wait().expect("it is ours");
        assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended:?}");
        lived(self.child, self.steps, None)
    }
}

/// Runs `command` and kills it at this step of `which`. It is let run to its end if it has fewer.
///
/// # Panics
/// When it cannot be started or traced.
pub fn killed_at(command: &mut Command, which: Steps, step: u64) -> Lived {
    held_at(command, which, step).map_or_else(|lived| lived, Held::kill)
}

/// Runs `command` to this step of `which`.
///
/// # Errors
/// How it ended, if it has fewer.
///
/// # Panics
/// When it cannot be started or traced.
pub fn held_at(command: &mut Command, which: Steps, step: u64) -> Result<Held, Lived> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().expect("the program starts");
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    let seized = ptrace::seize(pid, options).and_then(|()| ptrace::interrupt(pid));
    if let Err(error) = seized {
        // One that is short may have come to its end before anybody could hold it.
        let ended = child.wait().expect("it is ours");
        let may_have_ended = matches!(error, Errno::EPERM | Errno::ESRCH);
        assert!(
            may_have_ended && ended.code().is_some(),
            "it can be traced: {error}, {ended}"
        );
        return Err(lived(child, 0, ended.code()));
    }
    watch((child, pid), which, step)
}

/// One that never comes to its next step is killed, which is how it has ended then. For as long as what is returned lives.
fn killed_when_late(pid: Pid) -> Sender<()> {
    let (alive, ends) = channel::<()>();
    std::thread::spawn(move || {
        if ends.recv_timeout(patience()) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{pid} comes neither to its step nor to its end: it is killed");
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    alive
}

fn watch((child, pid): (Child, Pid), which: Steps, step: u64) -> Result<Held, Lived> {
    let _alive = killed_when_late(pid);
    let mut steps = 0;
    loop {
        let mut deliver = None;
        match waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it is ours") {
            WaitStatus::PtraceSyscall(_) => {
                let call = ptrace::getregs(pid).map_or(0, |registers| registers.orig_rax);
                steps += u64::from(which.have(call));
                if steps >= step {
                    return Ok(Held { child, pid, steps });
                }
            }
            WaitStatus::Stopped(_, signal) => deliver = Some(signal),
            WaitStatus::Exited(_, code) => return Err(lived(child, steps, Some(code))),
            WaitStatus::Signaled(_, signal, _) => {
                return Err(lived(child, steps, Some(-(signal as i32))));
            }
            _ => {}
        }
        let deliver = deliver.filter(|signal| *signal != Signal::SIGTRAP);
        // When it has ended meanwhile the next look says so.
        let _ = ptrace::syscall(pid, deliver);
    }
}

fn lived(child: Child, steps: u64, ended: Option<i32>) -> Lived {
    let mut said = Vec::new();
    let _ = child.stderr.map(|mut stderr| stderr.read_to_end(&mut said));
    Lived {
        steps,
        ended,
        said: String::from_utf8_lossy(&said).into_owned(),
    }
}
