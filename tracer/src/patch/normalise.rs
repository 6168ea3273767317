//! Which sites must become one five-byte nop before the first vCPU runs: raw calls of the
//! profiling function, and several nops in a row (a thread preempted between two of them would
//! later resume in the middle of a jump).

use image::{Image, SiteForm};
use insn::nop::NOP5;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

/// One rewrite of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Normalisation {
    /// The function.
    pub function: FunctionId,
    /// Where the five bytes lie.
    pub address: Gva,
    /// What must be there.
    pub expected: [u8; SITE_LENGTH],
    /// What is to be there.
    pub new: [u8; SITE_LENGTH],
}

/// All rewrites that the sites of `image` need, by address.
#[must_use]
pub fn normalisations(image: &Image) -> Vec<Normalisation> {
    image
        .sites
        .iter()
        .filter(|site| matches!(site.form, SiteForm::RawCall { .. } | SiteForm::MultiNop))
        .map(|site| Normalisation {
            function: site.function,
            address: site.address,
            expected: site.original,
            new: NOP5,
        })
        .collect()
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
        let plan = normalisations(&Image::parse(&file.build()).unwrap());
        let plan: Vec<_> = plan
            .iter()
            .map(|one| (one.address.0 - TEXT, one.expected, one.new))
            .collect();
        assert_eq!(plan, [(0x10, raw, NOP5), (0x20, SPLIT, NOP5)]);
    }
}
