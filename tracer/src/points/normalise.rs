//! Which sites must become one five-byte nop before the first vCPU runs: raw calls of the
//! profiling function, and several nops in a row (a thread preempted between two of them would
//! later resume in the middle of a jump).

use image::{Image, Site, SiteForm};
use insn::nop::NOP5;
use terms::function::FunctionId;
use terms::site::SiteBytes;

use crate::text::edit::{Edit, Point, Wanted};
use crate::text::sites::Sites;

/// All rewrites that the sites of `image` need in these functions, if they are there; by function.
pub fn normalisations(
    image: &Image,
    sites: &mut Sites,
    is_meant: impl Fn(FunctionId) -> bool,
) -> Vec<Edit> {
    let needs_it =
        |site: &&Site| matches!(site.form, SiteForm::RawCall { .. } | SiteForm::MultiNop);
    let all = image.sites.iter().filter(needs_it);
    let edits = all.filter_map(|site| {
        if sites.is_gone(site.function) || !is_meant(site.function) {
            return None;
        }
        let original = SiteBytes::new(site.original);
        let at = Wanted::new(Point::Function, site.function, site.address, original, None);
        sites.normalise(&at, SiteBytes::new(NOP5))
    });
    edits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::testing::{ElfFile, TEXT, body, call};

    const LIST: u64 = 0xffff_ffff_8000_0000;
    const SPLIT: [u8; 5] = [0x66, 0x90, 0x0f, 0x1f, 0x00];

    #[test]
    fn only_sites_that_are_not_one_nop_are_normalised() {
        let raw = call(TEXT + 0x10, TEXT + 0x30);
        let functions: [(&str, &[u8]); 4] = [
            ("a", &NOP5),
            ("b", &raw),
            ("c", &SPLIT),
            ("__fentry__", &[0xc3]),
        ];
        let code: Vec<u8> = functions.iter().flat_map(|(_, head)| body(head)).collect();
        let mut file = ElfFile::new().text(TEXT, &code).list(
            "__mcount_loc",
            LIST,
            &[TEXT, TEXT + 0x10, TEXT + 0x20],
        );
        for (index, (name, _)) in (0..).zip(functions) {
            file = file.function(name, TEXT + 16 * index, 16);
        }
        let image = Image::parse(&file.build()).unwrap();
        let plan = normalisations(&image, &mut Sites::default(), |_| true);
        let plan: Vec<_> = plan
            .iter()
            .map(|one| (one.poke.at.0 - TEXT, one.poke.expected, one.poke.new))
            .collect();
        let wanted = [(0x10, raw), (0x20, SPLIT)];
        let nop = SiteBytes::new(NOP5);
        assert_eq!(plan, wanted.map(|(at, old)| (at, SiteBytes::new(old), nop)));
    }
}
