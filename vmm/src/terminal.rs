//! stdin as the guest's console: character by character when it is a terminal, which is put back
//! at the end. Ctrl-C stays the user's: it ends the run.
//!
//! A terminal of which another process group is in charge (after Ctrl-Z and `bg`, or from the start on: `vmm run &`) is neither read nor
//! changed: that would stop us. It was put back before it went there. When it is ours (`fg`) it is the console.

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
    /// What is typed is another process group's, until [`ConsoleStdin::has_come_back`].
    Elsewhere,
    /// The end: nothing will ever come.
    End,
}

/// A terminal that was made the console.
struct Changed {
    terminal: File,
    /// What it was like before; none as long as it was never ours: others have it as they want it.
    before: Option<libc::termios>,
    /// Whether it is another's, as far as we have seen.
    is_lent: bool,
}

/// The terminal, while it is changed: of a process that ends in a hurry another thread puts it back.
static CHANGED: Mutex<Option<Changed>> = Mutex::new(None);

fn changed() -> MutexGuard<'static, Option<Changed>> {
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changed {
    /// It is as it was before. One that is another's is that already, or as that one wants it.
    fn put_back(&self) -> io::Result<()> {
        let fd = self.terminal.as_raw_fd();
        match &self.before {
            Some(before) if is_in_charge(fd) => set_mode(fd, before),
            _ => Ok(()),
        }
    }

    /// Whether it is ours; where it was another's before, it is the console again.
    fn is_ours(&mut self) -> bool {
        let fd = self.terminal.as_raw_fd();
        let is_ours = is_in_charge(fd);
        if is_ours && self.is_lent {
            // Where it refuses, the guest hears of what is typed line by line.
            let _ = self.take();
        }
        self.is_lent = !is_ours;
        is_ours
    }

    /// Makes it the console.
    fn take(&mut self) -> io::Result<()> {
        let fd = self.terminal.as_raw_fd();
        let before = match self.before {
            Some(before) => before,
            None => mode(fd)?,
        };
        self.before = Some(before);
        set_mode(fd, &character_by_character(&before))
    }
}

/// Puts the terminal back, if it was changed.
pub fn put_back() {
    if let Some(changed) = changed().take()
        && let Err(error) = changed.put_back()
    {
        log::warn!("the terminal could not be put back ({error}); `reset` does it");
    }
}

/// The same in a handler of a signal, which can wait for nobody: where another thread is about to change the terminal, it stays
/// as it is.
pub fn put_back_at_once() {
    if let Ok(changed) = CHANGED.try_lock()
        && let Some(changed) = &*changed
    {
        let _ = changed.put_back();
    }
}

/// `stop` stops the process: the terminal is as it was until [`take_again`].
pub fn lend(stop: impl FnOnce()) {
    // Nobody takes it again between here and the stop.
    let mut changed = changed();
    if let Some(changed) = &mut *changed {
        // Whoever continues us has a terminal that works, or said so when it was put back.
        let _ = changed.put_back();
        changed.is_lent = true;
    }
    stop();
}

/// The process continues after it was stopped: in the foreground the terminal is the console again.
pub fn take_again() {
    if let Some(changed) = &mut *changed() {
        // Whoever stopped us without a word left it as it was then, and others can have changed it.
        changed.is_lent = true;
        changed.is_ours();
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
    /// Whether its last read found that it is another's.
    is_elsewhere: bool,
}

impl std::fmt::Debug for ConsoleStdin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsoleStdin")
            .field("terminal", &self.is_terminal)
            .finish()
    }
}

impl ConsoleStdin {
    /// Takes stdin; a terminal of which another process group is in charge when it is ours.
    ///
    /// # Errors
    /// When the terminal refuses the mode.
    pub fn open() -> io::Result<Self> {
        let stdin = Self::of(File::from(io::stdin().as_fd().try_clone_to_owned()?));
        if !stdin.is_terminal {
            return Ok(stdin);
        }
        let mut kept = changed();
        let kept = kept.insert(Changed {
            terminal: stdin.stdin.try_clone()?,
            before: None,
            is_lent: !is_in_charge(stdin.as_raw_fd()),
        });
        if !kept.is_lent {
            kept.take()?;
        }
        Ok(stdin)
    }

    fn of(stdin: File) -> Self {
        Self {
            is_terminal: stdin.is_terminal(),
            is_elsewhere: false,
            stdin,
        }
    }

    /// Reads what there is.
    pub fn read(&mut self, into: &mut [u8]) -> ConsoleInput {
        if self.is_terminal && !changed().as_mut().is_some_and(Changed::is_ours) {
            self.is_elsewhere = true;
            return ConsoleInput::Elsewhere;
        }
        match self.stdin.read(into) {
            Ok(0) => ConsoleInput::End,
            Ok(bytes) => ConsoleInput::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ConsoleInput::Nothing,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ConsoleInput::Nothing,
            Err(_) => ConsoleInput::End,
        }
    }

    /// Whether what is typed is ours again after it was another's. Who is moved to the foreground while it runs (`bg`, then `fg`)
    /// is not told so: this is to be asked now and then.
    pub fn has_come_back(&mut self) -> bool {
        let mut changed = changed();
        let Some(changed) = changed.as_mut().filter(|_| self.is_terminal) else {
            return false;
        };
        let is_ours = !changed.is_lent || changed.is_ours();
        is_ours && std::mem::take(&mut self.is_elsewhere)
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    /// Both ends of a terminal of which nobody of ours is in charge.
    fn of_others() -> (File, File) {
        let (mut ours, mut theirs) = (-1, -1);
        let (name, mode, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: the call writes the two descriptors, which outlive it, and is told to read and write nothing else.
        let made = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, mode, size) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        let file = |fd| {
            // SAFETY: the descriptor is new and nobody else's.
            unsafe { File::from_raw_fd(fd) }
        };
        (file(ours), file(theirs))
    }

    /// A run that was in the background was stopped by its own end, and by what was typed elsewhere.
    #[test]
    fn a_terminal_of_which_others_are_in_charge_is_neither_read_nor_changed() {
        let (mut keyboard, terminal) = of_others();
        let fd = terminal.as_raw_fd();
        let before = mode(fd).unwrap();
        set_mode(fd, &character_by_character(&before)).unwrap();
        let is_changed = || mode(fd).unwrap().c_lflag & libc::ECHO == 0;
        let lent = |is_lent| {
            *changed() = Some(Changed {
                terminal: terminal.try_clone().unwrap(),
                before: Some(before),
                is_lent,
            });
        };
        lent(false);
        let mut stdin = ConsoleStdin::of(terminal.try_clone().unwrap());
        keyboard.write_all(b"for somebody else").unwrap();
        assert_eq!(stdin.read(&mut [0; 16]), ConsoleInput::Elsewhere);
        assert!(!stdin.has_come_back());
        put_back_at_once();
        let mut is_stopped = false;
        lend(|| is_stopped = true);
        assert!(is_stopped && is_changed());
        drop(stdin);
        assert!(is_changed() && changed().is_none());
        set_mode(fd, &before).unwrap();
        lent(true);
        take_again();
        assert!(!is_changed());
        put_back();
    }

    #[test]
    fn what_is_no_terminal_is_read_whoever_is_in_charge() {
        let (read, mut write) = io::pipe().unwrap();
        let mut stdin = ConsoleStdin::of(File::from(OwnedFd::from(read)));
        write.write_all(b"typed").unwrap();
        assert_eq!(stdin.read(&mut [0; 16]), ConsoleInput::Bytes(5));
        assert!(!stdin.has_come_back());
        drop(write);
        assert_eq!(stdin.read(&mut [0; 16]), ConsoleInput::End);
    }
}
