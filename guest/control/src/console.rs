//! Formatted lines on the console. A line goes out with one kernel call.

use core::fmt::{self, Write};

use crate::kernel_call;

/// A line being put together; what does not fit goes out early.
struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Line {
    fn send(&mut self) {
        kernel_call::write(self.bytes.get(..self.length).unwrap_or_default());
        self.length = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.length == self.bytes.len() {
                self.send();
            }
            *self.bytes.get_mut(self.length).ok_or(fmt::Error)? = byte;
            self.length += 1;
        }
        Ok(())
    }
}

/// Prints one line; the newline is added.
pub fn print(text: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; 256],
        length: 0,
    };
    // A formatter that fails leaves the line short; there is nobody to tell.
    let _ = line.write_fmt(text);
    let _ = line.write_str("\n");
    line.send();
}
