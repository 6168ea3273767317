//! Open calls get their own return addresses back, so that they return without us.
//!
//! While a call is open, the address of a stub lies in its stack slot, and its own return address in the mirror's word of that
//! slot. So in every slot of the mirror whose place on the stack holds an address of a stub, the mirror's word is put. A slot
//! that is out of use gets what it held once, which does no harm. The guest is stopped, and no site leads to a stub.
//!
//! Not every address of a stub on a stack is a return address that was hooked: who is *in* a stub, and has lost its vCPU there,
//! has it in the frame of the interrupt, and has called routines of ours. Where that was, the mirror's word is of some call
//! before. So where that thread goes on, and what it keeps of ours right above, is left alone: it comes out of there, and this is
//! tried again.

use std::ops::Range;

use terms::addr::Gva;
use terms::region::Region;

use super::PAGE;
use super::stacks::is_free;
use crate::paging::{PageTableRoot, translate};
use crate::target::{MemoryError, StoppedTarget, TextMemory};
use crate::window::title::MirrorMemory;

const WORD: usize = 8;

/// More than a stub and the routines that it calls keep on a stack.
const KEPT: u64 = 256;

/// From the beginning of an interrupt's frame to its end, and from there to the stack pointer that it has kept.
const FRAME: u64 = 40;
const SKIPPED: u64 = 128;

/// The frame of an interrupt of whom something lies in a page begins no further below that.
const BELOW: usize = 424;
const _: () = assert!(BELOW as u64 == FRAME + SKIPPED + KEPT, "all of it");

/// The rest of a frame that begins with the last word of a page, up to its stack pointer.
const ACROSS: usize = 3 * WORD;

/// Puts return addresses back where addresses that `is_stub` says lie on stacks, but of who is in a stub. Nobody returns by what is
/// `unused` of the guest's memory, sorted or not: what an interrupt has left there is long over. Returns how many.
///
/// # Errors
/// [`MemoryError`] when the mirror cannot be read. A page of stack that is mapped no more has no open calls.
pub fn give_back(
    target: &mut (impl StoppedTarget + ?Sized),
    mirror: MirrorMemory,
    is_stub: impl Fn(u64) -> bool,
    unused: &[Region],
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
        let spared = spared(target, at, &stack, &is_stub, unused);
        target.read_physical(mirror.pages.wrapping_add(index as u64 * PAGE), &mut kept)?;
        for (slot, (there, own)) in words(&stack).zip(words(&kept)).enumerate() {
            let slot = at.wrapping_add((slot * WORD) as u64);
            let is_spared = spared.iter().any(|range| range.contains(&slot.0));
            if is_stub(there) && own != 0 && !is_stub(own) && !is_spared {
                target.write(slot, &own.to_le_bytes())?;
                given += 1;
            }
        }
    }
    Ok(given)
}

/// What is left alone of the page at `at`, and around it: where somebody who is in a stub goes on, and what a stub keeps.
fn spared(
    target: &(impl StoppedTarget + ?Sized),
    at: Gva,
    page: &[u8],
    is_stub: &impl Fn(u64) -> bool,
    unused: &[Region],
) -> Vec<Range<u64>> {
    let keeps = |rsp: u64| rsp..rsp.saturating_add(KEPT);
    let vcpus = target.vcpus().iter().filter(|vcpu| vcpu.online);
    let executing = vcpus.filter(|vcpu| is_stub(vcpu.rip));
    let mut spared: Vec<_> = executing.map(|vcpu| keeps(vcpu.rsp)).collect();
    for (frame, rsp) in interrupted(target, at, page, is_stub) {
        if !is_in(target, frame, unused) {
            spared.extend([frame.0..frame.0.saturating_add(WORD as u64), keeps(rsp)]);
        }
    }
    spared
}

/// Where a thread was interrupted in a stub, and its stack pointer there, of frames in a page or so near that they can be of a
/// stub that keeps something in it. The processor keeps where it goes on, by which selector, and the stack pointer, which is just
/// above (Intel SDM vol. 3, 6.14.2; with FRED up to 128 bytes above).
fn interrupted(
    target: &(impl TextMemory + ?Sized),
    at: Gva,
    page: &[u8],
    is_stub: &impl Fn(u64) -> bool,
) -> Vec<(Gva, u64)> {
    let (mut below, mut above) = ([0; BELOW], [0; ACROSS]);
    let start = Gva(at.0.wrapping_sub(BELOW as u64));
    // Where nothing is mapped there is no frame.
    let _ = target.read(start, &mut below);
    let _ = target.read(at.wrapping_add(PAGE), &mut above);
    let all: Vec<u64> = words(&below)
        .chain(words(page))
        .chain(words(&above))
        .collect();
    let frames = (0u64..).zip(all.windows(4));
    let frames = frames.filter_map(|(index, frame)| match *frame {
        [rip, cs, _, rsp] => {
            let place = start.wrapping_add(8 * index);
            let is_selector = cs & 0xffff != 0 && cs & 7 == 0;
            let above = rsp.wrapping_sub(place.0.wrapping_add(FRAME));
            (is_stub(rip) && is_selector && above < SKIPPED).then_some((place, rsp))
        }
        _ => None,
    });
    frames.collect()
}

/// Whether this address of the kernel's lies in one of these parts of memory.
fn is_in(target: &(impl StoppedTarget + ?Sized), at: Gva, parts: &[Region]) -> bool {
    if parts.is_empty() {
        return false;
    }
    let vcpus = target.vcpus().iter().filter(|vcpu| vcpu.online);
    let mut roots = vcpus.filter_map(|vcpu| PageTableRoot::of_text(target, vcpu, at).ok());
    let found = roots.find_map(|root| translate(target, root, at).ok());
    found.is_some_and(|found| parts.iter().any(|part| part.holds(found.physical, 8)))
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
        let given = give_back(&mut target, mirror, |word| STUBS.contains(&word), &[]);
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

    const IN_STUB: u64 = STUBS.start + 0x40;
    const STACK: Gva = Gva(0xffff_c900_0000_1000);
    const LIES: Gpa = Gpa(0x60_0000);
    const OWN: u64 = 0xffff_ffff_8100_1234;

    /// A page of stack, with one above and one below, of which every slot was hooked once.
    fn stack() -> (MockTarget, MirrorMemory) {
        let mut target = MockTarget::new(1, 1 << 21);
        let mirror = MirrorMemory {
            directory: Gpa(0x50_0000),
            pages: Gpa(0x51_0000),
            count: 1,
        };
        for page in 0..3 {
            let at = Gva(STACK.0 - PAGE + page * PAGE);
            let lies = LIES.wrapping_add(page * PAGE);
            target.map(at, lies, PAGE, Rights::ALL).unwrap();
        }
        let tag = STACK.0 / PAGE;
        target
            .write_physical(mirror.directory, &tag.to_le_bytes())
            .unwrap();
        for slot in 0..PAGE / 8 {
            let at = mirror.pages.wrapping_add(8 * slot);
            target.write_physical(at, &OWN.to_le_bytes()).unwrap();
        }
        (target, mirror)
    }

    fn put(target: &mut MockTarget, slot: i64, word: u64) {
        let at = Gva(STACK.0.wrapping_add_signed(8 * slot));
        target.write(at, &word.to_le_bytes()).unwrap();
    }

    /// The frame of an interrupt in a stub, whose first word is in this slot.
    fn interrupt(target: &mut MockTarget, slot: i64) {
        let end = STACK.0.wrapping_add_signed(8 * slot + 40);
        for (index, word) in (0..).zip([IN_STUB, 0x10, 0x246, end + 8, 0x18]) {
            put(target, slot + index, word);
        }
    }

    fn given(target: &mut MockTarget, mirror: MirrorMemory, unused: &[Region]) -> u64 {
        give_back(target, mirror, |word| STUBS.contains(&word), unused).unwrap()
    }

    /// The word that an interrupt has kept was once taken for a return address: the thread would have gone on with the registers
    /// of the stub where some call before had returned to.
    #[test]
    fn who_was_interrupted_in_a_stub_stays_there() {
        const OPEN: i64 = 400;
        // In the page, right below it, and across its end.
        for slot in [0, 200, -6, 511, 509] {
            let (mut target, mirror) = stack();
            put(&mut target, OPEN, STUBS.start + 8);
            // A routine of ours returns there.
            let routine = slot + 7;
            if (0..512).contains(&routine) {
                put(&mut target, routine, STUBS.start + 0x48);
            }
            interrupt(&mut target, slot);
            assert_eq!(given(&mut target, mirror, &[]), 1, "{slot}");
            let mut word = [0; 8];
            let place = Gva(STACK.0.wrapping_add_signed(8 * slot));
            target.read(place, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), IN_STUB, "{slot}");
        }
    }

    /// A stack goes on over the end of a page: what a stub keeps lies in another one than where it was interrupted.
    #[test]
    fn what_an_interrupted_stub_keeps_in_the_next_page_stays_there() {
        // The stack pointer is 48 bytes above where the frame begins.
        for (frame, kept, expected) in [(-25, 1, 0), (-37, 0, 0), (-38, 0, 1), (-25, 13, 1)] {
            let (mut target, mirror) = stack();
            put(&mut target, kept, STUBS.start + 0x48);
            interrupt(&mut target, frame);
            assert_eq!(given(&mut target, mirror, &[]), expected, "{frame} {kept}");
        }
    }

    #[test]
    fn who_executes_in_a_stub_stays_there() {
        for (rsp, expected) in [(8 * 400, 1), (8 * 380, 1), (8 * 300, 2), (8 * 401, 2)] {
            let (mut target, mirror) = stack();
            for slot in [100, 400] {
                put(&mut target, slot, STUBS.start + 8);
            }
            let vcpu = &mut target.vcpus_mut()[0];
            (vcpu.rip, vcpu.rsp) = (IN_STUB, STACK.0 + rsp);
            assert_eq!(given(&mut target, mirror, &[]), expected, "{rsp}");
        }
    }

    /// It lies below what its thread uses: nobody goes on there.
    #[test]
    fn what_an_interrupt_has_left_behind_keeps_nothing() {
        let (mut target, mirror) = stack();
        interrupt(&mut target, 100);
        // Right above.
        put(&mut target, 110, STUBS.start + 8);
        assert_eq!(given(&mut target, mirror, &[]), 0);
        let unused = Region {
            start: LIES.wrapping_add(PAGE),
            bytes: 8 * 108,
        };
        // That one too: no one reads it.
        assert_eq!(given(&mut target, mirror, &[unused]), 2);
    }
}
