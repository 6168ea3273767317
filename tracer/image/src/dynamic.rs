//! Dynamic functions: functions that are one `jmp` to one of several others, listed in the section
//! `__dynamic_functions`.
//!
//! ```text
//! record    jump | name, length | signature (2 words) | types, length | targets, count
//! targets   address, address, …
//! ```

use std::sync::Arc;

use insn::jump::jump_target;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::Image;
use super::elf::Elf;
use super::points::{Signature, records, text, words};

/// The name of the section.
const SECTION: &str = "__dynamic_functions";
/// Targets of one dynamic function, at most.
const TARGETS_MAX: u64 = 256;
/// More than any guest has; each is compared with those before it.
const FUNCTIONS_MAX: usize = 1 << 13;
/// A jump must lie in one of these, so that it changes for everybody at once.
const CACHE_LINE: u64 = 64;

/// One dynamic function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicFunction {
    /// What its callers call it.
    pub name: Arc<str>,
    /// The function that is the jump.
    pub function: FunctionId,
    /// The jump: five bytes.
    pub jump: Gva,
    /// What every target must have, too.
    pub signature: Signature,
    /// The same for people.
    pub types: Arc<str>,
    /// Where the jump leads in the image.
    pub default: Gva,
    /// Where it may lead, by the guest's own word.
    pub targets: Vec<Gva>,
}

/// Reads the section. What is not as it should be is left out, with a remark.
pub(super) fn read(elf: &Elf<'_>, image: &mut Image) {
    let mut notes = Vec::new();
    for (_, record) in records(elf, SECTION, &mut notes) {
        if image.dynamic.len() >= FUNCTIONS_MAX {
            notes.push(format!(
                "{SECTION}: only the first {FUNCTIONS_MAX} are used"
            ));
            break;
        }
        match one(elf, image, record) {
            Ok(function) => image.dynamic.push(function),
            Err(why) => notes.push(format!("{SECTION}: {why}, ignored")),
        }
    }
    if !image.dynamic.is_empty() {
        notes.push(format!("{SECTION}: {} functions", image.dynamic.len()));
    }
    image.notes.append(&mut notes);
}

fn one(elf: &Elf<'_>, image: &Image, record: [u64; 9]) -> Result<DynamicFunction, String> {
    let [
        jump,
        name,
        name_length,
        id,
        id_high,
        types,
        types_length,
        targets,
        count,
    ] = record;
    let jump = Gva(jump);
    let named = text(elf, name, name_length).filter(|name| !name.contains(' '));
    let name = named.ok_or_else(|| format!("the function at {jump} has no name"))?;
    let bad = |what: &str| format!("{name} at {jump} {what}");
    if image
        .dynamic
        .iter()
        .any(|other| *other.name == *name || other.jump == jump)
    {
        return Err(bad("is there twice"));
    }
    let types = text(elf, types, types_length).ok_or_else(|| bad("has no types"))?;
    let (function, default) = jump_at(elf, image, jump).map_err(bad)?;
    let targets = words(elf, targets, count, TARGETS_MAX);
    let targets: Vec<Gva> = targets.unwrap_or_default().into_iter().map(Gva).collect();
    let is_target = |at: &Gva| image.is_text(*at, 1);
    if !targets.contains(&default) || !targets.iter().all(is_target) {
        return Err(bad(
            "has no list of targets in the text with its own one in it",
        ));
    }
    Ok(DynamicFunction {
        name: name.into(),
        function,
        jump,
        signature: Signature([id, id_high]),
        types: types.into(),
        default,
        targets,
    })
}

/// The function that is the jump at `jump`, and where it leads.
///
/// # Errors
/// What it is instead.
pub(super) fn jump_at(
    elf: &Elf<'_>,
    image: &Image,
    jump: Gva,
) -> Result<(FunctionId, Gva), &'static str> {
    if !image.is_text(jump, SITE_LENGTH as u64) {
        return Err("is not in the text");
    }
    if jump.0 % CACHE_LINE > CACHE_LINE - SITE_LENGTH as u64 {
        return Err("has a jump in two cache lines");
    }
    let function = image.function_at(jump).filter(|id| {
        let start = image.function(*id).map(|function| function.address);
        start == Some(jump)
    });
    let function = function.ok_or("has a jump that is no function")?;
    let bytes = elf.bytes_at(jump, SITE_LENGTH as u64).try_into().ok();
    let to = bytes.and_then(|bytes| jump_target(jump, bytes));
    to.map(|to| (function, to)).ok_or("has no jump")
}
