//! What calls of a function can show: its parameters, and what it returns.

use debuginfo::DebugInfo;
use image::Image;
use terms::function::FunctionId;

use super::evaluate::{Evaluator, typed};
use super::places::Point;
use super::resolve::Capturing;
use crate::capture::Captured;

/// The parameters of a function at its first instruction, in their order; `None` if its types are not known. Parameters that
/// cannot be captured are left out.
#[must_use]
pub fn parameters(image: &Image, debug: &DebugInfo, function: FunctionId) -> Option<Vec<Captured>> {
    let evaluator = Evaluator {
        image,
        debug: Some(debug),
        point: Point::Entry(function),
    };
    let found = evaluator.parameters().ok()?;
    let captured = found.into_iter().filter_map(|variable| {
        let variable = variable.ok()?;
        let name = variable.name.clone();
        Capturing(evaluator)
            .all_of(&name, &typed(variable), None, &name)
            .ok()
    });
    Some(captured.flatten().collect())
}

/// What a function returns, after its return; `None` if it returns nothing, or its types are not known.
#[must_use]
pub fn return_value(image: &Image, debug: &DebugInfo, function: FunctionId) -> Option<Captured> {
    let evaluator = Evaluator {
        image,
        debug: Some(debug),
        point: Point::Return(function),
    };
    let variable = evaluator.returned_variable().ok()??;
    let name = "retval";
    Capturing(evaluator)
        .captured(name, &typed(variable), None, name)
        .ok()
}
