//! Open calls get their own return addresses back, so that they return without us.
//!
//! While a call is open, the address of a stub lies in its stack slot, and its own return address in the mirror's word of that
//! slot. So in every slot of the mirror whose place on the stack holds an address of a stub, the mirror's word is put. A slot
//! that is out of use gets what it held once, which does no harm. The guest is stopped, and no site leads to a stub.
//!
//! Not every address of a stub on a stack is a return address that was hooked: who is *in* a stub, and has lost its vCPU there,
//! has it in the frame of the interrupt, and has called routines of ours. Where that was, the mirror's word is of some call
//! before. So pages of who is in a stub are left alone: it comes out of there, and this is tried again.

use terms::addr::Gva;

use super::PAGE;
use super::stacks::is_free;
use crate::target::{MemoryError, StoppedTarget, TextMemory};
use crate::window::title::MirrorMemory;

const WORD: usize = 8;

/// More than a stub and the routines that it calls keep on a stack, and an interrupt below that.
const DEEP: usize = 512;

/// The rest of a frame that begins with the last word of a page, up to its stack pointer.
const ACROSS: usize = 3 * WORD;

/// Puts return addresses back where addresses that `is_stub` says lie on stacks, but of who is in a stub. Returns how many.
///
/// # Errors
/// [`MemoryError`] when the mirror cannot be read. A page of stack that is mapped no more has no open calls.
pub fn give_back(
    target: &mut (impl StoppedTarget + ?Sized),
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
        if executes_at(target, at, &is_stub) || was_interrupted_at(target, at, &stack, &is_stub) {
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

/// Whether a vCPU is in a stub, with its stack in this page or so little below that the stub's words can be in it.
fn executes_at(
    target: &(impl StoppedTarget + ?Sized),
    at: Gva,
    is_stub: &impl Fn(u64) -> bool,
) -> bool {
    let mut vcpus = target.vcpus().iter().filter(|vcpu| vcpu.online);
    vcpus.any(|vcpu| {
        is_stub(vcpu.rip)
            && (at.0..at.0 + PAGE + DEEP as u64).contains(&(vcpu.rsp.wrapping_add(DEEP as u64)))
    })
}

/// The same of a thread that was interrupted: the processor keeps where, by which selector, and the stack pointer, which is just
/// above that (Intel SDM vol. 3, 6.14.2; with FRED up to 128 bytes above).
fn was_interrupted_at(
    target: &(impl TextMemory + ?Sized),
    at: Gva,
    page: &[u8],
    is_stub: &impl Fn(u64) -> bool,
) -> bool {
    let (mut below, mut above) = ([0; DEEP], [0; ACROSS]);
    let start = Gva(at.0.wrapping_sub(DEEP as u64));
    // Where nothing is mapped there is no frame.
    let _ = target.read(start, &mut below);
    let _ = target.read(at.wrapping_add(PAGE), &mut above);
    let all: Vec<u64> = words(&below)
        .chain(words(page))
        .chain(words(&above))
        .collect();
    let mut frames = (0u64..).zip(all.windows(4));
    frames.any(|(index, frame)| match *frame {
        [rip, cs, _, rsp] => {
            let end = start.0.wrapping_add(8 * index + 40);
            let is_selector = cs & 0xffff != 0 && cs & 7 == 0;
            is_stub(rip) && is_selector && rsp.wrapping_sub(end) < 128
        }
        _ => false,
    })
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

    /// The word that an interrupt has kept was once taken for a return address: the thread would have gone on with the registers
    /// of the stub where some call before had returned to.
    #[test]
    fn who_is_in_a_stub_stays_there() {
        const IN_STUB: u64 = STUBS.start + 0x40;
        const HOOKED: u64 = 100;
        let stack = Gva(0xffff_c900_0000_1000);
        let own = 0xffff_ffff_8100_1234u64;
        let given = |frame: Option<i64>, rsp: Option<u64>| {
            let mut target = MockTarget::new(1, 1 << 21);
            let ram = Gpa(0x40_0000);
            let mirror = MirrorMemory {
                directory: ram.wrapping_add(0x10_0000),
                pages: ram.wrapping_add(0x11_0000),
                count: 1,
            };
            let below = Gva(stack.0 - PAGE);
            let lies = ram.wrapping_add(0x20_0000);
            target.map(below, lies, 3 * PAGE, Rights::ALL).unwrap();
            let tag = stack.0 / PAGE;
            target
                .write_physical(mirror.directory, &tag.to_le_bytes())
                .unwrap();
            for slot in 0..PAGE / 8 {
                let at = mirror.pages.wrapping_add(8 * slot);
                target.write_physical(at, &own.to_le_bytes()).unwrap();
            }
            let mut write = |slot: i64, word: u64| {
                let at = Gva(stack.0.wrapping_add_signed(8 * slot));
                target.write(at, &word.to_le_bytes()).unwrap();
            };
            write(HOOKED.cast_signed(), STUBS.start + 8);
            if let Some(slot) = frame {
                let end = stack.0.wrapping_add_signed(8 * slot + 40);
                for (index, word) in (0..).zip([IN_STUB, 0x10, 0x246, end + 8, 0x18]) {
                    write(slot + index, word);
                }
            }
            if let Some(rsp) = rsp {
                let vcpu = &mut target.vcpus_mut()[0];
                (vcpu.rip, vcpu.rsp) = (IN_STUB, rsp);
            }
            give_back(&mut target, mirror, |word| STUBS.contains(&word)).unwrap()
        };
        assert_eq!(given(None, None), 1);
        // In the page, right below it, and across its end.
        for slot in [0, 200, -6, 511, 509] {
            assert_eq!(given(Some(slot), None), 0, "{slot}");
        }
        assert_eq!(given(Some(-100), None), 1, "it is of another stack");
        for (rsp, expected) in [(8, 0), (PAGE - 8, 0), (PAGE, 1)] {
            assert_eq!(given(None, Some(stack.0 + rsp)), expected, "{rsp}");
        }
        assert_eq!(given(None, Some(stack.0 - 8)), 0);
        assert_eq!(given(None, Some(stack.0 - PAGE)), 1);
    }
}
