//! The list that a kernel has of the GS bases of its processors, of those that have not been started too.
//!
//! Stubs find the cell of their vCPU by its GS base. A vCPU can be started, or started again, long after
//! tracing was attached, and what it executes first may be traced: so its base must be known before. Which list it is and
//! what is a base in it, depends on the kind of guest (`Personality`).

use image::Image;
use terms::addr::Gva;

use super::cell::NoGsBase;
use crate::guest_kind;
use crate::personality::{PROCESSORS_MAX, Personality};
use crate::target::TargetMemory;

/// The bases that the kernel of `image` lists: those of its first `vcpus` processors, and after them those of all that can still
/// come. None where it has no list or that is not mapped yet.
///
/// # Errors
/// [`NoGsBase::NotSetUp`] when an entry of the list has not been filled in.
pub fn listed(
    image: &Image,
    target: &(impl TargetMemory + ?Sized),
    vcpus: usize,
) -> Result<Vec<Gva>, NoGsBase> {
    let kind: &dyn Personality = guest_kind::of(image);
    let Some(at) = image.symbols.address_of(kind.gs_bases()) else {
        return Ok(Vec::new());
    };
    let Ok(words) = target.read_words(at, vcpus) else {
        return Ok(Vec::new());
    };
    let mut bases: Vec<Gva> = words.into_iter().map(Gva).collect();
    let mut numbered = bases.iter().copied().enumerate();
    if let Some((vcpu, base)) = numbered.find(|(_, base)| !kind.is_gs_base(*base)) {
        return Err(NoGsBase::NotSetUp { vcpu, base });
    }
    if let Some(count) = processors(image, target) {
        let others = at.wrapping_add(8 * vcpus as u64);
        let others = target.read_words(others, count.saturating_sub(vcpus));
        let others = others.unwrap_or_default().into_iter().map(Gva);
        // One that is not filled in is that of no processor.
        bases.extend(others.filter(|base| kind.is_gs_base(*base)));
    }
    Ok(bases)
}

/// How many processors there can ever be, as far as the kernel says.
fn processors(image: &Image, target: &(impl TargetMemory + ?Sized)) -> Option<usize> {
    let symbol = guest_kind::of(image).processors()?;
    let mut count = [0; 4];
    target
        .read(image.symbols.address_of(symbol)?, &mut count)
        .ok()?;
    Some(u32::from_le_bytes(count).min(PROCESSORS_MAX) as usize)
}

#[cfg(test)]
mod tests {
    use image::{Linux, Symbol, SymbolKind, SymbolTable};
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::paging::PAGE_4K;

    const AT: Gva = Gva(0xffff_ffff_8000_0000);
    const PHYSICAL: Gpa = Gpa(0x180_0000);
    const BASES: [u64; 2] = [0xffff_8880_3e60_0000, 0xffff_8880_3e70_0000];

    fn image(name: &str, linux: bool) -> Image {
        let symbol = Symbol {
            address: AT,
            size: 16,
            name: name.into(),
            display: name.into(),
            kind: SymbolKind::Object,
            global: true,
        };
        Image {
            symbols: SymbolTable::new(vec![symbol]),
            linux: linux.then(|| Linux {
                version: "6.1.0".to_owned(),
                text: None,
                init_text: None,
                rodata: None,
                prepares_sites: true,
                identity: image::Identity::default(),
            }),
            ..Image::default()
        }
    }

    fn target(entries: [u64; 2]) -> MockTarget {
        let mut target = MockTarget::new(1, 1 << 21);
        target.map(AT, PHYSICAL, PAGE_4K, Rights::ALL).unwrap();
        for (at, entry) in (0..).zip(entries) {
            target.write_word(Gpa(PHYSICAL.0 + 8 * at), entry).unwrap();
        }
        target
    }

    #[test]
    fn a_list_that_is_complete_is_believed() {
        let expected = BASES.map(Gva).to_vec();
        for (symbol, linux) in [("__per_cpu_offset", true), ("vcpu_gs_bases", false)] {
            let image = image(symbol, linux);
            assert_eq!(listed(&image, &target(BASES), 2), Ok(expected.clone()));
        }
    }

    /// Those that were not filled in are of none, and no more is read than can be.
    #[test]
    fn processors_that_can_still_come_are_listed_after_those_that_are_there() {
        let mut image = image("__per_cpu_offset", true);
        let mut symbols = image.symbols.iter().cloned().collect::<Vec<_>>();
        symbols.push(Symbol {
            address: AT.wrapping_add(0x800),
            name: "nr_cpu_ids".into(),
            ..symbols[0].clone()
        });
        image.symbols = SymbolTable::new(symbols);
        let mut target = target(BASES);
        let later = BASES[1] + 0x10_0000;
        for (number, entry) in [
            (2, 0xffff_ffff_8360_0000),
            (3, later),
            (4, later + 0x10_0000),
        ] {
            target
                .write_word(Gpa(PHYSICAL.0 + 8 * number), entry)
                .unwrap();
        }
        let known = BASES.map(Gva).to_vec();
        for (count, later) in [
            (0, vec![]),
            (2, vec![]),
            (4, vec![Gva(later)]),
            (u64::MAX, vec![]),
        ] {
            target.write_word(Gpa(PHYSICAL.0 + 0x800), count).unwrap();
            let expected = [known.clone(), later].concat();
            assert_eq!(listed(&image, &target, 2), Ok(expected), "{count}");
        }
    }

    #[test]
    fn no_list_is_no_error() {
        assert_eq!(listed(&Image::default(), &target(BASES), 2), Ok(vec![]));
        // Another kernel's symbol of that name means nothing.
        let other = image("__per_cpu_offset", false);
        assert_eq!(listed(&other, &target(BASES), 2), Ok(vec![]));
        let unmapped = MockTarget::new(1, 1 << 21);
        let linux = image("__per_cpu_offset", true);
        assert_eq!(listed(&linux, &unmapped, 2), Ok(vec![]));
    }

    #[test]
    fn an_entry_that_was_not_filled_in_is_no_base() {
        let linux = image("__per_cpu_offset", true);
        for early in [0xffff_ffff_8360_0000, 0] {
            let base = Gva(early);
            let refused = Err(NoGsBase::NotSetUp { vcpu: 1, base });
            assert_eq!(listed(&linux, &target([BASES[0], early]), 2), refused);
        }
    }
}
