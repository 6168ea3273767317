//! What comes to a kernel while it runs.

use std::sync::Arc;

use image::TextRange;
use terms::addr::Gva;

/// A module that is loaded: as long as all of this is the same, so is the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Where the guest describes it.
    pub at: Gva,
    /// Its name.
    pub name: Arc<str>,
    /// Its text that stays.
    pub text: TextRange,
}
