//! From listed addresses and code to patch sites: what lies at each address, which function it
//! belongs to, and why it is left out if it is.

use std::sync::Arc;

use insn::nop::{NopRun, nop_run};
use insn::scan::{LeadingCall, direct_calls, landing_pad, leading_call};
use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use terms::site::SITE_LENGTH;

use super::elf::Elf;
use super::lists::List;
use super::returns::unhookable;
use super::{
    Image, Site, SiteForm, SiteKind, SkipReason, SkippedSite, Untraceable, UntraceableReason,
};

/// The profiling functions that compilers call: after the prologue, and before it.
const MCOUNT: [&str; 3] = ["mcount", "_mcount", "__mcount"];
const FENTRY: [&str; 1] = ["__fentry__"];
/// Bytes shown of a place that is left out.
const SHOWN: u64 = 8;
/// How far before a function its nops may begin (`-fpatchable-function-entry=N,M`).
const MAX_PREFIX: u64 = 64;

/// The addresses of the profiling functions in an image.
pub(super) struct Profilers(Vec<(Gva, SiteKind)>);

impl Profilers {
    pub(super) fn of(image: &Image) -> Self {
        let named = |names: &'static [&'static str], kind| {
            names
                .iter()
                .flat_map(|name| image.symbols.named(name))
                .map(move |symbol| (symbol.address, kind))
        };
        Self(
            named(&MCOUNT, SiteKind::Mcount)
                .chain(named(&FENTRY, SiteKind::Fentry))
                .collect(),
        )
    }

    pub(super) fn kind(&self, target: Gva) -> Option<SiteKind> {
        self.0
            .iter()
            .find(|(address, _)| *address == target)
            .map(|(_, kind)| *kind)
    }
}

/// Fills `sites`, `skipped` and `untraceable` of `image`, whose symbols, functions and text are
/// known already.
pub(super) fn locate(image: &mut Image, elf: &Elf<'_>, listed: &[(Gva, List)]) {
    let profilers = Profilers::of(image);
    let mut found = Found::new(image);
    for &(address, list) in listed {
        found.add_listed_site(image, elf, &profilers, address, list);
    }
    let from_lists = found.count();
    // A kernel that makes its sites nops itself does this by its list: what is not in it stays a call.
    let is_complete = from_lists > 0 && image.normalises_itself();
    found.scan(image, elf, &profilers, is_complete);
    let scanned = found.count() - from_lists;
    if scanned > 0 {
        image.notes.push(format!(
            "{scanned} sites found by decoding text, in no list"
        ));
    }
    found.finish(image);
    image.unhookable = unhookable(image);
}

/// What was found, per function.
struct Found {
    sites: Vec<Option<Site>>,
    skipped: Vec<SkippedSite>,
}

impl Found {
    fn new(image: &Image) -> Self {
        Self {
            sites: vec![None; image.functions.len()],
            skipped: Vec::new(),
        }
    }

    fn count(&self) -> usize {
        self.sites.iter().flatten().count()
    }

    fn add_listed_site(
        &mut self,
        image: &Image,
        elf: &Elf<'_>,
        profilers: &Profilers,
        listed: Gva,
        list: List,
    ) {
        let address = after_entry(image, elf, listed, list);
        let function = image.function_at(address);
        let site = function.ok_or(SkipReason::NoFunction).and_then(|id| {
            let entry = image.function(id).ok_or(SkipReason::NoFunction)?;
            let place = Place {
                image,
                elf,
                id,
                entry,
                address,
            };
            place.listed_site(profilers, list)
        });
        match site {
            Ok(site) => self.add(elf, site),
            // Outside text there is no function either: the first says more.
            Err(_) if !image.is_text(address, 1) => {
                self.skip(elf, address, function, SkipReason::OutsideText);
            }
            Err(reason) => self.skip(elf, address, function, reason),
        }
    }

    /// Looks for calls of the profiling functions in every function that has no site yet. Where the lists are
    /// complete, none becomes a site.
    fn scan(&mut self, image: &Image, elf: &Elf<'_>, profilers: &Profilers, is_complete: bool) {
        if profilers.0.is_empty() {
            return;
        }
        for (index, entry) in image.functions.iter().enumerate() {
            let known = self.sites.get(index).is_none_or(Option::is_some);
            let Some(id) = u32::try_from(index).ok().map(FunctionId).filter(|_| !known) else {
                continue;
            };
            let code = code_of(image, elf, index, entry);
            for call in direct_calls(code, entry.address) {
                let Some(kind) = profilers.kind(call.target) else {
                    continue;
                };
                let place = Place {
                    image,
                    elf,
                    id,
                    entry,
                    address: call.address,
                };
                match place.call_site(kind, call.length, call.target) {
                    Ok(_) if is_complete => {
                        self.skip(elf, call.address, Some(id), SkipReason::Unlisted);
                    }
                    Ok(site) => self.add(elf, site),
                    Err(reason) => self.skip(elf, call.address, Some(id), reason),
                }
            }
        }
    }

    fn add(&mut self, elf: &Elf<'_>, site: Site) {
        let Some(slot) = self.sites.get_mut(site.function.index()) else {
            return;
        };
        if let Some(first) = slot.as_ref().map(|first| first.address) {
            let reason = SkipReason::SecondSite { first };
            self.skip(elf, site.address, Some(site.function), reason);
        } else {
            *slot = Some(site);
        }
    }

    fn skip(
        &mut self,
        elf: &Elf<'_>,
        address: Gva,
        function: Option<FunctionId>,
        reason: SkipReason,
    ) {
        let bytes = elf.bytes_at(address, SHOWN).to_vec();
        self.skipped.push(SkippedSite {
            address,
            function,
            bytes,
            reason,
        });
    }

    fn finish(mut self, image: &mut Image) {
        self.skipped.sort_by_key(|place| place.address);
        // What a list led to is met again when text is decoded.
        self.skipped.dedup_by_key(|place| place.address);
        let mut reasons: Vec<Option<&SkipReason>> = vec![None; self.sites.len()];
        for place in &self.skipped {
            // That one is another function's.
            if matches!(place.reason, SkipReason::InsideFunction { .. }) {
                continue;
            }
            let slot = place.function.and_then(|id| reasons.get_mut(id.index()));
            if let Some(slot @ None) = slot {
                *slot = Some(&place.reason);
            }
        }
        let functions = image.functions.iter().zip(0u32..);
        image.untraceable = functions
            .zip(self.sites.iter().zip(&reasons))
            .filter(|(_, (site, _))| site.is_none())
            .map(|((function, id), (_, skipped))| Untraceable {
                function: FunctionId(id),
                symbol: Arc::clone(&function.name),
                address: function.address,
                reason: why(image, function, *skipped),
            })
            .collect();
        image.sites = self.sites.into_iter().flatten().collect();
        image.skipped = self.skipped;
    }
}

fn why(image: &Image, function: &Function, skipped: Option<&SkipReason>) -> UntraceableReason {
    match skipped {
        Some(reason) => UntraceableReason::Skipped(reason.clone()),
        None if image.is_text(function.address, 1) => UntraceableReason::NotInstrumented,
        None => UntraceableReason::OutsideText,
    }
}

/// A place in a function that may be a site.
struct Place<'a> {
    image: &'a Image,
    elf: &'a Elf<'a>,
    id: FunctionId,
    entry: &'a Function,
    address: Gva,
}

impl Place<'_> {
    fn listed_site(&self, profilers: &Profilers, list: List) -> Result<Site, SkipReason> {
        let bytes = self.elf.bytes_at(self.address, SHOWN);
        let site = bytes
            .first_chunk::<SITE_LENGTH>()
            .ok_or(SkipReason::NoBytes)?;
        match nop_run(site) {
            Some(NopRun::One) => return self.site(self.nop_kind(list), SiteForm::Nop5),
            Some(NopRun::Several) => {
                return self.site(self.nop_kind(list), SiteForm::MultiNop);
            }
            None => {}
        }
        match leading_call(bytes, self.address) {
            // Its own tracer is on there: what it calls is not ours to change, but the place is a site.
            Some(LeadingCall::Direct(call)) if list == List::Recorded => {
                self.call_site(SiteKind::Fentry, call.length, call.target)
            }
            Some(LeadingCall::Direct(call)) => match profilers.kind(call.target) {
                Some(kind) => self.call_site(kind, call.length, call.target),
                None => Err(SkipReason::ForeignCall {
                    target: call.target,
                }),
            },
            Some(LeadingCall::Indirect) => Err(SkipReason::IndirectCall),
            None => Err(SkipReason::UnexpectedBytes(bytes.to_vec())),
        }
    }

    fn call_site(&self, kind: SiteKind, length: usize, target: Gva) -> Result<Site, SkipReason> {
        if length != SITE_LENGTH {
            return Err(SkipReason::IndirectCall);
        }
        self.site(kind, SiteForm::RawCall { target })
    }

    fn site(&self, kind: SiteKind, form: SiteForm) -> Result<Site, SkipReason> {
        let length = SITE_LENGTH as u64;
        if !self.image.is_text(self.address, length) {
            return Err(SkipReason::OutsideText);
        }
        let offset = self.offset();
        if offset + length > self.entry.size {
            return Err(SkipReason::CrossesEnd);
        }
        if kind == SiteKind::Fentry && offset > self.landing_pad() {
            return Err(SkipReason::InsideFunction { offset });
        }
        let bytes = self.elf.bytes_at(self.address, length);
        let original = *bytes.first_chunk().ok_or(SkipReason::NoBytes)?;
        let symbol = Arc::clone(&self.entry.name);
        Ok(Site {
            address: self.address,
            function: self.id,
            symbol,
            kind,
            form,
            original,
        })
    }

    /// A nop in `__mcount_loc` (`-mnop-mcount`, or Linux after it has run): at the entry it was
    /// `__fentry__`, further in it was `mcount`.
    fn nop_kind(&self, list: List) -> SiteKind {
        match list {
            List::Patchable => SiteKind::Patchable,
            List::Recorded => SiteKind::Fentry,
            List::Mcount if self.offset() <= self.landing_pad() => SiteKind::Fentry,
            // Linux on x86-64 has no other.
            List::Mcount if self.image.linux.is_some() => SiteKind::Fentry,
            List::Mcount => SiteKind::Mcount,
        }
    }

    /// Bytes from the beginning of the function.
    fn offset(&self) -> u64 {
        self.address.0 - self.entry.address.0
    }

    /// Length of the `endbr64` that the function begins with, if it does.
    fn landing_pad(&self) -> u64 {
        landing_pad(self.elf.bytes_at(self.entry.address, SHOWN))
    }
}

/// Where the site is of the function whose nops begin at a listed address. The function's entry may split them, and its
/// landing pad: the list then has the first of those before the entry, and the site is after both.
fn after_entry(image: &Image, elf: &Elf<'_>, listed: Gva, list: List) -> Gva {
    let known = image.function_at(listed).and_then(|id| image.function(id));
    let entry = match known {
        Some(function) if function.address == listed => Some(function),
        // Symbols without a size reach up to the next one, with its nops.
        Some(_) if list != List::Patchable => None,
        _ => entry_after_nops(image, elf, listed),
    };
    let Some(entry) = entry.map(|function| function.address) else {
        return listed;
    };
    // What Linux has made of a landing pad is a nop, too, but not of this length.
    let begins_with_nop = nop_run(elf.bytes_at(entry, SITE_LENGTH as u64)).is_some();
    match begins_with_nop {
        true => entry,
        false => entry.wrapping_add(landing_pad(elf.bytes_at(entry, SHOWN))),
    }
}

/// The next function after an address, if there are nops up to it and nothing else.
fn entry_after_nops<'i>(image: &'i Image, elf: &Elf<'_>, at: Gva) -> Option<&'i Function> {
    let next = image
        .functions
        .partition_point(|function| function.address <= at);
    let function = image.functions.get(next)?;
    let gap = function.address.0 - at.0;
    let is_prefix = gap <= MAX_PREFIX && nop_run(elf.bytes_at(at, gap)).is_some();
    is_prefix.then_some(function)
}

/// The bytes of a function, up to the next one if they overlap.
fn code_of<'a>(image: &Image, elf: &Elf<'a>, index: usize, entry: &Function) -> &'a [u8] {
    let next = image
        .functions
        .get(index + 1)
        .map_or(u64::MAX, |next| next.address.0);
    let length = entry.size.min(next - entry.address.0);
    if image.is_text(entry.address, 1) {
        elf.bytes_at(entry.address, length)
    } else {
        &[]
    }
}
