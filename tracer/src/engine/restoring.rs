//! What a tracer that was killed has left in a guest is given back, from the guest's memory alone: the title of its window says
//! where the journal is, the journal says which text is ours.
//!
//! The guest can have written to all of that. It is used on the guest only, and only where what stands there is what was put
//! there: a guest that forges it harms itself.

use terms::addr::Gva;
use terms::region::Region;

use super::Inside;
use super::leaving::{Leaving, Stubs};
use crate::introspection::Introspection;
use crate::target::{MemoryError, StoppedTarget, TextMemory};
use crate::text::journal::{self, Entry, Found, JournalError};
use crate::window::left::{self, Told};
use crate::window::title::TitleError;

/// What was given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restored {
    /// Places of text, and words that led to us, that have what stood there.
    pub places: u64,
    /// Those at which somebody else's bytes stand now: they were left alone.
    pub others: u64,
    /// What still leads to the window. Nobody: then its entries are out of the guest's page tables.
    pub inside: Inside,
}

/// Why it was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// What is said of the window.
    #[error(transparent)]
    Title(#[from] TitleError),
    /// What is said of the text.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No vCPU is where its kernel is: firmware executes, or another kernel.
    #[error(
        "the page tables of the guest's vCPUs do not show its kernel just now, whose text at {text} was changed: try again"
    )]
    NotShown {
        /// Where it begins.
        text: Gva,
    },
    /// The guest's memory says no.
    #[error("what stood in the guest cannot be put back: {0}")]
    Memory(#[from] MemoryError),
}

/// Gives the guest back what a tracer that is dead has changed, whose window is in `region`. To be called again, after the
/// guest has run for a moment, while something leads to the window. `kernel` can be asked what does.
///
/// # Errors
/// A [`RestoreError`]; what has been given back by then stays so, and the rest can be tried again.
pub fn restore(
    target: &mut (impl StoppedTarget + ?Sized),
    region: Region,
    kernel: Option<&dyn Introspection>,
    leaving: Leaving,
) -> Result<Restored, RestoreError> {
    let Some(told) = Told::read(target, region)? else {
        return Ok(Restored::default());
    };
    // What cannot be read may lead to us all the same. A guest that has started anew has other page tables.
    if target.read(told.text, &mut [0]).is_err() && told.is_shown(target)? {
        let text = told.text;
        return Err(RestoreError::NotShown { text });
    }
    let stubs = Stubs {
        start: told.stubs,
        bytes: told.stub_bytes,
    };
    let entries = told.journal.map(|at| journal::read(target, region, at));
    let mut restored = give_text_back(target, &entries.transpose()?.unwrap_or_default(), stubs)?;
    // Who comes later looks at all of it again as long as something of it leads to us.
    let leads = restored.inside.breakpoints + restored.inside.jumps;
    if let Some(at) = told.journal.filter(|_| leads == 0) {
        journal::forget(target, at)?;
    }
    restored.inside = Inside {
        breakpoints: restored.inside.breakpoints,
        jumps: restored.inside.jumps,
        ..stubs.left_by(target, told.mirror, kernel, leaving)?
    };
    if restored.inside.is_nobody() {
        told.take_back(target)?;
        left::forget(target, region)?;
    }
    Ok(restored)
}

/// Puts back what stood at `entries` where it is ours still. What leads to `stubs` from there all the same is said.
fn give_text_back(
    target: &mut (impl TextMemory + ?Sized),
    entries: &[Entry],
    stubs: Stubs,
) -> Result<Restored, MemoryError> {
    let mut restored = Restored::default();
    for entry in entries {
        let Ok(found) = entry.original.like(|bytes| target.read(entry.at, bytes)) else {
            // Its memory is gone.
            restored.others += 1;
            continue;
        };
        match entry.found(found) {
            Found::Original => {}
            Found::Ours | Found::Cut => {
                target.write(entry.at, entry.original.as_slice())?;
                restored.places += 1;
            }
            Found::Covered => restored.inside.breakpoints += 1,
            // Left alone, and so is what it leads to.
            Found::Others { leads_to } => {
                restored.others += 1;
                let leads_to_us = leads_to.is_some_and(|to| stubs.hold(to.0));
                restored.inside.jumps += u64::from(leads_to_us);
            }
        }
    }
    Ok(restored)
}
