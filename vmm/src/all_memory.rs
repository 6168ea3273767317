//! The capability to write a guest's memory, wherever it lies: who stops the guest lends it.

use terms::addr::Gpa;
use terms::region::Region;
use tracer::target::{MemoryError, PhysicalMemory};

/// All of a guest's memory, to be written: one value for each guest, which who has stopped it borrows.
pub(crate) trait AllMemory: PhysicalMemory {
    /// All memory but the window.
    fn ram(&self) -> Vec<Region>;

    /// Whether all of the range is memory.
    fn contains(&self, at: Gpa, length: usize) -> bool;

    /// Copies `bytes` into it at `at`.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when any byte lies outside of it; then nothing was written.
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError>;

    /// Copies from many places at once, where that is less work.
    ///
    /// # Errors
    /// A [`MemoryError`].
    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        let mut all = places.iter_mut();
        all.try_for_each(|(at, into)| self.read_physical(*at, into))
    }

    /// Copies to many places at once.
    ///
    /// # Errors
    /// A [`MemoryError`]; then some may have been written.
    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        let mut all = places.iter();
        all.try_for_each(|(at, bytes)| self.write(*at, bytes))
    }

    /// Copies `bytes` into the window.
    ///
    /// # Errors
    /// [`MemoryError::NotWindow`]; then nothing was written.
    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError>;
}

impl<R: AllMemory> AllMemory for &R {
    fn ram(&self) -> Vec<Region> {
        (**self).ram()
    }

    fn contains(&self, at: Gpa, length: usize) -> bool {
        (**self).contains(at, length)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        (**self).write(at, bytes)
    }

    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        (**self).read_all(places)
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        (**self).write_all(places)
    }

    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        (**self).write_window(at, bytes)
    }
}
