//! Dynamic functions of the guest, retargeted from outside. Nothing of it needs the window.

use super::{ApplyError, Engine, Write};
use crate::patch::dynamic::{DynamicTable, Retarget};
use crate::patch::live;
use crate::patch::poke::{self, Poke};
use crate::target::{LiveTarget, StoppedTarget, TargetMemory};

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
        self.carry_out_retarget(target, plan, poke::apply)
    }

    /// The same while the guest runs. Each function leads to its old target or to its new one; of several,
    /// one can lead to its new target while another still leads to its old one.
    ///
    /// # Errors
    /// As [`Self::retarget`].
    pub fn retarget_live(
        &mut self,
        target: &mut (impl LiveTarget + ?Sized),
        plan: &[Retarget],
    ) -> Result<(), ApplyError> {
        self.carry_out_retarget(target, plan, live::apply)
    }

    fn carry_out_retarget<T: TargetMemory + ?Sized>(
        &mut self,
        target: &mut T,
        plan: &[Retarget],
        write: Write<T>,
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
        let written = write(target, &self.image, &pokes);
        self.note(written)?;
        plan.iter().for_each(|change| self.dynamic.applied(change));
        Ok(())
    }
}
