//! A thread of another process that is made to ask the system for something.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of a stack that nothing is in.
const ROOM: u64 = 8192;

/// Has the thread of this name make the system call `number`, without arguments. What it did before is gone.
///
/// # Panics
/// When there is no such thread, or it cannot be held.
pub fn force_call(pid: u32, name: &str, number: u64) {
    let instruction = instruction_of(pid);
    let thread = thread_of(pid, name);
    let signal = hold(thread);
    let mut registers = ptrace::getregs(thread).expect("it stands still");
    registers.rip = instruction;
    registers.rax = number;
    // None is to be begun again.
    registers.orig_rax = u64::MAX;
    ptrace::setregs(thread, registers).expect("it stands still");
    ptrace::detach(thread, signal).expect("it stands still");
}

fn thread_of(pid: u32, name: &str) -> Pid {
    let all = threads(pid).into_iter();
    let mut named = all.filter(|(_, found)| found == name);
    named.next().unwrap_or_else(|| panic!("no thread {name}")).0
}

/// Where the main thread, which waits, has called the system.
fn instruction_of(pid: u32) -> u64 {
    let main = Pid::from_raw(pid.cast_signed());
    loop {
        let signal = hold(main);
        let registers = ptrace::getregs(main).expect("it stands still");
        let at = registers.rip.wrapping_sub(2);
        let word = ptrace::read(main, at as ptrace::AddressType);
        ptrace::detach(main, signal).expect("it stands still");
        if word.is_ok_and(|word| word.to_le_bytes()[..2] == SYSCALL) {
            return at;
        }
    }
}

/// Returns the signal that has come for it meanwhile.
fn hold(thread: Pid) -> Option<Signal> {
    ptrace::seize(thread, Options::empty()).expect("it can be held");
    ptrace::interrupt(thread).expect("it can be held");
    match waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stands still") {
        WaitStatus::Stopped(_, signal) => Some(signal),
        _ => None,
    }
}

/// The threads of a process, by their names.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn threads(pid: u32) -> Vec<(Pid, String)> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(number), name.trim().to_owned()))
    };
    folder.filter_map(named).collect()
}

/// Has the thread of this name make the system call `number` with a path as its first argument and `second` as the next, and go
/// on with what it did. Returns what the system said: an error is negative.
///
/// # Panics
/// When there is no such thread, or it cannot be held.
#[must_use]
pub fn forced_on_path(pid: u32, name: &str, number: u64, path: &Path, second: u64) -> i64 {
    let instruction = instruction_of(pid);
    let thread = thread_of(pid, name);
    let signal = hold(thread);
    let before = ptrace::getregs(thread).expect("it stands still");
    let mut registers = before;
    // Below all that the thread has there, its red zone too.
    registers.rdi = (before.rsp - ROOM) & !7;
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.resize(bytes.len() + 8 - bytes.len() % 8, 0);
    for (at, word) in (registers.rdi..).step_by(8).zip(bytes.chunks_exact(8)) {
        let word = i64::from_le_bytes(word.try_into().expect("eight bytes"));
        ptrace::write(thread, at as ptrace::AddressType, word).expect("its stack");
    }
    registers.rsi = second;
    registers.rip = instruction;
    registers.rax = number;
    // None is to be begun again.
    registers.orig_rax = u64::MAX;
    ptrace::setregs(thread, registers).expect("it stands still");
    ptrace::step(thread, None).expect("it stands still");
    let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it steps");
    assert_eq!(stopped, WaitStatus::Stopped(thread, Signal::SIGTRAP));
    let said = ptrace::getregs(thread).expect("it stands still").rax;
    ptrace::setregs(thread, before).expect("it stands still");
    ptrace::detach(thread, signal).expect("it stands still");
    said.cast_signed()
}
