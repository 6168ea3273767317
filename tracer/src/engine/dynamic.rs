//! Dynamic functions of the guest, retargeted from outside. Nothing of it needs the window.

use super::Engine;
use super::plan::{Plan, Step};
use crate::patch::dynamic::{DynamicTable, RetargetError};

impl Engine {
    /// Where the dynamic functions lead.
    #[must_use]
    pub fn dynamic(&self) -> &DynamicTable {
        &self.dynamic
    }

    /// Plans that each named function leads to the target named beside it, or with none to its default.
    ///
    /// # Errors
    /// A [`RetargetError`] for the first that is not possible.
    pub fn plan_dynamic<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Plan, RetargetError> {
        let changes = self.dynamic.plan(&self.image, changes)?;
        Ok(Plan::whole(
            changes.into_iter().map(Step::Dynamic).collect(),
        ))
    }
}
