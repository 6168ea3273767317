//! The proofs that text may be written now, as the commit uses them: what each has to find out before, and how it writes.
//!
//! ```text
//!   Stopped   nobody executes anything               anything, if no thread is inside
//!   Live      somebody serves breakpoints            single instructions, and words of data
//!   Running   an aligned word is seen old or new     single instructions in one word each
//! ```

use image::Image;

use super::ApplyError;
use super::saved::occupied;
use super::steps::{InTheWay, Steps};
use crate::introspection::Introspection;
use crate::target::{
    AtomicTarget, LiveTarget, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters,
};
use crate::text::atomic::{self, Left, Shared};
use crate::text::edit::Edit;
use crate::text::live;
use crate::text::poke::{self, Poke, PokeError, TransactionError, symbol};
use crate::text::word::{self, WordError, WordWrite};
use crate::window::{Window, WindowError};

/// A proof that text may be written now.
pub(super) trait Proof {
    /// What is written to.
    type Target: TargetMemory + PhysicalMemory + ?Sized;

    /// What is written to, to be read.
    fn target(&self) -> &Self::Target;

    /// The registers of the vCPUs; none where nobody has asked for them.
    fn vcpus(&self) -> &[VcpuRegisters];

    /// Whether the guest sees the window where it was put; where it can be, what it has cleared is put back.
    ///
    /// # Errors
    /// A [`WindowError`].
    fn check_window(&mut self, window: &Window) -> Result<(), WindowError>;

    /// The steps that cannot be made under this proof, or not now.
    ///
    /// # Errors
    /// An [`ApplyError`] when that cannot be found out.
    fn in_the_way(&self, image: &Image, steps: &Steps<'_>) -> Result<InTheWay, ApplyError>;

    /// Writes all of `pokes`, or none; says which of those that are `shared` the guest was faster at.
    ///
    /// # Errors
    /// [`TransactionError`].
    fn write(
        &mut self,
        image: &Image,
        pokes: &[Poke],
        shared: &dyn Fn(usize) -> Shared,
    ) -> Result<Left, TransactionError>;

    /// Writes words of the guest's data.
    ///
    /// # Errors
    /// [`WordError`]; then none of them.
    fn write_words(&mut self, words: &[&WordWrite]) -> Result<(), WordError>;
}

/// Nobody executes anything.
#[derive(Debug)]
pub(super) struct Stopped<'t, T: ?Sized> {
    target: &'t mut T,
    vcpus: Vec<VcpuRegisters>,
}

impl<'t, T: StoppedTarget + ?Sized> Stopped<'t, T> {
    pub fn of(target: &'t mut T) -> Self {
        let vcpus = target.vcpus().to_vec();
        Self { target, vcpus }
    }
}

impl<T: StoppedTarget + ?Sized> Proof for Stopped<'_, T> {
    type Target = T;

    fn target(&self) -> &T {
        self.target
    }

    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.vcpus
    }

    fn check_window(&mut self, window: &Window) -> Result<(), WindowError> {
        window.verify_seen_by(self.target, &self.vcpus)
    }

    /// Those that close places at which threads may continue.
    fn in_the_way(&self, image: &Image, steps: &Steps<'_>) -> Result<InTheWay, ApplyError> {
        let closed = steps.writes().flat_map(|(step, edit)| {
            let places = edit.closes.iter();
            places.map(move |at| (*at, step, edit.poke))
        });
        occupied(image, self.target, closed.collect())
    }

    fn write(
        &mut self,
        image: &Image,
        pokes: &[Poke],
        _: &dyn Fn(usize) -> Shared,
    ) -> Result<Left, TransactionError> {
        poke::apply(self.target, image, pokes).map(|()| Left::new())
    }

    fn write_words(&mut self, words: &[&WordWrite]) -> Result<(), WordError> {
        word::write(self.target, words.iter().copied())
    }
}

/// Somebody serves breakpoints, and every vCPU can be made to fetch anew.
#[derive(Debug)]
pub(super) struct Live<'t, T: ?Sized>(pub &'t mut T);

impl<T: LiveTarget + ?Sized> Proof for Live<'_, T> {
    type Target = T;

    fn target(&self) -> &T {
        self.0
    }

    fn vcpus(&self) -> &[VcpuRegisters] {
        &[]
    }

    fn check_window(&mut self, window: &Window) -> Result<(), WindowError> {
        untouched(self.0, window)
    }

    /// Those that close places.
    fn in_the_way(&self, image: &Image, steps: &Steps<'_>) -> Result<InTheWay, ApplyError> {
        let needs_stop = |image: &Image, edit: &Edit| PokeError::NeedsStop {
            symbol: symbol(image, edit.poke.function),
            at: edit.poke.at,
        };
        let joining = |edit: &Edit| edit.joins_instructions();
        Ok(steps.those(image, joining, needs_stop))
    }

    fn write(
        &mut self,
        image: &Image,
        pokes: &[Poke],
        _: &dyn Fn(usize) -> Shared,
    ) -> Result<Left, TransactionError> {
        live::apply(self.0, image, pokes).map(|()| Left::new())
    }

    fn write_words(&mut self, words: &[&WordWrite]) -> Result<(), WordError> {
        word::write(self.0, words.iter().copied())
    }
}

/// While vCPUs run nobody says with which page tables: all that can be told of the window is whether its entries are as
/// they were written.
fn untouched(memory: &(impl PhysicalMemory + ?Sized), window: &Window) -> Result<(), WindowError> {
    match window.is_untouched(memory) {
        true => Ok(()),
        false => Err(WindowError::Touched),
    }
}

/// Every vCPU runs, and nobody knows of the change.
#[derive(Debug)]
pub(super) struct Running<'t, T: ?Sized> {
    pub target: &'t mut T,
    /// Who can be asked whether the guest changes its own text meanwhile.
    pub inside: Option<&'t dyn Introspection>,
}

impl<T: AtomicTarget + ?Sized> Proof for Running<'_, T> {
    type Target = T;

    fn target(&self) -> &T {
        self.target
    }

    fn vcpus(&self) -> &[VcpuRegisters] {
        &[]
    }

    fn check_window(&mut self, window: &Window) -> Result<(), WindowError> {
        untouched(self.target, window)
    }

    /// Those that are more than one instruction in one word.
    fn in_the_way(&self, image: &Image, steps: &Steps<'_>) -> Result<InTheWay, ApplyError> {
        let not_one_word = |image: &Image, edit: &Edit| PokeError::NotOneWord {
            symbol: symbol(image, edit.poke.function),
            at: edit.poke.at,
        };
        let is_other = |edit: &Edit| !edit.is_of_one_word();
        Ok(steps.those(image, is_other, not_one_word))
    }

    fn write(
        &mut self,
        image: &Image,
        pokes: &[Poke],
        shared: &dyn Fn(usize) -> Shared,
    ) -> Result<Left, TransactionError> {
        let inside = self.inside;
        let patches = |memory: &T| inside?.changes_text(&memory);
        atomic::apply(self.target, image, pokes, shared, patches)
    }

    /// There are none: see [`super::plan::PlanStep::is_of_words`].
    fn write_words(&mut self, words: &[&WordWrite]) -> Result<(), WordError> {
        match words.first() {
            None => Ok(()),
            Some(word) => Err(WordError::NeedsStop {
                what: std::sync::Arc::clone(&word.what),
                at: word.at,
            }),
        }
    }
}
