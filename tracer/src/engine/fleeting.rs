//! Text that does not stay: the guest frees it at a moment of its own. The rule that makes this safe
//! is that nothing is written but while the guest is stopped, and that the guest is asked *then* what
//! is still there. It cannot free anything between the answer and the write.

use super::Engine;
use crate::event::FunctionId;
use crate::target::PhysicalMemory;

impl Engine {
    /// Looks what the guest has given back since the last time, and forgets it. While the guest is
    /// stopped the answer holds until it goes on; else it may be late, never wrong.
    pub fn look(&mut self, memory: &(impl PhysicalMemory + ?Sized)) {
        let Some(linux) = &self.image.linux else {
            return;
        };
        if self.init_is_gone || !linux.init_is_gone(memory) {
            return;
        }
        self.init_is_gone = true;
        for site in &self.image.sites {
            if !linux.lasts(site.address) {
                self.table.gone(site.function);
            }
        }
    }

    /// Whether this function's memory was given back.
    #[must_use]
    pub fn is_gone(&self, function: FunctionId) -> bool {
        self.table.is_gone(function)
    }

    /// How many functions with a site are gone.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.table.count_gone()
    }
}
