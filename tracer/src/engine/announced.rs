//! Text whose coming and going the guest announces, and waits until we have seen to it.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::{ApplyError, Engine};
use crate::target::StoppedTarget;
use crate::text::sites::Sites;

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
        self.sites.check_frozen()?;
        let came = functions_at(&self.image, &self.sites, start, true);
        came.iter().for_each(|function| self.sites.came(*function));
        let written = self
            .commit()
            .make_normal(target, |function| came.binary_search(&function).is_ok());
        if written.is_err() {
            self.sites.gone(came.iter().copied());
        }
        written.map(|_| came.len())
    }

    /// The text of the part that begins at `start` is about to go: it is never written again, and
    /// whatever stands there is forgotten. Says how many functions went.
    pub fn part_goes(&mut self, start: Gva) -> usize {
        let going = functions_at(&self.image, &self.sites, start, false);
        self.sites.gone(going.iter().copied());
        going.len()
    }
}

/// The functions of the part that begins at `start` that are gone, or are there.
fn functions_at(image: &Image, sites: &Sites, start: Gva, gone: bool) -> Vec<FunctionId> {
    let part = image.part_at(start).into_iter();
    let functions = part.flat_map(|part| image.functions_of(part));
    functions
        .filter(|function| sites.is_gone(*function) == gone)
        .collect()
}
