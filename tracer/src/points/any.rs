//! Functions without patch sites: how a jump can be put at their entries all the same, and which of them must be
//! left alone.
//!
//! A tracer at an entry stands where the return address is on top of the stack, as at a site of `-mfentry`. What is
//! left out beyond what no tactic allows: code that is entered otherwise than by a call, or left otherwise than by
//! a return (entry code: it may run with another GS base, or on no stack); functions too short to
//! be worth it; and functions that branch back to their own entry, of which a round would count as a call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use image::{Image, Site, SiteForm, SiteKind, UntraceableReason};
use insn::flow::{branches_to, leaves_kernel};
use insn::scan::{landing_pad, other_return};
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use super::tactic::{JumpPlace, Tactic, TacticError, choose_beside};
use crate::filter::DenyList;

/// Why the entry of a function is not traced although it has no site.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAny {
    /// It is not in the text.
    #[error("not in executable text")]
    OutsideText,
    /// It has fewer bytes than a jump.
    #[error("it has {bytes} bytes, a jump has 5")]
    Short {
        /// How many.
        bytes: usize,
    },
    /// Its name is one of those that are never traced.
    #[error("never traced ('{glob}': {why})")]
    Never {
        /// The glob in the built-in list, or what it lies between.
        glob: &'static str,
        /// Why it is there.
        why: &'static str,
    },
    /// It enters or leaves ring 0, or returns otherwise than by `ret`.
    #[error("its instruction at {at} enters or leaves ring 0, or returns otherwise than by `ret`")]
    EntryCode {
        /// The instruction.
        at: Gva,
    },
    /// It is one loop.
    #[error("its branch at {at} leads to its own entry: each round would count as a call")]
    Loop {
        /// The branch.
        at: Gva,
    },
    /// Only a hop would do.
    #[error("only two bytes of its entry can be replaced")]
    Hop,
    /// Only a breakpoint would do.
    #[error("no jump can be put at its entry, only a breakpoint")]
    Breakpoint,
    /// No tactic is possible.
    #[error(transparent)]
    Tactic(#[from] TacticError),
}

impl NotAny {
    /// The reason without what is particular to one function: for totals.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::OutsideText => "not in executable text",
            Self::Short { .. } => "shorter than 5 bytes",
            Self::Never { .. } => "never traced",
            Self::EntryCode { .. } => "enters or leaves ring 0, or has another return",
            Self::Loop { .. } => "loops to its own entry",
            Self::Hop => "only by a hop",
            Self::Breakpoint => "only by a breakpoint",
            Self::Tactic(_) => "no tactic",
        }
    }
}

/// How each function without a site can be traced, ascending. Padding is given to each in turn.
#[must_use]
pub fn without_sites(image: &Image) -> Vec<(FunctionId, Result<JumpPlace, NotAny>)> {
    let never = DenyList::without_sites(image).ok();
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    for entry in &image.untraceable {
        let place = entry_of(image, entry.function, never.as_ref(), &taken);
        if entry.reason == UntraceableReason::OutsideText {
            found.push((entry.function, Err(NotAny::OutsideText)));
            continue;
        }
        if let Ok(JumpPlace {
            padding: Some(padding),
            ..
        }) = &place
        {
            taken.insert(padding.at);
        }
        found.push((entry.function, place));
    }
    found
}

fn entry_of(
    image: &Image,
    id: FunctionId,
    never: Option<&DenyList>,
    taken: &BTreeSet<Gva>,
) -> Result<JumpPlace, NotAny> {
    let function = image.function(id).ok_or(NotAny::OutsideText)?;
    if let Some((glob, why)) = never.and_then(|list| list.forbids_function(function)) {
        return Err(NotAny::Never { glob, why });
    }
    let code = image.code(id);
    let bytes = code.len();
    if bytes < SITE_LENGTH {
        return Err(NotAny::Short { bytes });
    }
    if let Some(at) =
        leaves_kernel(code, function.address).or_else(|| other_return(code, function.address))
    {
        return Err(NotAny::EntryCode { at });
    }
    let at = function.address.wrapping_add(landing_pad(code));
    if let Some(at) = branches_to(code, function.address, at) {
        return Err(NotAny::Loop { at });
    }
    let place = choose_beside(image, at, None, taken)?;
    if place.tactic == Tactic::Breakpoint {
        // A breakpoint costs what tracing every call of a function must not.
        return Err(NotAny::Breakpoint);
    }
    Ok(place)
}

/// Gives the functions of `image` without a site one where their first instructions can be displaced, and says of
/// the others why not. How many that are.
pub fn admit(image: &mut Image) -> usize {
    let mut refused = BTreeMap::new();
    let mut count = 0;
    for (function, place) in without_sites(image) {
        match place.and_then(|place| site_of(image, &place)) {
            Ok(site) => {
                image.sites.push(site);
                count += 1;
            }
            Err(why) => {
                refused.insert(function, why);
            }
        }
    }
    image.sites.sort_by_key(|site| site.function);
    let mut left = std::mem::take(&mut image.untraceable);
    left.retain_mut(|entry| {
        let why = refused.get(&entry.function);
        if let (Some(why), UntraceableReason::NotInstrumented) = (why, &entry.reason) {
            entry.reason = UntraceableReason::NotDisplaced {
                class: why.class(),
                why: why.to_string().into(),
            };
        }
        why.is_some()
    });
    image.untraceable = left;
    count
}

/// The site that a place becomes.
fn site_of(image: &Image, place: &JumpPlace) -> Result<Site, NotAny> {
    let bytes = SiteBytes::of(&place.displaced).ok_or(NotAny::OutsideText)?;
    let original = place.displaced.first_chunk().ok_or(NotAny::OutsideText)?;
    let form = match place.tactic {
        Tactic::One => SiteForm::One(bytes),
        Tactic::Several => SiteForm::Several(bytes),
        _ => return Err(NotAny::Hop),
    };
    let function = image.function(place.function).ok_or(NotAny::OutsideText)?;
    Ok(Site {
        address: place.at,
        function: place.function,
        symbol: Arc::clone(&function.name),
        kind: SiteKind::Displaced,
        form,
        original: *original,
    })
}

#[cfg(test)]
mod tests {
    use image::testing::{ElfFile, TEXT};

    use super::*;

    /// xor eax, eax; push rbx; jne to the push; ret: only a hop, or a breakpoint.
    const HOP: [u8; 6] = [0x31, 0xc0, 0x53, 0x75, 0xfd, 0xc3];
    const PADDING: [u8; 6] = [0xcc; 6];

    /// What can be put at each of these functions, which lie one after the other with padding between them.
    fn places(functions: &[(&'static str, &[u8], &[u8])]) -> Vec<Result<Tactic, NotAny>> {
        let mut text = Vec::new();
        let mut file = ElfFile::new();
        for (name, code, padding) in functions {
            let at = TEXT + text.len() as u64;
            file = file.function(name, at, code.len() as u64);
            text.extend([code, padding].into_iter().flat_map(|part| part.iter()));
        }
        let image = Image::parse(&file.text(TEXT, &text).build()).unwrap();
        let places = without_sites(&image).into_iter();
        places
            .map(|(_, place)| place.map(|place| place.tactic))
            .collect()
    }

    #[test]
    fn a_function_without_room_is_left_alone_and_the_reason_is_said() {
        let bytes = 3;
        let short = places(&[("short", &[0x31, 0xc0, 0xc3], &[])]);
        assert_eq!(short, [Err(NotAny::Short { bytes })]);
        // A breakpoint would cost what tracing every call must not.
        assert_eq!(places(&[("hop", &HOP, &[])]), [Err(NotAny::Breakpoint)]);
        // mov eax, 1; ret: as many bytes as a jump, and one.
        let wide = places(&[("wide", &[0xb8, 1, 0, 0, 0, 0xc3], &[])]);
        assert_eq!(wide, [Ok(Tactic::One)]);
        // xor eax, eax; nop; jmp to the entry
        let at = Gva(TEXT + 3);
        let looping = places(&[("round", &[0x31, 0xc0, 0x90, 0xeb, 0xfb], &[])]);
        assert_eq!(looping, [Err(NotAny::Loop { at })]);
    }

    /// Linux' processors come from 32 bits to the first of these and go on to the second, which has had other names.
    #[test]
    fn what_runs_before_the_gs_base_is_set_is_left_alone() {
        let all = ["secondary_startup_64", "any_name", "verify_cpu", "after"];
        let mut file =
            ElfFile::new().data(".banner", TEXT - 0x1_0000, b"Linux version 7.3.4 (a)\0");
        let mut text = Vec::new();
        for name in all {
            file = file.function(name, TEXT + text.len() as u64, 6);
            // mov eax, 1; ret
            text.extend([0xb8, 1, 0, 0, 0, 0xc3]);
        }
        let image = Image::parse(&file.text(TEXT, &text).build()).unwrap();
        assert!(image.linux.is_some());
        let reasons: Vec<_> = without_sites(&image)
            .into_iter()
            .map(|(_, place)| match place {
                Err(NotAny::Never { glob, .. }) => glob,
                _ => "",
            })
            .collect();
        let between = "secondary_startup_64 to verify_cpu";
        assert_eq!(reasons, ["*startup_64*", between, "verify_cpu", ""]);
    }

    #[test]
    fn padding_is_given_to_one_function_only() {
        let one = places(&[("first", &HOP, &PADDING), ("second", &HOP, &[])]);
        assert_eq!(one, [Ok(Tactic::Hop), Err(NotAny::Breakpoint)]);
        // Padding is what lies between two functions.
        let last: (_, &[u8], &[u8]) = ("last", &[0x31, 0xc0, 0xc3], &[]);
        let two = places(&[("first", &HOP, &PADDING), ("second", &HOP, &PADDING), last]);
        let short = Err(NotAny::Short { bytes: 3 });
        assert_eq!(two, [Ok(Tactic::Hop), Ok(Tactic::Hop), short]);
    }
}
