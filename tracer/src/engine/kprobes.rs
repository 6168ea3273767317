//! The guest's own probes, where something of ours would displace instructions: whoever comes first has the place.

use image::SiteKind;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::Engine;
use crate::linux::kprobes::in_the_way;
use crate::patch::functions::Plan;
use crate::patch::poke::{PokeError, symbol};
use crate::target::PhysicalMemory;

/// Instructions that are to be displaced: whose they are, where they begin, and where they end.
pub(super) type Displaced = (FunctionId, Gva, Gva);

impl Engine {
    /// The functions whose first instructions `plan` would displace where the guest has probes, each with the reason.
    pub(super) fn functions_beside_kprobes(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        plan: &Plan,
    ) -> Vec<(FunctionId, PokeError)> {
        let changes = plan.changes.iter().filter(|change| change.displaces());
        let displaced = changes.filter_map(|change| {
            let site = self.image.site_of(change.poke.function)?;
            let length = site.form.displaced()?.as_slice().len() as u64;
            let end = site.address.wrapping_add(length);
            Some((site.function, site.address, end))
        });
        self.beside_kprobes(memory, &displaced.collect::<Vec<_>>())
    }

    /// Whether `at` is where the kernel's own tracer gets in.
    fn is_traced_site(&self, at: Gva) -> bool {
        let function = self.image.function_at(at);
        let site = function.and_then(|id| self.image.site_of(id));
        site.is_some_and(|site| site.address == at && site.kind == SiteKind::Fentry)
    }

    /// Which of these have probes of the guest in their way, and why. The guest is stopped: what it says holds
    /// until it goes on.
    pub(super) fn beside_kprobes(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        displaced: &[Displaced],
    ) -> Vec<(FunctionId, PokeError)> {
        let linux = self.linux.as_ref();
        let layout = linux.and_then(|linux| linux.kprobes.as_ref());
        let Some(layout) = layout.filter(|_| !displaced.is_empty()) else {
            return Vec::new();
        };
        // One on a site of the kernel's tracer is served by that: it puts nothing into the text by itself.
        let kprobes = layout.read(memory).map(|mut all| {
            all.retain(|at| !self.is_traced_site(*at));
            all
        });
        let why = |(function, at, end): &Displaced| {
            let (at, symbol) = (*at, symbol(&self.image, *function));
            let error = match &kprobes {
                Err(source) => PokeError::KprobesUnknown {
                    symbol,
                    at,
                    source: source.clone(),
                },
                Ok(kprobes) => PokeError::Kprobe {
                    symbol,
                    at,
                    kprobe: in_the_way(kprobes, at, *end)?,
                },
            };
            Some((*function, error))
        };
        displaced.iter().filter_map(why).collect()
    }
}
