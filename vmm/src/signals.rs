//! SIGINT, SIGTERM and SIGHUP as a file that the event loop reads, so that they end a run cleanly.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use vmm_sys_util::signal::{block_signal, create_sigset};

/// The blocked signals, readable.
#[derive(Debug)]
pub struct Signals(File);

impl Signals {
    /// Blocks the signals in this thread, and in all threads that it creates afterwards. So is
    /// SIGXFSZ: a trace that outgrows a limit is an error of its write, not the end of the VMM.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn block() -> io::Result<Self> {
        let wanted = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        for signal in wanted.into_iter().chain([libc::SIGXFSZ]) {
            block_signal(signal).map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        let set =
            create_sigset(&wanted).map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        // SAFETY: `set` is an initialised signal set; the call creates a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Takes the signals that have arrived. Says whether there was one.
    pub fn take(&mut self) -> bool {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let mut any = false;
        while matches!(self.0.read(&mut record), Ok(bytes) if bytes > 0) {
            any = true;
        }
        any
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
