//! How it is noticed, between changes, that the guest is not the one that was traced any more.

use image::Site;
use insn::jump::jump;
use terms::site::SITE_LENGTH;

use super::{Engine, Frozen, FrozenBy};
use crate::patch::functions::FunctionState;
use crate::target::{TargetMemory, TextMemory, VcpuRegisters};

/// Jumps that are looked at.
const SAMPLE: usize = 64;

impl Engine {
    /// Looks whether the guest still executes the text that was changed, with the window where it was put; puts back
    /// what it has cleared of that. `vcpus` are its registers.
    ///
    /// # Errors
    /// What is lost; then nothing was written.
    pub fn look_at_ground<T: TextMemory + ?Sized>(
        &self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
    ) -> Result<(), FrozenBy> {
        let Some(ground) = &self.ground else {
            return Ok(());
        };
        // Before the window: a kernel that was loaded anew at the same place has the same tables, with nothing in them.
        if self.jumps_are_gone(target) {
            return Err(FrozenBy::Replaced);
        }
        Ok(ground.window.verify_with_text(target, vcpus)?)
    }

    /// Tracing has ended for this reason, whatever was its consequence: nothing is written any more.
    pub fn lose_ground(&mut self, why: FrozenBy) {
        self.frozen = Some(Frozen(why));
    }

    /// Whether none of our jumps is where it was written. The guest may write over one or the other.
    fn jumps_are_gone(&self, memory: &(impl TargetMemory + ?Sized)) -> bool {
        let jump_at = |site: &Site| match self.table.state(site.function) {
            FunctionState::Patched(lead) => jump(site.address, lead.stub),
            _ => None,
        };
        let sites = self.image.sites.iter();
        let ours = sites.filter_map(|site| Some((site.address, jump_at(site)?)));
        let stands = |(at, jump)| {
            let mut found = [0; SITE_LENGTH];
            memory.read(at, &mut found).is_ok().then_some(found == jump)
        };
        let mut seen = ours.take(SAMPLE).filter_map(stands).peekable();
        seen.peek().is_some() && !seen.any(|stands| stands)
    }
}
