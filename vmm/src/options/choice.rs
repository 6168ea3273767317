//! Options that are one of a few: the library's own types, by their own names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use terms::choice::Choice;

/// Parses the name of one.
pub fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let shown = |one: &T| PossibleValue::new(one.name()).help(one.about());
    PossibleValuesParser::new(T::ALL.iter().map(shown)).try_map(|name| {
        let named = T::ALL.iter().find(|one| one.name() == name);
        named.copied().ok_or("none of its values")
    })
}
