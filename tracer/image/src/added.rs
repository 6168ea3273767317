//! Functions that come while the guest runs: those of its modules. They are numbered after all others,
//! and a number is never used again, because stubs and records keep it.

use std::ops::Range;
use std::sync::Arc;

use insn::nop::NOP5;
use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use terms::site::SITE_LENGTH;

use super::{Image, Site, SiteForm, SiteKind, TextRange, Untraceable, UntraceableReason};

/// Length of `endbr64`.
const LANDING_PAD: u64 = 4;

/// What comes with a module.
#[derive(Debug, Clone, Copy)]
pub struct Added<'a> {
    /// The module's name.
    pub module: &'a Arc<str>,
    /// Its text.
    pub text: TextRange,
    /// Where its functions begin and what they are called, by address.
    pub functions: &'a [(Gva, String)],
    /// Its sites, ascending. The guest has made them nops before it let the module out.
    pub sites: &'a [Gva],
}

impl Image {
    /// Adds what comes with a module; the numbers of its functions, all below `limit`. Nothing when there are no
    /// numbers left.
    pub fn add(&mut self, added: Added<'_>, limit: u32) -> Option<Range<u32>> {
        let first = u32::try_from(self.functions.len()).ok()?;
        let count = u32::try_from(added.functions.len()).ok()?;
        let end = first.checked_add(count).filter(|end| *end < limit)?;
        let next = added.functions.iter().skip(1).map(|(next, _)| *next);
        let ends = next.chain([added.text.end]);
        for ((id, (address, name)), end) in (first..).zip(added.functions).zip(ends) {
            let name: Arc<str> = name.as_str().into();
            let function = Function {
                address: *address,
                size: end.0.saturating_sub(address.0),
                display: Arc::clone(&name),
                name,
                module: Some(Arc::clone(added.module)),
                ..Function::default()
            };
            self.add_site(FunctionId(id), &function, added.sites);
            self.functions.push(function);
        }
        self.later.add(added.text.start, added.text.end, first..end);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, nop_image};

    const AWAY: u64 = TEXT + 0x10_0000;

    /// Adds a module with functions of 16 bytes at these addresses.
    fn add(image: &mut Image, name: &str, addresses: &[u64]) -> Range<u32> {
        let named = |at: &u64| (Gva(*at), format!("{name}_{at:x}"));
        let functions: Vec<_> = addresses.iter().map(named).collect();
        let end = addresses.last().unwrap() + 16;
        let added = Added {
            module: &name.into(),
            text: TextRange {
                start: Gva(addresses[0]),
                end: Gva(end),
            },
            functions: &functions,
            sites: &[],
        };
        image.add(added, u32::MAX).unwrap()
    }

    /// It was once: an address was searched among all as if they lay in the order in which they had come.
    #[test]
    fn an_address_is_that_of_the_module_that_came_last() {
        let mut image = nop_image(4);
        let at = |image: &Image, address: u64| {
            let function = image.function(image.function_at(Gva(address))?)?;
            Some(function.name.to_string())
        };
        let own = at(&image, TEXT + 16).unwrap();
        add(&mut image, "high", &[AWAY + 0x100, AWAY + 0x110]);
        add(&mut image, "low", &[AWAY, AWAY + 0x10]);
        add(&mut image, "next", &[AWAY + 0x108]);
        assert_eq!(at(&image, TEXT + 16), Some(own));
        for (address, name) in [
            (AWAY, Some("low_")),
            (AWAY + 0x1f, Some("low_")),
            (AWAY + 0x20, None),
            (AWAY + 0x107, Some("high_")),
            (AWAY + 0x108, Some("next_")),
            (AWAY + 0x117, Some("next_")),
            (AWAY + 0x118, Some("high_")),
            (AWAY - 1, None),
        ] {
            let found = at(&image, address);
            assert_eq!(
                found
                    .as_deref()
                    .map(|found| &found[..found.find('_').unwrap() + 1]),
                name
            );
        }
        // However often they come again.
        for _ in 0..1000 {
            add(&mut image, "low", &[AWAY, AWAY + 0x10]);
        }
        assert_eq!(
            at(&image, AWAY).as_deref(),
            Some(format!("low_{AWAY:x}").as_str())
        );
        let id = image.function_at(Gva(AWAY)).unwrap();
        assert_eq!(id.index(), image.functions.len() - 2, "of the last");
    }
}
