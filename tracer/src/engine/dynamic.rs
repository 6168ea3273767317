//! Dynamic functions of the guest, retargeted from outside. Nothing of it needs the window.

use super::{ApplyError, Engine};
use crate::patch::dynamic::{DynamicTable, Retarget};
use crate::patch::poke::Poke;
use crate::target::StoppedTarget;

impl Engine {
    /// Where the dynamic functions lead.
    #[must_use]
    pub fn dynamic(&self) -> &DynamicTable {
        &self.dynamic
    }

    /// Brings dynamic functions to what `plan` says, all of them or none.
    ///
    /// # Errors
    /// An [`ApplyError`]; then none was changed. Foreign bytes where our own jump must be freeze
    /// patching.
    pub fn retarget(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &[Retarget],
    ) -> Result<(), ApplyError> {
        self.check_frozen()?;
        let is_current = |change: &Retarget| self.dynamic.is_current(&self.image, change);
        if !plan.iter().all(is_current) {
            return Err(ApplyError::Stale);
        }
        for change in plan.iter().filter(|change| change.is_ours) {
            if let Err(error) = self.look_at(target, &change.poke) {
                return Err(self.freeze(error));
            }
        }
        let pokes: Vec<Poke> = plan.iter().map(|change| change.poke).collect();
        self.transact(target, &pokes)?;
        plan.iter().for_each(|change| self.dynamic.applied(change));
        Ok(())
    }
}
