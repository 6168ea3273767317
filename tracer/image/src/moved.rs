//! An image of a kernel that runs elsewhere than where it was linked: every address in it, moved.
//!
//! Its bytes do not move with it: some of them are addresses, too, and the kernel has rewritten others since. So they are
//! taken from the memory of the kernel that runs ([`Image::held_in`]), and with them where each segment is.

use terms::addr::{Gva, Slide};

use super::loaded::Loaded;
use super::running::Running;
use super::{Image, Linux, SiteForm, SymbolTable, TextRange};

impl TextRange {
    pub(super) fn moved_by(self, slide: Slide) -> Self {
        Self {
            start: slide.runs(self.start),
            end: slide.runs(self.end),
        }
    }
}

impl Image {
    /// The image with every address moved; nothing when that makes no image, as addresses would wrap around.
    #[must_use]
    pub fn moved_by(mut self, slide: Slide) -> Option<Self> {
        let to = |at: &mut Gva| *at = slide.runs(*at);
        let range = |range: &mut TextRange| *range = range.moved_by(slide);
        self.entry = slide.runs(Gva(self.entry)).0;
        self.symbols = self.symbols.moved_by(slide);
        self.functions
            .iter_mut()
            .for_each(|one| to(&mut one.address));
        self.segments.iter_mut().for_each(|one| to(&mut one.vaddr));
        self.text.iter_mut().for_each(range);
        self.parts.iter_mut().for_each(|part| range(&mut part.text));
        self.locks.iter_mut().for_each(|lock| to(&mut lock.address));
        for entry in &mut self.untraceable {
            to(&mut entry.address);
        }
        self.skipped
            .iter_mut()
            .for_each(|place| to(&mut place.address));
        for call in &mut self.static_calls {
            to(&mut call.trampoline);
            call.default.iter_mut().for_each(to);
        }
        self.linux.iter_mut().for_each(|linux| linux.move_by(slide));
        self.tables = self.tables.moved_by(slide);
        self.loaded = self.loaded.moved_by(slide);
        self.move_sites(slide);
        self.move_points(slide);
        let is_sorted = self.functions.is_sorted_by_key(|one| one.address)
            && self.sites.is_sorted_by_key(|one| one.address)
            && self.text.iter().all(|range| range.start < range.end);
        is_sorted.then_some(self)
    }

    /// The image with the bytes and the segments that a running kernel has in memory.
    #[must_use]
    pub fn held_in(self, running: &Running) -> Self {
        let elf = running.elf();
        Self {
            segments: elf.segments(),
            loaded: Loaded::of(&elf, &self.symbols),
            ..self
        }
    }

    fn move_sites(&mut self, slide: Slide) {
        for site in &mut self.sites {
            site.address = slide.runs(site.address);
            if let SiteForm::RawCall { target } = &mut site.form {
                *target = slide.runs(*target);
            }
        }
    }

    /// Those that kernels describe which announce themselves.
    fn move_points(&mut self, slide: Slide) {
        let to = |at: &mut Gva| *at = slide.runs(*at);
        for function in &mut self.dynamic {
            to(&mut function.jump);
            to(&mut function.default);
            function.targets.iter_mut().for_each(to);
        }
        for point in &mut self.tracepoints {
            to(&mut point.dispatch);
            to(&mut point.iterate);
            to(&mut point.list);
            point.nobody = slide.runs(Gva(point.nobody)).0;
            point.candidates.iter_mut().for_each(to);
            for site in &mut point.sites {
                to(&mut site.at);
                to(&mut site.on);
            }
        }
        let sites = self.markers.iter_mut().flat_map(|marker| &mut marker.sites);
        sites.for_each(|site| to(&mut site.at));
    }
}

impl Linux {
    fn move_by(&mut self, slide: Slide) {
        let ranges = [&mut self.text, &mut self.init_text, &mut self.rodata];
        for range in ranges.into_iter().flatten() {
            *range = range.moved_by(slide);
        }
        if let Some((at, _)) = &mut self.identity.banner {
            *at = slide.runs(*at);
        }
        if let Some((at, _)) = &mut self.identity.build_id {
            *at = slide.runs(*at);
        }
    }
}

impl SymbolTable {
    pub(super) fn moved_by(&self, slide: Slide) -> Self {
        let moved = self.iter().cloned().map(|mut symbol| {
            symbol.address = slide.runs(symbol.address);
            symbol
        });
        Self::new(moved.collect())
    }
}

#[cfg(test)]
mod tests {
    use insn::nop::NOP5;

    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    fn image(at: u64) -> Image {
        let file = ElfFile::new()
            .text(at, &[body(&NOP5), body(&[0xc3])].concat())
            .list("__mcount_loc", at + 0x10_0000, &[at])
            .function("traced", at, 16)
            .function("plain", at + 16, 16)
            .label("__per_cpu_start", 0x1000);
        Image::parse(&file.build()).unwrap()
    }

    /// As if it had been linked there, but for its bytes: one of them is the address of the site.
    #[test]
    fn a_moved_image_is_that_of_a_kernel_linked_elsewhere() {
        let slide = Slide(0x340_0000);
        let mut moved = image(TEXT).moved_by(slide).unwrap();
        let mut linked = image(TEXT + slide.0);
        assert_eq!(moved.functions, linked.functions);
        assert_eq!(moved.sites, linked.sites);
        for image in [&mut moved, &mut linked] {
            image.loaded = Loaded::default();
            image.segments.iter_mut().for_each(|one| one.paddr.0 = 0);
        }
        assert_eq!(moved, linked);
        assert_eq!(
            moved.symbols.address_of("__per_cpu_start"),
            Some(Gva(0x1000))
        );
    }

    #[test]
    fn a_slide_that_wraps_around_makes_no_image() {
        let image = image(TEXT);
        assert!(image.clone().moved_by(Slide(0)).is_some());
        let slide = Slide(0_u64.wrapping_sub(TEXT + 8));
        assert_eq!(image.moved_by(slide), None);
    }
}
