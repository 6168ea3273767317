//! Functions that come while the guest runs: those of its modules. They are numbered behind all others,
//! and a number is never used again, because stubs and records keep it.

use std::ops::Range;
use std::sync::Arc;

use super::{
    Function, Image, SITE_LENGTH, Site, SiteForm, SiteKind, Untraceable, UntraceableReason,
};
use crate::addr::Gva;
use crate::event::FunctionId;
use crate::module::{Contents, Module};
use crate::patch::normalise::NOP5;
use crate::record::FUNCTIONS_MAX;

/// Length of `endbr64`.
const LANDING_PAD: u64 = 4;

impl Image {
    /// Adds what a module has; the numbers of its functions. Nothing when there are no numbers left.
    pub fn add_module(&mut self, module: &Module, contents: &Contents) -> Option<Range<u32>> {
        let first = u32::try_from(self.functions.len()).ok()?;
        let count = u32::try_from(contents.functions.len()).ok()?;
        let end = first
            .checked_add(count)
            .filter(|end| *end < FUNCTIONS_MAX)?;
        let next = contents.functions.iter().skip(1).map(|next| next.address);
        let ends = next.chain([module.text.end]);
        for ((id, function), end) in (first..).zip(&contents.functions).zip(ends) {
            let name: Arc<str> = function.name.as_str().into();
            let function = Function {
                address: function.address,
                size: end.0.saturating_sub(function.address.0),
                display: Arc::clone(&name),
                name,
                module: Some(Arc::clone(&module.name)),
                ..Function::default()
            };
            self.add_site(FunctionId(id), &function, &contents.sites);
            self.functions.push(function);
        }
        Some(first..end)
    }

    /// The site at the beginning of a function, if `sites` has one.
    fn add_site(&mut self, id: FunctionId, function: &Function, sites: &[Gva]) {
        let symbol = Arc::clone(&function.name);
        let from = sites.partition_point(|site| *site < function.address);
        let site = sites.get(from).copied().filter(|site| {
            let offset = site.0 - function.address.0;
            (offset == 0 || offset == LANDING_PAD) && offset + SITE_LENGTH as u64 <= function.size
        });
        match site {
            // The guest has made it a nop before it let the module out.
            Some(address) => self.sites.push(Site {
                address,
                function: id,
                symbol,
                kind: SiteKind::Fentry,
                form: SiteForm::Nop5,
                original: NOP5,
            }),
            None => self.untraceable.push(Untraceable {
                function: id,
                symbol,
                address: function.address,
                reason: UntraceableReason::NotInstrumented,
            }),
        }
    }
}
