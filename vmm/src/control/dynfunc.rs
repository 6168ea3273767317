//! The methods `dynfunc.*`: what they take.

use serde::{Deserialize, Serialize};
use tracer::tracing::status::DynamicChange;

/// `dynfunc.set`: where dynamic functions are to lead, all at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetDynamic {
    /// One for each function.
    pub changes: Vec<DynamicChange>,
}

/// `dynfunc.reset`: which dynamic functions are to lead where they did when the guest was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetDynamic {
    /// Their names.
    pub names: Vec<String>,
}
