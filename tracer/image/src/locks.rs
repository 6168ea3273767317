//! The list of lock prefixes: `.smp_locks`, a run of 32-bit distances from each entry to the prefix it
//! means, as Linux has it.

use insn::lock::is_locked;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::Image;
use super::elf::Elf;

const SECTION: &str = ".smp_locks";
/// A kernel that has this list rewrites its own instructions, lock prefixes among them.
const OWN_ALTERNATIVES: &str = ".altinstructions";
/// The longest instruction.
const INSTRUCTION_MAX: u64 = 15;

/// The first byte of a locked instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockSite {
    /// Where the prefix lies.
    pub address: Gva,
    /// The function it lies in.
    pub function: FunctionId,
}

/// The listed prefixes of `image`, whose functions and text are known. Remarks go to its notes.
pub(super) fn locate(image: &mut Image, elf: &Elf<'_>) {
    let lists = elf.sections_named(SECTION);
    if lists.is_empty() {
        return;
    }
    if !elf.sections_named(OWN_ALTERNATIVES).is_empty() {
        let note = format!("{SECTION}: left to the kernel, which has alternatives of its own");
        image.notes.push(note);
        return;
    }
    let mut listed: Vec<Gva> = lists.into_iter().flat_map(addresses).collect();
    listed.sort_unstable();
    listed.dedup();
    let site = |address: &Gva| {
        let is_site =
            image.is_text(*address, 1) && is_locked(elf.bytes_at(*address, INSTRUCTION_MAX));
        let function = is_site.then(|| image.function_at(*address))??;
        let address = *address;
        Some(LockSite { address, function })
    };
    let sites: Vec<LockSite> = listed.iter().filter_map(site).collect();
    image
        .notes
        .push(format!("{SECTION}: {} lock prefixes", sites.len()));
    if sites.len() < listed.len() {
        image.notes.push(format!(
            "{SECTION}: {} entries are no locked instruction of a function",
            listed.len() - sites.len()
        ));
    }
    image.locks = sites;
}

fn addresses((start, data): (Gva, &[u8])) -> impl Iterator<Item = Gva> {
    let (entries, _) = data.as_chunks::<4>();
    entries
        .iter()
        .zip((0..).step_by(4))
        .map(move |(entry, offset)| {
            let distance = i64::from(i32::from_le_bytes(*entry));
            Gva(start.0.wrapping_add(offset).wrapping_add_signed(distance))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    /// A list at `at` that means `targets`.
    fn entries(at: u64, targets: &[u64]) -> Vec<u8> {
        let distance = |(index, target): (u64, &u64)| {
            let from = at + 4 * index;
            u32::try_from(target.wrapping_sub(from) & 0xffff_ffff).unwrap()
        };
        (0..)
            .zip(targets)
            .map(distance)
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    fn file(targets: &[u64]) -> ElfFile {
        let list = TEXT - 0x8_0000;
        let locked = body(&[0x90, 0xf0, 0xff, 0x07, 0x3e, 0xff, 0x07]);
        ElfFile::new()
            .text(TEXT, &[locked, body(&[0xc3])].concat())
            .data(SECTION, list, &entries(list, targets))
            .function("counts", TEXT, 16)
    }

    #[test]
    fn listed_prefixes_are_sites_and_everything_else_is_said() {
        let image = Image::parse(
            &file(&[TEXT + 4, TEXT + 1, TEXT + 1, TEXT + 16, TEXT + 0x1000, 8]).build(),
        )
        .unwrap();
        let site = LockSite {
            address: Gva(TEXT + 1),
            function: FunctionId(0),
        };
        assert_eq!(image.locks, [site]);
        let notes = image.notes.join("\n");
        assert!(notes.contains(".smp_locks: 1 lock prefixes"), "{notes}");
        assert!(notes.contains("4 entries are no locked"), "{notes}");
    }

    #[test]
    fn a_kernel_with_alternatives_keeps_its_own() {
        let file = file(&[TEXT + 1]).data(OWN_ALTERNATIVES, TEXT - 0x7_0000, &[0; 16]);
        let image = Image::parse(&file.build()).unwrap();
        assert_eq!(image.locks, []);
        assert!(image.notes.join("\n").contains("alternatives of its own"));
    }
}
