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

fn is_unsure(site: &Site) -> bool {
    matches!(site.form, SiteForm::RawCall { .. } | SiteForm::MultiNop)
}
