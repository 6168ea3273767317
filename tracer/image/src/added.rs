//! Functions that come while the guest runs: those of its modules. They are numbered after all others,
//! and a number is never used again, because stubs and records keep it.

use std::ops::Range;
use std::sync::Arc;

use insn::nop::NOP5;
use insn::scan::{LeadingCall, leading_call};
use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use terms::site::SITE_LENGTH;

use super::locate::Profilers;
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
    /// Its sites, ascending, and what stands there. The guest has made them nops before it let the module out; one whose own tracer has
    /// switched itself off lets it out with the calls that the compiler made.
    pub sites: &'a [(Gva, [u8; SITE_LENGTH])],
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
        let profilers = Profilers::of(self);
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
            self.add_site(FunctionId(id), &function, added.sites, &profilers);
            self.functions.push(function);
        }
        self.later.add(added.text.start, added.text.end, first..end);
        Some(first..end)
    }

    /// The site at the beginning of a function, if `sites` has one.
    fn add_site(
        &mut self,
        id: FunctionId,
        function: &Function,
        sites: &[(Gva, [u8; SITE_LENGTH])],
        profilers: &Profilers,
    ) {
        let symbol = Arc::clone(&function.name);
        let from = sites.partition_point(|(site, _)| *site < function.address);
        let site = sites.get(from).copied().filter(|(site, _)| {
            let offset = site.0 - function.address.0;
            (offset == 0 || offset == LANDING_PAD) && offset + SITE_LENGTH as u64 <= function.size
        });
        match site {
            Some((address, bytes)) => {
                let (form, original) = match is_left(bytes, address, profilers) {
                    true => (SiteForm::LeftCall, bytes),
                    // Anything else is somebody's, who gives the nop back.
                    false => (SiteForm::Nop5, NOP5),
                };
                self.sites.push(Site {
                    address,
                    function: id,
                    symbol,
                    kind: SiteKind::Fentry,
                    form,
                    original,
                });
            }
            None => self.untraceable.push(Untraceable {
                function: id,
                symbol,
                address: function.address,
                reason: UntraceableReason::NotInstrumented,
            }),
        }
    }
}

/// Whether the compiler's call of the profiling function stands there.
fn is_left(bytes: [u8; SITE_LENGTH], at: Gva, profilers: &Profilers) -> bool {
    match leading_call(&bytes, at) {
        Some(LeadingCall::Direct(call)) => {
            call.length == SITE_LENGTH && profilers.kind(call.target) == Some(SiteKind::Fentry)
        }
        Some(LeadingCall::Indirect) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ElfFile, TEXT, body, call, nop_image};

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

    /// A Linux whose own tracer has switched itself off leaves calls in the modules that come then: their functions were all taken for
    /// somebody else's.
    #[test]
    fn calls_that_the_guest_has_left_stay_calls() {
        let file = ElfFile::new().text(TEXT, &body(&[0xc3]));
        let file = file.function("__fentry__", TEXT, 1);
        let mut image = Image::parse(&file.function("other", TEXT + 1, 1).build()).unwrap();
        let functions: Vec<_> = (0..4)
            .map(|n| (Gva(AWAY + 16 * n), format!("f{n}")))
            .collect();
        let left = call(AWAY, TEXT);
        let others = call(AWAY + 16, TEXT + 1);
        let bytes = [left, others, NOP5, [0xcc; 5]];
        let sites: Vec<_> = functions.iter().map(|(at, _)| *at).zip(bytes).collect();
        let added = Added {
            module: &"one".into(),
            text: TextRange {
                start: Gva(AWAY),
                end: Gva(AWAY + 64),
            },
            functions: &functions,
            sites: &sites,
        };
        let ids = image.add(added, u32::MAX).unwrap();
        let found = ids.map(|id| {
            let site = image.site_of(FunctionId(id)).unwrap();
            (site.form, site.original)
        });
        let nop = (SiteForm::Nop5, NOP5);
        let expected = [(SiteForm::LeftCall, left), nop, nop, nop];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
