//! Text whose coming and going the guest announces, and waits until we have seen to it.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::{ApplyError, Engine};
use crate::patch::functions::FunctionTable;
use crate::patch::normalise::normalisations;
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
        self.written.check_frozen()?;
        let functions = &mut self.points.functions;
        let came = functions_at(&self.image, functions, start, true);
        let has_come = |poke: &Poke| came.binary_search(&poke.function).is_ok();
        let pokes = normalisations(&self.image).into_iter().filter(has_come);
        let written = poke::apply(target, &self.image, &pokes.collect::<Vec<_>>());
        self.written.note(written)?;
        came.iter().for_each(|function| functions.came(*function));
        Ok(came.len())
    }

    /// The text of the part that begins at `start` is about to go: it is never written again, and
    /// whatever stands there is forgotten. Says how many functions went.
    pub fn part_goes(&mut self, start: Gva) -> usize {
        let functions = &mut self.points.functions;
        let going = functions_at(&self.image, functions, start, false);
        going.iter().for_each(|function| functions.gone(*function));
        going.len()
    }
}

/// The functions of the part that begins at `start` that are gone, or are there.
fn functions_at(image: &Image, table: &FunctionTable, start: Gva, gone: bool) -> Vec<FunctionId> {
    let part = image.part_at(start).into_iter();
    let functions = part.flat_map(|part| image.functions_of(part));
    functions
        .filter(|function| table.is_gone(*function) == gone)
        .collect()
}
