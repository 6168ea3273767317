//! Open calls get their own return addresses back, so that they return without us.
//!
//! While a call is open, the address of a stub lies in its stack slot, and its own return address in the mirror's word of that
//! slot. So in every slot of the mirror whose place on the stack holds an address of a stub, the mirror's word is put. A slot
//! that is out of use gets what it held once, which does no harm. The guest is stopped, and no site leads to a stub.

use terms::addr::Gva;

use super::PAGE;
use super::stacks::is_free;
use crate::target::{MemoryError, TextMemory};
use crate::window::title::MirrorMemory;

const WORD: usize = 8;

/// Puts return addresses back where addresses that `is_stub` says lie on stacks. Returns how many.
///
/// # Errors
/// [`MemoryError`] when the mirror cannot be read. A page of stack that is mapped no more has no open calls.
pub fn give_back(
    target: &mut (impl TextMemory + ?Sized),
    mirror: MirrorMemory,
    is_stub: impl Fn(u64) -> bool,
) -> Result<u64, MemoryError> {
    let (mut stack, mut kept) = (page(), page());
    let mut tags = vec![0; usize::try_from(mirror.count).unwrap_or_default() * WORD];
    target.read_physical(mirror.directory, &mut tags)?;
    let mut given = 0;
    for (index, tag) in words(&tags).enumerate().filter(|(_, tag)| !is_free(*tag)) {
        let at = Gva(tag.wrapping_mul(PAGE));
        if target.read(at, &mut stack).is_err() || !words(&stack).any(&is_stub) {
            continue;
        }
        target.read_physical(mirror.pages.wrapping_add(index as u64 * PAGE), &mut kept)?;
        for (slot, (there, own)) in words(&stack).zip(words(&kept)).enumerate() {
            if is_stub(there) && own != 0 && !is_stub(own) {
                let slot = at.wrapping_add((slot * WORD) as u64);
                target.write(slot, &own.to_le_bytes())?;
                given += 1;
            }
        }
    }
    Ok(given)
}

fn page() -> Vec<u8> {
    vec![0; usize::try_from(PAGE).unwrap_or_default()]
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.chunks_exact(WORD);
    words.filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::target::TargetMemory;

    const STUBS: std::ops::Range<u64> = 0xffff_ffff_b000_0000..0xffff_ffff_b000_1000;

    #[test]
    fn open_calls_get_their_return_addresses_and_nothing_else_is_written() {
        let mut target = MockTarget::new(1, 1 << 21);
        let ram = Gpa(0x40_0000);
        let mirror = MirrorMemory {
            directory: ram.wrapping_add(0x10_0000),
            pages: ram.wrapping_add(0x11_0000),
            count: 4,
        };
        let stack = Gva(0xffff_c900_0000_0000);
        let lies = ram.wrapping_add(0x20_0000);
        target.map(stack, lies, PAGE, Rights::ALL).unwrap();
        let own = 0xffff_ffff_8100_1234u64;
        let write = |target: &mut MockTarget, at: Gpa, word: u64| {
            target.write_physical(at, &word.to_le_bytes()).unwrap();
        };
        // Nobody, a page that is not mapped, and the stack.
        write(&mut target, mirror.directory, super::super::Mirror::NOBODY);
        write(&mut target, mirror.directory.wrapping_add(8), 0x7777);
        write(
            &mut target,
            mirror.directory.wrapping_add(16),
            stack.0 / PAGE,
        );
        let kept = mirror.pages.wrapping_add(2 * PAGE);
        for (slot, there, own) in [
            (1, STUBS.start, own),
            (2, STUBS.end, own),
            (3, STUBS.start + 8, 0),
            (4, STUBS.start + 8, STUBS.start),
        ] {
            let at = stack.wrapping_add(slot * 8);
            target.write(at, &there.to_le_bytes()).unwrap();
            write(&mut target, kept.wrapping_add(slot * 8), own);
        }
        let given = give_back(&mut target, mirror, |word| STUBS.contains(&word));
        assert_eq!(given, Ok(1));
        let held = |slot: u64| {
            let mut word = [0; 8];
            target
                .read(stack.wrapping_add(slot * 8), &mut word)
                .unwrap();
            u64::from_le_bytes(word)
        };
        let after = [own, STUBS.end, STUBS.start + 8, STUBS.start + 8];
        assert_eq!([1, 2, 3, 4].map(held), after);
    }
}
