//! The kill switch: something that must not be was found in the guest's text or page tables.

use super::poke::PokeError;
use super::word::WordError;
use crate::window::WindowError;

/// Nothing is written any more until someone has looked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; nothing will be patched until this has been looked into, the guest goes on")]
pub struct Frozen(pub FrozenBy);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrozenBy {
    /// At a place of the text.
    #[error(transparent)]
    Poke(#[from] PokeError),
    /// At a word of the guest's data.
    #[error(transparent)]
    Word(#[from] WordError),
    /// The window is lost.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The text is another one.
    #[error(
        "none of our jumps is in the guest's text any more: another kernel runs in its place (kexec), or it was loaded anew"
    )]
    Replaced,
}
