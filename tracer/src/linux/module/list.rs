//! The walk along the guest's list of modules.

use debuginfo::btf::Field;
use image::TextRange;
use terms::addr::Gva;

use super::layout::ModuleLayout;
use crate::introspection::{Loaded, ModuleError};
use crate::module::Module;
use crate::target::TargetMemory;

/// A longer list is none.
const MODULES_MAX: usize = 1024;
/// Where Linux has its modules: within reach of the kernel's text.
pub(in crate::linux) const AREA: TextRange = TextRange {
    start: Gva(0xffff_ffff_8000_0000),
    end: Gva(0xffff_ffff_ff00_0000),
};
/// The largest text that is believed.
const TEXT_MAX: u64 = 64 << 20;
const NAME_MAX: u64 = 64;

/// The modules whose text is there, in the order of the list. Those whose text lies where none can are
/// left out, as are all that overlap an earlier one or `kernel`.
///
/// # Errors
/// A [`ModuleError`] when the list cannot be followed to its end.
pub fn loaded(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    kernel: &[TextRange],
) -> Result<Vec<Loaded>, ModuleError> {
    let mut modules: Vec<Loaded> = Vec::new();
    let mut entry = pointer(memory, layout.head)?;
    for _ in 0..MODULES_MAX {
        if entry == layout.head {
            return Ok(modules);
        }
        let at = Gva(entry.0.wrapping_sub(layout.list));
        if let Some(loaded) = entry_at(memory, layout, at)? {
            let earlier = modules.iter().map(|other| &other.module.text);
            let mut others = kernel.iter().chain(earlier);
            if !others.any(|other| overlap(*other, loaded.module.text)) {
                modules.push(loaded);
            }
        }
        entry = pointer(memory, entry)?;
    }
    Err(ModuleError::Endless(MODULES_MAX))
}

fn entry_at(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    at: Gva,
) -> Result<Option<Loaded>, ModuleError> {
    let state = word(memory, at, layout.state)?;
    if state == u64::from(layout.unformed) {
        return Ok(None);
    }
    let start = Gva(word(memory, at, layout.text_base)?);
    let size = word(memory, at, layout.text_size)?;
    let end = Gva(start.0.saturating_add(size));
    if size == 0 || size > TEXT_MAX || start < AREA.start || end > AREA.end {
        return Ok(None);
    }
    let name = string(memory, at, layout.name)?;
    let is_live = state == u64::from(layout.live);
    Ok((!name.is_empty()).then(|| Loaded {
        module: Module {
            at,
            name: name.into(),
            text: TextRange { start, end },
        },
        is_live,
    }))
}

fn overlap(one: TextRange, other: TextRange) -> bool {
    one.start < other.end && other.start < one.end
}

/// The pointer at `at`.
pub(super) fn pointer(memory: &(impl TargetMemory + ?Sized), at: Gva) -> Result<Gva, ModuleError> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(Gva(u64::from_le_bytes(bytes)))
}

/// A member of four or eight bytes of the struct at `at`.
pub(in crate::linux) fn word(
    memory: &(impl TargetMemory + ?Sized),
    at: Gva,
    field: Field,
) -> Result<u64, ModuleError> {
    let mut bytes = [0; 8];
    let size = if field.size >= 8 { 8 } else { 4 };
    let into = bytes.get_mut(..size).unwrap_or_default();
    memory.read(at.wrapping_add(field.offset), into)?;
    Ok(u64::from_le_bytes(bytes))
}

/// An array of characters, up to its zero; without what no name has.
fn string(
    memory: &(impl TargetMemory + ?Sized),
    at: Gva,
    field: Field,
) -> Result<String, ModuleError> {
    let mut bytes = vec![0; usize::try_from(field.size.min(NAME_MAX)).unwrap_or_default()];
    memory.read(at.wrapping_add(field.offset), &mut bytes)?;
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_name = name.iter().all(u8::is_ascii_graphic);
    Ok(if is_name {
        String::from_utf8_lossy(name).into_owned()
    } else {
        String::new()
    })
}
