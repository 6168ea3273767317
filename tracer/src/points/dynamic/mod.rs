//! Where each dynamic function leads, and the plan that changes it.
//!
//! A dynamic function is a jump of five bytes in one cache line: one instruction, so a thread that was
//! preempted at it goes to the new target, and one that has passed it is in the old one. The jump of the
//! image leads to the default; retargeting is a poke like that of any site.

use std::collections::BTreeSet;
use std::fmt;

use image::{DynamicFunction, Image};
use insn::jump::jump;
use terms::addr::Gva;
use terms::site::SiteBytes;

use crate::text::edit::{Edit, Lead, Point, Wanted};
use crate::text::sites::Sites;

/// Why a dynamic function cannot be retargeted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetargetError {
    /// The image declares none.
    #[error("the image declares no dynamic functions")]
    None,
    /// The kernel retargets it itself.
    #[error(
        "{0} is a static call of the kernel, which changes it itself: it is listed, and left alone"
    )]
    StaticCall(String),
    /// No such function.
    #[error("there is no dynamic function '{name}'; there are: {there}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// Two changes of one function.
    #[error("{0} is there twice: it can lead to one target only")]
    Twice(String),
    /// The target takes or gives something else.
    #[error("{name} is {types}: it cannot lead to {target}, which is {other}")]
    Signature {
        /// The dynamic function.
        name: String,
        /// Its types.
        types: String,
        /// The target asked for.
        target: String,
        /// The types of that one.
        other: String,
    },
    /// The target is declared nowhere, so its signature is not known.
    #[error("'{target}' is no target of {name}; these are: {targets}")]
    NotATarget {
        /// The dynamic function.
        name: String,
        /// The target asked for.
        target: String,
        /// Those that are possible.
        targets: String,
    },
    /// A jump does not reach so far.
    #[error("{name} at {from} cannot lead to {to}: it is more than 2 GiB away")]
    OutOfReach {
        /// The dynamic function.
        name: String,
        /// Its jump.
        from: Gva,
        /// The target.
        to: Gva,
    },
}

/// Where a dynamic function leads now.
#[must_use]
pub fn target(sites: &Sites, function: &DynamicFunction) -> Gva {
    let lead = sites.lead(Point::Dynamic, function.jump);
    lead.map_or(function.default, |lead| lead.to)
}

/// Plans that each named function leads to the target named beside it, or with none to its default: what changes, and
/// where each leads then.
///
/// # Errors
/// A [`RetargetError`] for the first that is not possible.
pub fn plan<'a>(
    image: &Image,
    sites: &mut Sites,
    changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<Vec<(Gva, Edit)>, RetargetError> {
    let mut named = BTreeSet::new();
    let mut all = Vec::new();
    for (name, target) in changes {
        let function = find(image, name)?;
        if !named.insert(function.jump) {
            return Err(RetargetError::Twice(name.to_owned()));
        }
        let to = match target {
            Some(target) => resolve(image, function, target)?,
            None => function.default,
        };
        all.push((to, wanted(function, to)?));
    }
    let edits = all.into_iter().map(|(to, wanted)| (to, sites.edit(wanted)));
    Ok(edits.filter_map(|(to, edit)| Some((to, edit?))).collect())
}

/// What is wanted at the jump of a function that leads there.
fn wanted(function: &DynamicFunction, to: Gva) -> Result<Wanted, RetargetError> {
    let bytes = |to| {
        jump(function.jump, to)
            .map(SiteBytes::new)
            .ok_or_else(|| RetargetError::OutOfReach {
                name: function.name.to_string(),
                from: function.jump,
                to,
            })
    };
    let lead = Lead {
        to,
        ..Lead::default()
    };
    let ours = (to != function.default)
        .then(|| bytes(to))
        .transpose()?
        .map(|bytes| (bytes, lead));
    Ok(Wanted::new(
        Point::Dynamic,
        function.function,
        function.jump,
        bytes(function.default)?,
        ours,
    ))
}

fn find<'a>(image: &'a Image, name: &str) -> Result<&'a DynamicFunction, RetargetError> {
    if let Some(call) = image.static_calls.iter().find(|call| *call.name == *name) {
        return Err(RetargetError::StaticCall(call.name.to_string()));
    }
    if image.dynamic.is_empty() {
        return Err(RetargetError::None);
    }
    let mut functions = image.dynamic.iter();
    functions
        .find(|function| &*function.name == name)
        .ok_or_else(|| RetargetError::Unknown {
            name: name.escape_default().to_string(),
            there: list(image.dynamic.iter().map(|function| &*function.name)),
        })
}

/// The address of the target of that name. What a function's signature is, is known of declared targets
/// only: those of the function itself, and those of others of the same signature.
fn resolve(image: &Image, function: &DynamicFunction, target: &str) -> Result<Gva, RetargetError> {
    let is_named = |at: &Gva| {
        let there = image.function_at(*at).and_then(|id| image.function(id));
        there.is_some_and(|there| there.address == *at && there.names().any(|name| name == target))
    };
    let mut declared = image
        .dynamic
        .iter()
        .filter_map(|other| Some((other, *other.targets.iter().find(|at| is_named(at))?)));
    let same = |(other, _): &(&DynamicFunction, Gva)| other.signature == function.signature;
    if let Some((_, at)) = declared.clone().find(same) {
        return Ok(at);
    }
    let name = function.name.to_string();
    match declared.next() {
        Some((other, _)) => Err(RetargetError::Signature {
            name,
            types: function.types.to_string(),
            target: target.to_owned(),
            other: other.types.to_string(),
        }),
        None => Err(RetargetError::NotATarget {
            name,
            target: target.escape_default().to_string(),
            targets: list(function.targets.iter().map(|at| image.name_at(*at))),
        }),
    }
}

fn list<T: fmt::Display>(names: impl Iterator<Item = T>) -> String {
    names
        .map(|name| name.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests;
