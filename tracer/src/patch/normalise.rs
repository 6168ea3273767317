//! Which sites must become one five-byte nop before the first vCPU runs: raw calls of the
//! profiling function, and several nops in a row (a thread preempted between two of them would
//! later resume in the middle of a jump).

use crate::addr::Gva;
use crate::event::FunctionId;
use crate::image::{Image, SITE_LENGTH, SiteForm};

/// The one nop that every site becomes: `nop dword [rax+rax+0]`.
pub const NOP5: [u8; SITE_LENGTH] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

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
