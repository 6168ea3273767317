//! The guest's own probes, where something of ours would displace instructions: whoever comes first has the place.

use std::collections::BTreeMap;

use image::{Image, SiteKind};
use terms::addr::Gva;
use terms::function::FunctionId;

use crate::introspection::{Introspection, KprobesError};
use crate::target::PhysicalMemory;
use crate::text::poke::{PokeError, symbol};

/// Instructions that are displaced: whose they are, where they begin, and where they end.
type Displaced = (FunctionId, Gva, Gva);

/// What a commit does to instructions, each with its step.
pub(super) struct Changed {
    /// They are to be displaced.
    pub displaced: Vec<(usize, Displaced)>,
    /// They are to be put back where they were displaced from.
    pub put_back: Vec<(usize, Displaced)>,
}

/// Whether `at` is where the kernel's own tracer gets in.
fn is_traced_site(image: &Image, at: Gva) -> bool {
    let function = image.function_at(at);
    let site = function.and_then(|id| image.site_of(id));
    site.is_some_and(|site| site.address == at && site.kind == SiteKind::Fentry)
}

/// The steps that displace or put back instructions and have probes of the guest in their way, and why. The guest is stopped: what it
/// says holds until it continues.
pub(super) fn beside_kprobes(
    image: &Image,
    inside: Option<&dyn Introspection>,
    memory: &(impl PhysicalMemory + ?Sized),
    changed: &Changed,
) -> BTreeMap<usize, PokeError> {
    let Changed {
        displaced,
        put_back,
    } = changed;
    let is_asked = !displaced.is_empty() || !put_back.is_empty();
    let Some(inside) = inside.filter(|_| is_asked) else {
        return BTreeMap::new();
    };
    // One on a site of the kernel's tracer is served by that: it puts nothing into the text by itself.
    let kprobes = inside.kprobes(&memory).map(|mut all| {
        all.retain(|at| !is_traced_site(image, *at));
        all
    });
    let unknown = |source: &KprobesError, (function, at, _): Displaced| PokeError::KprobesUnknown {
        symbol: symbol(image, function),
        at,
        source: source.clone(),
    };
    let in_the_way = |place: Displaced| match &kprobes {
        Err(source) => Some(unknown(source, place)),
        Ok(kprobes) => {
            let (function, at, end) = place;
            Some(PokeError::Kprobe {
                symbol: symbol(image, function),
                at,
                kprobe: inside.kprobe_in_the_way(kprobes, at, end)?,
            })
        }
    };
    let on_ours = |place: Displaced| match &kprobes {
        Err(source @ KprobesError::Busy) => Some(unknown(source, place)),
        // A guest that spoils its list keeps nobody from letting go.
        Err(_) => None,
        Ok(kprobes) => {
            let (function, at, end) = place;
            let mut kprobes = kprobes.iter().copied();
            Some(PokeError::KprobeOnOurs {
                symbol: symbol(image, function),
                at,
                kprobe: kprobes.find(|kprobe| (at..end).contains(kprobe))?,
            })
        }
    };
    let displaced = displaced.iter();
    let displaced = displaced.filter_map(|(step, place)| Some((*step, in_the_way(*place)?)));
    let put_back = put_back.iter();
    let put_back = put_back.filter_map(|(step, place)| Some((*step, on_ours(*place)?)));
    displaced.chain(put_back).collect()
}
