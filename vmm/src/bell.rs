//! A bell that threads that read rings ring for the main thread.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Rung by anybody, heard by the event loop.
#[derive(Debug, Clone)]
pub struct Bell(Arc<EventFd>);

impl Bell {
    /// One that nobody has rung.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(EventFd::new(EFD_NONBLOCK)?)))
    }

    /// Has the event loop look.
    pub fn ring(&self) {
        // Its counter cannot be full: it is read long before it has been rung so often.
        let _ = self.0.write(1);
    }

    /// It has been heard.
    pub fn heard(&self) {
        // It was rung, or another wake-up was for it.
        let _ = self.0.read();
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
