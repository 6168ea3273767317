//! stdin as the guest's console: character by character when it is a terminal, which is put back
//! at the end. Ctrl-C stays the user's: it ends the run.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What reading the console gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleInput {
    /// This many bytes.
    Bytes(usize),
    /// Nothing at the moment.
    Nothing,
    /// The end: nothing will ever come.
    End,
}

/// What the terminal was like before it was changed, while it is: of a process that ends in a hurry another thread
/// puts it back.
static BEFORE: Mutex<Option<(File, libc::termios)>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<(File, libc::termios)>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts the terminal back, if it was changed.
pub fn put_back() {
    if let Some((terminal, mode)) = before().take()
        && let Err(error) = set_mode(terminal.as_raw_fd(), &mode)
    {
        log::warn!("the terminal could not be put back ({error}); `reset` does it");
    }
}

/// The same in a handler of a signal, which can wait for nobody: where another thread is about to change the terminal, it stays
/// as it is.
pub fn put_back_at_once() {
    if let Ok(before) = BEFORE.try_lock()
        && let Some((terminal, mode)) = &*before
    {
        let _ = set_mode(terminal.as_raw_fd(), mode);
    }
}

/// The process is about to be stopped: the terminal is as it was until [`take_again`].
pub fn lend() {
    if let Some((terminal, mode)) = &*before() {
        // Whoever continues us has a terminal that works, or said so when it was put back.
        let _ = set_mode(terminal.as_raw_fd(), mode);
    }
}

/// The process continues after it was stopped: in the foreground the terminal is the console again.
pub fn take_again() {
    if let Some((terminal, mode)) = &*before()
        && is_in_charge(terminal.as_raw_fd())
    {
        let _ = set_mode(terminal.as_raw_fd(), &character_by_character(mode));
    }
}

/// Whether reading and changing the terminal is ours, and would not stop us.
fn is_in_charge(fd: RawFd) -> bool {
    // SAFETY: the call only asks.
    let in_charge = unsafe { libc::tcgetpgrp(fd) };
    // SAFETY: the call only asks, and cannot fail.
    in_charge == unsafe { libc::getpgrp() }
}

fn character_by_character(mode: &libc::termios) -> libc::termios {
    let mut wanted = *mode;
    wanted.c_lflag &= !(libc::ICANON | libc::ECHO);
    wanted
}

/// stdin. Its terminal is put back when this is dropped.
pub struct ConsoleStdin {
    /// Without a buffer: what waits in one is not seen by who waits for the descriptor.
    stdin: File,
    is_terminal: bool,
}

impl std::fmt::Debug for ConsoleStdin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsoleStdin")
            .field("terminal", &self.is_terminal)
            .finish()
    }
}

impl ConsoleStdin {
    /// Takes stdin, `None` when it is a terminal of which another process group is in charge
    /// (reading or changing it would stop us).
    ///
    /// # Errors
    /// When the terminal refuses the mode.
    pub fn open() -> io::Result<Option<Self>> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let fd = stdin.as_raw_fd();
        if !stdin.is_terminal() {
            return Ok(Some(Self {
                stdin,
                is_terminal: false,
            }));
        }
        if !is_in_charge(fd) {
            return Ok(None);
        }
        let mut kept = before();
        let found = mode(fd)?;
        *kept = Some((stdin.try_clone()?, found));
        set_mode(fd, &character_by_character(&found))?;
        Ok(Some(Self {
            stdin,
            is_terminal: true,
        }))
    }

    /// Reads what there is.
    pub fn read(&mut self, into: &mut [u8]) -> ConsoleInput {
        match self.stdin.read(into) {
            Ok(0) => ConsoleInput::End,
            Ok(bytes) => ConsoleInput::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ConsoleInput::Nothing,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ConsoleInput::Nothing,
            Err(_) => ConsoleInput::End,
        }
    }
}

impl Drop for ConsoleStdin {
    fn drop(&mut self) {
        if self.is_terminal {
            put_back();
        }
    }
}

impl AsRawFd for ConsoleStdin {
    fn as_raw_fd(&self) -> RawFd {
        self.stdin.as_raw_fd()
    }
}

fn mode(fd: RawFd) -> io::Result<libc::termios> {
    let mut mode = std::mem::MaybeUninit::uninit();
    // SAFETY: `mode` has room for what the call writes.
    if unsafe { libc::tcgetattr(fd, mode.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has filled the structure.
    Ok(unsafe { mode.assume_init() })
}

fn set_mode(fd: RawFd, mode: &libc::termios) -> io::Result<()> {
    // SAFETY: `mode` is a valid structure; the call only reads it.
    if unsafe { libc::tcsetattr(fd, libc::TCSANOW, mode) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
