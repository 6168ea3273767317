//! Parts of an image that come or go while the guest runs, and that it announces: init text, and modules
//! that are linked into the image.
//!
//! A linked-in module is a complete ELF executable in a section `.module.NAME`, with symbols and a call-site
//! list of its own; the guest copies it to where it was linked. Its functions are in the image from
//! the beginning, so that they have numbers and names before they are there.

use std::sync::Arc;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use super::elf::Elf;
use super::{Image, Site, SkippedSite, TextRange, Untraceable};

/// What the names of sections with modules begin with.
pub(super) const MODULE: &str = ".module.";
/// What bounds init text, by the names that Linux has for it.
const INIT: (&str, &str) = ("_sinittext", "_einittext");

/// A part of the image with a lifetime of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// `init`, or the module's name.
    pub name: Arc<str>,
    /// Its text, from its first function on.
    pub text: TextRange,
    /// Whether it is there when the guest starts.
    pub at_start: bool,
}

/// Finds the parts of `image`, everything else of which is known. Linux is asked what it has freed.
pub(super) fn locate(image: &mut Image, elf: &Elf<'_>) {
    if image.linux.is_some() {
        return;
    }
    let (start, end) = INIT;
    let bounds = image
        .symbols
        .address_of(start)
        .zip(image.symbols.address_of(end));
    if let Some((start, end)) = bounds.filter(|(start, end)| start < end) {
        image.parts.push(Part {
            name: Arc::from("init"),
            text: TextRange { start, end },
            at_start: true,
        });
    }
    for (name, bytes) in elf.sections_starting_with(MODULE) {
        let module = Elf::parse(bytes).and_then(|elf| Image::alone(&elf));
        let module = module.map_err(|error| error.to_string());
        if let Err(reason) = module.and_then(|module| image.merge(&name, module)) {
            image.notes.push(format!("module {name}: {reason}"));
        }
    }
}

impl Image {
    /// Appends the functions of a module, which must lie above all others.
    fn merge(&mut self, name: &str, module: Self) -> Result<(), String> {
        let (Some(first), Some(text)) = (module.functions.first(), module.text.last()) else {
            return Err("it has no functions".to_owned());
        };
        let start = first.address;
        let end = |function: &Function| function.address.wrapping_add(function.size);
        if self.functions.last().is_some_and(|last| end(last) > start) {
            return Err(format!("its text at {start} is not above all other"));
        }
        let before = u32::try_from(self.functions.len()).map_err(|error| error.to_string())?;
        let shifted = |id: FunctionId| FunctionId(id.0 + before);
        self.parts.push(Part {
            name: Arc::from(name),
            text: TextRange {
                start,
                end: text.end,
            },
            at_start: false,
        });
        let name: Arc<str> = Arc::from(name);
        self.functions
            .extend(module.functions.into_iter().map(|function| Function {
                module: Some(Arc::clone(&name)),
                ..function
            }));
        self.sites.extend(module.sites.into_iter().map(|site| Site {
            function: shifted(site.function),
            ..site
        }));
        self.untraceable
            .extend(module.untraceable.into_iter().map(|entry| Untraceable {
                function: shifted(entry.function),
                ..entry
            }));
        self.skipped
            .extend(module.skipped.into_iter().map(|place| SkippedSite {
                function: place.function.map(shifted),
                ..place
            }));
        self.notes.push(format!(
            "module {name}: {} functions",
            self.functions.len() - before as usize
        ));
        Ok(())
    }

    /// The part whose text begins at `start`.
    #[must_use]
    pub fn part_at(&self, start: Gva) -> Option<&Part> {
        self.parts.iter().find(|part| part.text.start == start)
    }

    /// The functions of a part.
    pub fn functions_of(&self, part: &Part) -> impl Iterator<Item = FunctionId> + use<> {
        let text = part.text;
        let before = |end: Gva| {
            let count = self.functions.partition_point(|one| one.address < end);
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        (before(text.start)..before(text.end)).map(FunctionId)
    }
}

#[cfg(test)]
mod tests {
    use insn::nop::NOP5;

    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    const AWAY: u64 = TEXT + 0x10_0000;

    fn module(at: u64) -> Vec<u8> {
        ElfFile::new()
            .text(at, &[body(&NOP5), body(&[0xc3])].concat())
            .list("__mcount_loc", at + 0x1000, &[at])
            .function("module_leaf", at, 16)
            .function("module_plain", at + 16, 16)
            .build()
    }

    fn image(module: &[u8]) -> Image {
        let file = ElfFile::new()
            .text(TEXT, &[body(&NOP5), body(&NOP5)].concat())
            .list("__mcount_loc", TEXT - 0x8_0000, &[TEXT, TEXT + 16])
            .data(".module.one", TEXT - 0x7_0000, module)
            .function("stays", TEXT, 16)
            .function("goes", TEXT + 16, 16)
            .label("_sinittext", TEXT + 16)
            .label("_einittext", TEXT + 32);
        Image::parse(&file.build()).unwrap()
    }

    #[test]
    fn init_text_and_modules_are_parts() {
        let image = image(&module(AWAY));
        let parts: Vec<(&str, Gva, bool)> = image
            .parts
            .iter()
            .map(|part| (&*part.name, part.text.start, part.at_start))
            .collect();
        assert_eq!(
            parts,
            [("init", Gva(TEXT + 16), true), ("one", Gva(AWAY), false)]
        );
        let functions = |name| image.functions_of(image.part_at(name).unwrap());
        assert!(functions(Gva(TEXT + 16)).eq([FunctionId(1)]));
        assert!(functions(Gva(AWAY)).eq([FunctionId(2), FunctionId(3)]));
        assert_eq!(image.site_of(FunctionId(2)).unwrap().address, Gva(AWAY));
        assert!(image.untraceable(FunctionId(3)).is_some());
        assert_eq!(image.function_at(Gva(AWAY + 20)), Some(FunctionId(3)));
        // What stays: not init text, and nothing of a module.
        let lasting: Vec<TextRange> = image.lasting_text().collect();
        let only = TextRange {
            start: Gva(TEXT),
            end: Gva(TEXT + 16),
        };
        assert_eq!(lasting, [only]);
    }

    #[test]
    fn a_module_that_cannot_be_is_a_note() {
        for (module, reason) in [
            (vec![1, 2, 3], "neither an ELF file"),
            (module(TEXT), "is not above all other"),
        ] {
            let image = image(&module);
            assert_eq!(image.functions.len(), 2);
            assert_eq!(image.parts.len(), 1);
            let notes = image.notes.join("\n");
            assert!(notes.contains("module one: "), "{notes}");
            assert!(notes.contains(reason), "{notes}");
        }
    }
}
