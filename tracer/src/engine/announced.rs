//! Text whose coming and going the guest announces, and waits until we have seen to it.

use terms::addr::Gva;
use terms::function::FunctionId;

use super::{ApplyError, Engine, normalised};
use crate::target::StoppedTarget;
use crate::text::poke::{self, Poke};

impl Engine {
    /// The text of the part that begins at `start` is there: its sites are made one nop, and can be
    /// patched from now on. No function of it may have been called yet. Says how many functions came; none when
    /// no such part is known, or it was there.
    ///
    /// # Errors
    /// An [`ApplyError`] when its bytes are not those of the image; then the part counts as not there.
    pub fn part_came(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        start: Gva,
    ) -> Result<usize, ApplyError> {
        self.check_frozen()?;
        let functions: Vec<FunctionId> = self.functions_at(start);
        let came: Vec<FunctionId> = functions
            .into_iter()
            .filter(|function| self.table.is_gone(*function))
            .collect();
        let has_come = |poke: &Poke| came.binary_search(&poke.function).is_ok();
        let pokes: Vec<Poke> = normalised(&self.image).filter(has_come).collect();
        let written = poke::apply(target, &self.image, &pokes);
        self.note(written)?;
        came.iter().for_each(|function| self.table.came(*function));
        Ok(came.len())
    }

    /// The text of the part that begins at `start` is about to go: it is never written again, and
    /// whatever stands there is forgotten. Says how many functions went.
    pub fn part_goes(&mut self, start: Gva) -> usize {
        let functions = self.functions_at(start);
        let there = functions
            .into_iter()
            .filter(|one| !self.table.is_gone(*one));
        let going: Vec<FunctionId> = there.collect();
        going.iter().for_each(|function| self.table.gone(*function));
        going.len()
    }

    fn functions_at(&self, start: Gva) -> Vec<FunctionId> {
        let part = self.image.part_at(start);
        part.map_or_else(Vec::new, |part| self.image.functions_of(part).collect())
    }
}
