//! Text in the image that records point at.

/// A piece of text.
#[derive(Debug)]
#[repr(C)]
pub struct Text {
    bytes: *const u8,
    length: usize,
}

// SAFETY: it points at text that is never written.
unsafe impl Sync for Text {}

impl Text {
    /// This text.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self {
            bytes: text.as_ptr(),
            length: text.len(),
        }
    }
}
