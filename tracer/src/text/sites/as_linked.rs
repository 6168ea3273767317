//! Sites that nobody has made one nop: in a guest that runs already, or that its own VMM has loaded, a call of the
//! profiling function or several nops in a row can stand there still. That is what stands there while nobody wants anything,
//! and what comes back.

use image::{Image, Site, SiteForm};
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::{Sites, set};
use crate::target::TargetMemory;

impl Sites {
    /// Every site is one nop, or is made one when its text comes.
    pub fn are_normal(&mut self) {
        self.as_linked = None;
    }

    /// Looks at the sites that may not be one nop, unless it is known that all are.
    pub fn look(&mut self, memory: &(impl TargetMemory + ?Sized), image: &Image) {
        let Some(mut as_linked) = self.as_linked.take() else {
            return;
        };
        as_linked.clear();
        let unsure = image.sites.iter().filter(|site| is_unsure(site));
        for site in unsure.filter(|site| !self.is_gone(site.function)) {
            let mut found = [0; SITE_LENGTH];
            // What cannot be read is told when it is to be changed.
            let is_so = memory.read(site.address, &mut found).is_ok() && found == site.original;
            set(&mut as_linked, site.function, is_so);
        }
        self.as_linked = Some(as_linked);
    }

    /// Whether the site of this function holds what the compiler put there while nobody wants anything.
    #[must_use]
    pub fn is_as_linked(&self, function: FunctionId) -> bool {
        let known = self.as_linked.as_ref();
        known.and_then(|known| known.get(function.index())) == Some(&true)
    }
}

/// Sites that are looked at, to know how all are.
const SAMPLE: usize = 32;

/// Whether a kernel that makes its sites nops itself has not done so yet: most are as they were linked. Some stay so, those
/// that it does not know of.
#[must_use]
pub fn starts(memory: &(impl TargetMemory + ?Sized), image: &Image) -> bool {
    if !image.normalises_itself() {
        return false;
    }
    let unsure: Vec<&Site> = image.sites.iter().filter(|site| is_unsure(site)).collect();
    let step = unsure.len().div_ceil(SAMPLE).max(1);
    let (mut seen, mut linked) = (0, 0);
    for site in unsure.into_iter().step_by(step) {
        let mut found = [0; SITE_LENGTH];
        if memory.read(site.address, &mut found).is_ok() {
            seen += 1;
            linked += usize::from(found == site.original);
        }
    }
    linked * 2 > seen
}

fn is_unsure(site: &Site) -> bool {
    matches!(site.form, SiteForm::RawCall { .. } | SiteForm::MultiNop)
}

#[cfg(test)]
mod tests {
    use image::{Linux, SiteKind};
    use insn::nop::NOP5;
    use terms::addr::{Gpa, Gva};

    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::target::TextMemory;

    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    const CALL: [u8; SITE_LENGTH] = [0xe8, 1, 2, 3, 4];

    fn image(prepares_sites: bool) -> Image {
        let site = |number: u32| Site {
            address: at(number),
            function: FunctionId(number),
            symbol: "f".into(),
            kind: SiteKind::Fentry,
            form: SiteForm::RawCall { target: TEXT },
            original: CALL,
        };
        Image {
            sites: (0..40).map(site).collect(),
            linux: Some(Linux {
                version: "6.1.0".to_owned(),
                text: None,
                init_text: None,
                rodata: None,
                prepares_sites,
                identity: image::Identity::default(),
            }),
            ..Image::default()
        }
    }

    fn at(number: u32) -> Gva {
        Gva(TEXT.0 + 0x40 * u64::from(number))
    }

    #[test]
    fn a_kernel_starts_as_long_as_most_of_its_sites_are_as_they_were_linked() {
        let mut target = MockTarget::new(1, 1 << 21);
        target.map(TEXT, Gpa(0x10_0000), 4096, Rights::ALL).unwrap();
        // Every second one is looked at: half of these are enough.
        for (nops, expected) in [(0, true), (9, true), (10, false), (20, false)] {
            for number in 0..40 {
                let is_nop = number % 2 == 0 && number / 2 < nops;
                let bytes = if is_nop { NOP5 } else { CALL };
                target.write(at(number), &bytes).unwrap();
            }
            assert_eq!(starts(&target, &image(true)), expected, "{nops} nops");
            assert!(!starts(&target, &image(false)), "its loader has made them");
        }
        assert!(
            !starts(&MockTarget::new(1, 1 << 21), &image(true)),
            "not mapped"
        );
    }
}
