//! Numbers out of an input, zeros after its end.

/// What is left of an input.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    /// The next two.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// The next eight.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// The next so many.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (taken, left) = self.0.split_at(N.min(self.0.len()));
        bytes[..taken.len()].copy_from_slice(taken);
        self.0 = left;
        bytes
    }
}
