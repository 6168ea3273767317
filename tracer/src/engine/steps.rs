//! The steps that a commit makes of a plan, and those that cannot be made: what the commit and its proofs both speak of.

use std::collections::BTreeMap;

use image::Image;

use super::plan::PlanStep;
use crate::text::edit::{Displacement, Edit};
use crate::text::poke::PokeError;

/// Steps that cannot be made, by their place among those that are there, and why.
pub(super) type InTheWay = BTreeMap<usize, PokeError>;

/// The steps of a plan whose text is there, in their order.
pub(super) struct Steps<'p>(pub Vec<&'p PlanStep>);

impl<'p> Steps<'p> {
    /// The writes of text, each with the place of its step.
    pub fn writes(&self) -> impl Iterator<Item = (usize, &'p Edit)> {
        let steps = self.0.iter().enumerate();
        let edits =
            steps.flat_map(|(number, step)| step.edits.iter().map(move |edit| (number, edit)));
        edits.filter(|(_, edit)| edit.is_write())
    }

    /// The steps with such a write, and why each cannot be made.
    pub fn those(
        &self,
        image: &Image,
        is_such: impl Fn(&Edit) -> bool,
        why: impl Fn(&Image, &Edit) -> PokeError,
    ) -> InTheWay {
        let such = self.writes().filter(|(_, edit)| is_such(edit));
        such.map(|(step, edit)| (step, why(image, edit))).collect()
    }

    /// Whether a step is one write of text and nothing else.
    pub fn is_one_write(&self, step: usize) -> bool {
        let step = self.0.get(step);
        step.is_some_and(|step| step.edits.len() == 1 && step.word.is_none())
    }

    /// Those that begin to displace instructions.
    pub fn displacing(&self) -> impl Iterator<Item = (usize, &'p Edit)> {
        self.writes()
            .filter(|(_, edit)| edit.displacement == Displacement::Begins)
    }

    /// Those that put displaced instructions back.
    pub fn putting_back(&self) -> impl Iterator<Item = (usize, &'p Edit)> {
        self.writes()
            .filter(|(_, edit)| edit.displacement == Displacement::Ends)
    }
}
