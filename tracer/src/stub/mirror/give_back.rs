//! Open calls get their own return addresses back, so that they return without us.
//!
//! While a call is open, the address of a stub lies in its stack slot, and its own return address in the mirror's word of that
//! slot. So in every slot of the mirror whose place on the stack holds an address of a stub, the mirror's word is put. A slot
//! that is out of use gets what it held once, which does no harm. The guest is stopped, and no site leads to a stub.
//!
//! Not every address of a stub on a stack is a return address that was hooked: who is *in* a stub, and has lost its vCPU there,
//! has it in the frame of the interrupt, and has called routines of ours. Where that was, the mirror's word is of some call
//! before. So where that thread goes on, and what it keeps of ours right above, is left alone: it comes out of there, and this is
//! tried again. An interrupt that has a stack of its own (a non-maskable one) leaves its frame there: it is looked for from the stack
//! pointers of vCPUs on.
//!
//! Nor does everybody go on where such a frame lies. One that is long over stays in the room that a later call keeps on the stack and
//! does not write, as `poll` does for hundreds of bytes, and what lies right above it can be an open call of a task that sleeps for
//! days. So the kernel is asked which of them lie beside what it returns by; it is told where hooked calls return to.

use std::ops::Range;

use terms::addr::{Gpa, Gva};
use terms::region::{Region, any_holds};

use super::PAGE;
use super::stacks::is_free;
use crate::introspection::Introspection;
use crate::paging::{PageTableRoot, translate};
use crate::target::{MemoryError, StoppedTarget, TextMemory};
use crate::window::title::MirrorMemory;

const WORD: usize = 8;
/// Where a frame says where its thread goes on.
const FRAME_WORD: u64 = 8;

/// More than a stub and the routines that it calls keep on a stack.
const KEPT: u64 = 256;

/// Bits of RFLAGS that a processor never has otherwise: 1 is set, 3, 5, 15 and all from 22 on are clear (Intel SDM vol. 1, 3.4.3).
const FLAGS_FIXED: u64 = 0xffff_ffff_ffc0_802a;
const FLAGS_SET: u64 = 2;

/// From the beginning of an interrupt's frame to its end, and from there to the stack pointer that it has kept.
const FRAME: u64 = 40;
const SKIPPED: u64 = 128;

/// The frame of an interrupt of whom something lies in a page begins no further below that.
const BELOW: usize = 424;
const _: () = assert!(BELOW as u64 == FRAME + SKIPPED + KEPT, "all of it");

/// The rest of a frame that begins with the last word of a page, up to its stack pointer.
const ACROSS: usize = 3 * WORD;

/// Bytes above a vCPU's stack pointer in which the frame lies of an interrupt that has a stack of its own: no such stack is larger.
const OWN_STACK: u64 = 16 << 10;
/// Frames on such a stack that count: a guest can fill it with them, and interrupts nest less than that.
const NESTED_MAX: usize = 64;

/// Frames of which the kernel is asked: a guest can fill its stacks with them.
const ASKED_MAX: usize = 1 << 12;

/// Puts return addresses back where addresses that `is_stub` says lie on stacks, but of who is in a stub. Nobody returns by what the
/// kernel has said is not used of the guest's memory, in ascending order and without overlap: what an interrupt has left there is long over; of more it is
/// asked. Returns how many.
///
/// # Errors
/// [`MemoryError`] when the mirror cannot be read. A page of stack that is mapped no more has no open calls.
pub fn give_back(
    target: &mut (impl StoppedTarget + ?Sized),
    mirror: MirrorMemory,
    is_stub: impl Fn(u64) -> bool,
    (kernel, unused): (Option<&dyn Introspection>, &[Region]),
) -> Result<u64, MemoryError> {
    let (mut stack, mut kept) = (page(), page());
    let stacks = Stacks::with_stubs(target, mirror, &is_stub)?;
    let mut in_stubs = stacks.interrupted(target, &is_stub);
    leave_out_old(target, (kernel, unused), &mut in_stubs, |slot, there| {
        stacks.own_return(target, slot, there, &is_stub)
    });
    let mut executing = executing(target, &is_stub);
    executing.extend(met_on_other_stacks(target, &is_stub));
    // Once, and not for each page: a guest can have many frames on each of its stacks.
    let executing = merged(executing);
    let mut given = 0;
    for (at, lies) in stacks.0 {
        if target.read(at, &mut stack).is_err() {
            continue;
        }
        let spared = spared(at, &in_stubs);
        let is_kept = |slot: u64| holds(&spared, slot) || holds(&executing, slot);
        target.read_physical(lies, &mut kept)?;
        for (slot, (there, own)) in words(&stack).zip(words(&kept)).enumerate() {
            let slot = at.wrapping_add((slot * WORD) as u64);
            if is_stub(there) && own != 0 && !is_stub(own) && !is_kept(slot.0) {
                target.write(slot, &own.to_le_bytes())?;
                given += 1;
            }
        }
    }
    Ok(given)
}

/// Pages of stack with addresses of stubs, ascending, and where the mirror keeps the words of each.
struct Stacks(Vec<(Gva, Gpa)>);

impl Stacks {
    fn with_stubs(
        target: &(impl StoppedTarget + ?Sized),
        mirror: MirrorMemory,
        is_stub: &impl Fn(u64) -> bool,
    ) -> Result<Self, MemoryError> {
        let mut tags = vec![0; usize::try_from(mirror.count).unwrap_or_default() * WORD];
        target.read_physical(mirror.directory, &mut tags)?;
        let mut stack = page();
        let mut found = Vec::new();
        for (index, tag) in words(&tags).enumerate().filter(|(_, tag)| !is_free(*tag)) {
            let at = Gva(tag.wrapping_mul(PAGE));
            if target.read(at, &mut stack).is_ok() && words(&stack).any(is_stub) {
                found.push((at, mirror.pages.wrapping_add(index as u64 * PAGE)));
            }
        }
        found.sort_unstable();
        Ok(Self(found))
    }

    /// Where on them, or so near that it matters for them, threads were interrupted in stubs, ascending, each with its stack pointer
    /// there.
    fn interrupted(
        &self,
        target: &(impl TextMemory + ?Sized),
        is_stub: &impl Fn(u64) -> bool,
    ) -> Vec<(Gva, u64)> {
        let mut stack = page();
        let mut found = Vec::new();
        for (at, _) in &self.0 {
            if target.read(*at, &mut stack).is_ok() {
                found.extend(interrupted(target, *at, &stack, is_stub));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Where the call was made whose return address lies in this slot, if `there`, which lies in it, is a stub's.
    fn own_return(
        &self,
        target: &(impl StoppedTarget + ?Sized),
        slot: Gva,
        there: Gva,
        is_stub: &impl Fn(u64) -> bool,
    ) -> Gva {
        let at = Gva(slot.0 - slot.0 % PAGE);
        let page = self.0.binary_search_by_key(&at, |(page, _)| *page);
        let kept = page.ok().and_then(|index| self.0.get(index));
        let mut own = [0; WORD];
        match kept {
            Some((_, lies)) if is_stub(there.0) => {
                let read = target.read_physical(lies.wrapping_add(slot.0 % PAGE), &mut own);
                read.map_or(there, |()| Gva(u64::from_le_bytes(own)))
            }
            _ => there,
        }
    }
}

/// Leaves out the frames of which the kernel says that nobody goes on there.
fn leave_out_old(
    target: &(impl StoppedTarget + ?Sized),
    (kernel, unused): (Option<&dyn Introspection>, &[Region]),
    frames: &mut Vec<(Gva, u64)>,
    own: impl Fn(Gva, Gva) -> Gva,
) {
    // They ascend: of each page it is asked once where it lies, however many a guest has put there.
    let mut last = None;
    let with_place = |frame: (Gva, u64)| {
        let offset = frame.0.0 % PAGE;
        let page = Gva(frame.0.0 - offset);
        let lies = match last {
            Some((known, lies)) if known == page => lies,
            _ => physical(target, page),
        };
        last = Some((page, lies));
        (frame, lies.map(|lies| lies.wrapping_add(offset)))
    };
    let mut there: Vec<_> = frames.drain(..).map(with_place).collect();
    let is_over = |parts: &[Region], lies: Option<Gpa>| {
        lies.is_some_and(|lies| any_holds(parts, lies, FRAME_WORD))
    };
    there.retain(|(_, lies)| !is_over(unused, *lies));
    if let Some(kernel) = kernel.filter(|_| (1..=ASKED_MAX).contains(&there.len())) {
        let places: Vec<Gpa> = there.iter().filter_map(|(_, lies)| *lies).collect();
        let old = kernel.beside_returns(&target, target.vcpus(), &places, &own);
        there.retain(|(_, lies)| !is_over(&old, *lies));
    }
    frames.extend(there.into_iter().map(|(frame, _)| frame));
}

/// What vCPUs that execute stubs keep.
fn executing(
    target: &(impl StoppedTarget + ?Sized),
    is_stub: &impl Fn(u64) -> bool,
) -> Vec<Range<u64>> {
    let vcpus = target.vcpus().iter().filter(|vcpu| vcpu.online);
    let executing = vcpus.filter(|vcpu| is_stub(vcpu.rip));
    executing.map(|vcpu| keeps(vcpu.rsp)).collect()
}

/// What is kept by those of whom a vCPU has been taken in a stub by an interrupt with a stack of its own, as a non-maskable one, which it
/// is on now: its frame lies there, and tells of another stack. And where they go on.
fn met_on_other_stacks(
    target: &(impl StoppedTarget + ?Sized),
    is_stub: &impl Fn(u64) -> bool,
) -> Vec<Range<u64>> {
    let vcpus = target.vcpus().iter();
    let in_kernel = vcpus.filter(|vcpu| vcpu.online && vcpu.cpl == 0);
    let kept = in_kernel.flat_map(|vcpu| {
        let start = Gva(vcpu.rsp / FRAME_WORD * FRAME_WORD);
        let stack: Vec<u64> = words(&mapped(target, start, OWN_STACK)).collect();
        let met = frames(start, &stack, is_stub).filter(|frame| !is_just_above(frame));
        let met = met.take(NESTED_MAX);
        let met = met.flat_map(|(frame, rsp)| [goes_on(frame), keeps(rsp)]);
        met.collect::<Vec<_>>()
    });
    kept.collect()
}

/// Memory from `start` on, as far as it is mapped.
fn mapped(target: &(impl TextMemory + ?Sized), start: Gva, bytes: u64) -> Vec<u8> {
    let mut found = Vec::new();
    let mut at = start;
    while let Some(left) = bytes
        .checked_sub(at.0.wrapping_sub(start.0))
        .filter(|left| *left > 0)
    {
        let length = left.min(PAGE - at.0 % PAGE);
        let mut part = vec![0; usize::try_from(length).unwrap_or_default()];
        if target.read(at, &mut part).is_err() {
            break;
        }
        found.append(&mut part);
        at = at.wrapping_add(length);
    }
    found
}

/// What is left alone of the page at `at` for those who were interrupted in stubs near it, in ascending order and without overlap: where
/// each goes on, and what the stub keeps.
fn spared(at: Gva, in_stubs: &[(Gva, u64)]) -> Vec<Range<u64>> {
    let near = at.0.saturating_sub(BELOW as u64)..at.0.saturating_add(PAGE);
    let after = |bound: u64| in_stubs.partition_point(|(frame, _)| frame.0 < bound);
    let near = in_stubs.get(after(near.start)..after(near.end));
    let near = near.unwrap_or_default().iter();
    merged(
        near.flat_map(|(frame, rsp)| [goes_on(*frame), keeps(*rsp)])
            .collect(),
    )
}

/// These ranges in ascending order and without overlap.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let overlaps = next.start <= before.end;
        if overlaps {
            before.end = before.end.max(next.end);
        }
        overlaps
    });
    ranges
}

/// Whether one of these ranges, which ascend and do not overlap, has this address.
fn holds(ranges: &[Range<u64>], at: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= at);
    let last = after.checked_sub(1).and_then(|last| ranges.get(last));
    last.is_some_and(|range| range.contains(&at))
}

/// Where a frame says where its thread goes on.
const fn goes_on(frame: Gva) -> Range<u64> {
    frame.0..frame.0.saturating_add(FRAME_WORD)
}

/// What a stub keeps whose stack pointer this is.
const fn keeps(rsp: u64) -> Range<u64> {
    rsp..rsp.saturating_add(KEPT)
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
    frames(start, &all, is_stub).filter(is_just_above).collect()
}

/// Whether the stack pointer that a frame tells of is of the stack that it lies on.
const fn is_just_above((place, rsp): &(Gva, u64)) -> bool {
    rsp.wrapping_sub(place.0.wrapping_add(FRAME)) < SKIPPED
}

/// The frames among `words`, which lie at `start`, that say that a thread goes on in a stub, and its stack pointer there: a hooked
/// call returns to one, too, and what its caller keeps above that may look like a selector.
fn frames(
    start: Gva,
    words: &[u64],
    is_stub: &impl Fn(u64) -> bool,
) -> impl Iterator<Item = (Gva, u64)> {
    let frames = (0u64..).zip(words.windows(4));
    frames.filter_map(move |(index, frame)| match *frame {
        [rip, cs, flags, rsp] => {
            let is_selector = cs & 0xffff != 0 && cs & 7 == 0;
            let are_flags = flags & FLAGS_FIXED == FLAGS_SET;
            let is_frame = is_stub(rip) && is_selector && are_flags;
            is_frame.then_some((start.wrapping_add(8 * index), rsp))
        }
        _ => None,
    })
}

/// Where this address of the kernel's lies.
fn physical(target: &(impl StoppedTarget + ?Sized), at: Gva) -> Option<Gpa> {
    let vcpus = target.vcpus().iter().filter(|vcpu| vcpu.online);
    let mut roots = vcpus.filter_map(|vcpu| PageTableRoot::of_text(target, vcpu, at).ok());
    let found = roots.find_map(|root| translate(target, root, at).ok());
    found.map(|found| found.physical)
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
    use crate::introspection::{Returns, Untold};
    use crate::mock::{MockKernel, MockTarget, Rights};
    use crate::target::TargetMemory;

    const STUBS: std::ops::Range<u64> = 0xffff_ffff_b000_0000..0xffff_ffff_b000_1000;

    /// A guest can have hundreds of frames on each of thousands of pages: each word was once compared with all of them.
    #[test]
    fn what_is_spared_is_the_same_however_frames_overlap() {
        let at = Gva(0xffff_8880_0010_0000);
        let frames: Vec<(Gva, u64)> = [0, 8, 16, 24, 0x200, 0x208, 0xff8]
            .map(|offset| (at.wrapping_add(offset), at.0 + offset + FRAME))
            .into();
        let each = frames
            .iter()
            .flat_map(|(frame, rsp)| [frame.0..frame.0 + 8, keeps(*rsp)]);
        let each: Vec<_> = each.collect();
        let merged = spared(at, &frames);
        assert!(merged.len() < each.len(), "{merged:x?}");
        for slot in (at.0..at.0 + PAGE).step_by(WORD) {
            let is_spared = each.iter().any(|range| range.contains(&slot));
            assert_eq!(holds(&merged, slot), is_spared, "{slot:#x}");
        }
    }

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
        let given = give_back(
            &mut target,
            mirror,
            |word| STUBS.contains(&word),
            (None, &[]),
        );
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
        give_back(target, mirror, |word| STUBS.contains(&word), (None, unused)).unwrap()
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

    /// A non-maskable interrupt has its frame on a stack of its own: what the routine returned by, which it had met, was overwritten.
    #[test]
    fn who_was_interrupted_in_a_stub_by_what_has_a_stack_of_its_own_stays_there() {
        const OTHER: Gva = Gva(0xffff_fe00_0000_5000);
        let met_with = |cs: u64, flags: u64, offset: u64, cpl| {
            let (mut target, mirror) = stack();
            for page in [0, PAGE] {
                let lies = Gpa(0x70_0000).wrapping_add(page);
                target
                    .map(OTHER.wrapping_add(page), lies, PAGE, Rights::ALL)
                    .unwrap();
            }
            for slot in [100, 400] {
                put(&mut target, slot, STUBS.start + 8);
            }
            let frame = OTHER.wrapping_add(offset);
            let words = [IN_STUB, cs, flags, STACK.0 + 8 * 399, 0x18];
            for (at, word) in (0..).zip(words) {
                target
                    .write(frame.wrapping_add(8 * at), &word.to_le_bytes())
                    .unwrap();
            }
            let vcpu = &mut target.vcpus_mut()[0];
            (vcpu.rsp, vcpu.cpl) = (OTHER.0 + 0x800, cpl);
            given(&mut target, mirror, &[])
        };
        let met = |cs, offset, cpl| met_with(cs, 0x246, offset, cpl);
        // Right there, and across pages up to the end of what is mapped.
        for offset in [0x800, 0xff0, 2 * PAGE - 40] {
            assert_eq!(met(0x10, offset, 0), 1, "{offset:#x}");
        }
        // Below the stack pointer, no frame, and a vCPU that is on no stack of the kernel's.
        assert_eq!(met(0x10, 0x7f8, 0), 2);
        assert_eq!(met(0x33, 0x800, 0), 2);
        assert_eq!(met(0x10, 0x800, 3), 2);
        // An open call, what its caller keeps, a word against overflows of the stack, and where that returns: in flags one bit is
        // set always, and others never.
        assert_eq!(met_with(0x2_9c06_1860, 0x3deb_080c_515e_be00, 0x800, 0), 2);
        for flags in [0x244, 0x24e, 0x8246, 1 << 22 | 0x246, 1 << 63 | 0x246] {
            assert_eq!(met_with(0x10, flags, 0x800, 0), 2, "{flags:#x}");
        }
        assert_eq!(met_with(0x10, 0x3f_7fd7, 0x800, 0), 1);
    }

    /// Where such a frame lies is hooked, too: what it says is no return address.
    #[test]
    fn where_it_goes_on_is_left_alone_on_that_stack_too() {
        let (mut target, mirror) = stack();
        let elsewhere = STACK.0 + (1 << 20);
        for (index, word) in (0..).zip([IN_STUB, 0x10, 0x246, elsewhere, 0x18]) {
            put(&mut target, 100 + index, word);
        }
        put(&mut target, 400, STUBS.start + 8);
        target.vcpus_mut()[0].rsp = STACK.0 + 8 * 90;
        assert_eq!(given(&mut target, mirror, &[]), 1);
        let mut word = [0; 8];
        target.read(STACK.wrapping_add(800), &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), IN_STUB);
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

    /// It lay in the room that a sleeping `poll` kept, right below an open call, which was never given back.
    #[test]
    fn what_an_interrupt_has_left_behind_in_a_frame_of_later_keeps_nothing() {
        let (mut target, mirror) = stack();
        interrupt(&mut target, 100);
        put(&mut target, 110, STUBS.start + 8);
        let part = |slot: u64| Region {
            start: LIES.wrapping_add(PAGE + 8 * slot),
            bytes: 8,
        };
        let mut given = |beside: &[Region]| {
            let kernel = MockKernel(Returns::anywhere(Untold::Unknown), beside.to_vec());
            let told: (Option<&dyn Introspection>, _) = (Some(&kernel), &[][..]);
            give_back(&mut target, mirror, |word| STUBS.contains(&word), told).unwrap()
        };
        // Nothing is known of the frame, but of other words.
        assert_eq!(given(&[part(99), part(101), part(110)]), 0);
        // The word of the frame, too, which nobody reads.
        assert_eq!(given(&[part(100)]), 2);
    }

    #[test]
    fn more_frames_than_the_kernel_is_asked_of_are_all_left_alone() {
        let (mut target, mirror) = stack();
        let frames = || (0..=ASKED_MAX as u64).map(|index| (STACK.wrapping_add(8 * index), 0));
        let all = Region {
            start: LIES,
            bytes: 3 * PAGE,
        };
        let kernel = MockKernel(Returns::anywhere(Untold::Unknown), vec![all]);
        let left = |target: &MockTarget, unused: &[Region], mut frames: Vec<(Gva, u64)>| {
            let told: (Option<&dyn Introspection>, _) = (Some(&kernel), unused);
            leave_out_old(target, told, &mut frames, |_, there| there);
            frames.len()
        };
        assert_eq!(left(&target, &[], frames().collect()), ASKED_MAX + 1);
        // But for those that are mapped.
        let few = frames().skip(1).collect();
        assert_eq!(left(&target, &[], few), ASKED_MAX - 1023);
        // What is known not to be used is not asked about.
        let one = Region {
            start: LIES.wrapping_add(PAGE),
            bytes: 8,
        };
        assert_eq!(left(&target, &[one], frames().collect()), ASKED_MAX - 1023);
        put(&mut target, 7, STUBS.start);
        let is_stub = |word| STUBS.contains(&word);
        let stacks = Stacks::with_stubs(&target, mirror, &is_stub).unwrap();
        let own = |slot: u64, there| {
            stacks
                .own_return(&target, STACK.wrapping_add(8 * slot), Gva(there), &is_stub)
                .0
        };
        assert_eq!(own(7, STUBS.start), OWN);
        assert_eq!(
            (own(7, 0x1234), own(512, STUBS.start)),
            (0x1234, STUBS.start)
        );
    }
}
