//! The guest's own probes, where something of ours would displace instructions: whoever comes first has the place.

use std::collections::BTreeMap;

use image::{Image, SiteKind};
use terms::addr::Gva;
use terms::function::FunctionId;

use crate::introspection::Introspection;
use crate::target::PhysicalMemory;
use crate::text::poke::{PokeError, symbol};

/// Instructions that are to be displaced: whose they are, where they begin, and where they end.
pub(super) type Displaced = (FunctionId, Gva, Gva);

/// Whether `at` is where the kernel's own tracer gets in.
fn is_traced_site(image: &Image, at: Gva) -> bool {
    let function = image.function_at(at);
    let site = function.and_then(|id| image.site_of(id));
    site.is_some_and(|site| site.address == at && site.kind == SiteKind::Fentry)
}

/// The steps that displace these and have probes of the guest in their way, and why. The guest is stopped: what it says holds
/// until it continues.
pub(super) fn beside_kprobes(
    image: &Image,
    inside: Option<&dyn Introspection>,
    memory: &(impl PhysicalMemory + ?Sized),
    displaced: &[(usize, Displaced)],
) -> BTreeMap<usize, PokeError> {
    let Some(inside) = inside.filter(|_| !displaced.is_empty()) else {
        return BTreeMap::new();
    };
    // One on a site of the kernel's tracer is served by that: it puts nothing into the text by itself.
    let kprobes = inside.kprobes(&memory).map(|mut all| {
        all.retain(|at| !is_traced_site(image, *at));
        all
    });
    let why = |(step, (function, at, end)): &(usize, Displaced)| {
        let (at, symbol) = (*at, symbol(image, *function));
        let error = match &kprobes {
            Err(source) => PokeError::KprobesUnknown {
                symbol,
                at,
                source: source.clone(),
            },
            Ok(kprobes) => PokeError::Kprobe {
                symbol,
                at,
                kprobe: inside.kprobe_in_the_way(kprobes, at, *end)?,
            },
        };
        Some((*step, error))
    };
    displaced.iter().filter_map(why).collect()
}
