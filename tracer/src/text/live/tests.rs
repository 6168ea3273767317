use std::collections::BTreeSet;

use image::testing::nop_image;
use insn::nop::NOP5;
use proptest::prelude::*;
use terms::addr::{Gpa, Gva};
use terms::site::SITE_LENGTH;

use super::*;
use crate::mock::{Faults, MockTarget, Rights};
use crate::target::{
    MemoryError, NotSynchronised, PhysicalMemory, TargetMemory, TextMemory, WindowMemory,
};

const JUMP: SiteBytes = SiteBytes::new([0xe9, 1, 2, 3, 4]);
const OLD: SiteBytes = SiteBytes::new(NOP5);

/// A machine whose vCPUs fetch ahead as much as they can: since the last serialising point they may have
/// seen every byte in each state that it was in.
struct Running {
    machine: MockTarget,
    sites: Vec<Gva>,
    /// For each byte of each site what may have been fetched.
    seen: Vec<[BTreeSet<u8>; SITE_LENGTH]>,
    /// Fails at these calls of `synchronise`, by number.
    late: BTreeSet<u32>,
    synchronised: u32,
    /// This byte is never stored there, though no write fails.
    loses: Option<(Gva, u8)>,
    /// At this call of `synchronise` the guest itself writes these bytes there.
    writes: Option<(u32, Gva, [u8; SITE_LENGTH])>,
}

impl Running {
    fn new(machine: MockTarget, sites: Vec<Gva>) -> Self {
        let mut running = Self {
            machine,
            seen: Vec::new(),
            sites,
            late: BTreeSet::new(),
            synchronised: 0,
            loses: None,
            writes: None,
        };
        running.forget();
        running
    }

    fn site(&self, at: Gva) -> [u8; SITE_LENGTH] {
        let mut sane = self.machine.clone();
        sane.faults = Faults::default();
        let mut bytes = [0; SITE_LENGTH];
        sane.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Every vCPU sees what is there now.
    fn forget(&mut self) {
        let now = self.sites.iter().map(|at| self.site(*at));
        self.seen = now
            .map(|bytes| bytes.map(|byte| BTreeSet::from([byte])))
            .collect();
    }

    /// Whatever the vCPUs have fetched of which byte, it is one of the three instructions.
    fn look(&mut self) {
        for (at, seen) in self.sites.iter().zip(self.seen.clone()) {
            let mut seen = seen;
            for (bytes, byte) in seen.iter_mut().zip(self.site(*at)) {
                bytes.insert(byte);
            }
            for first in seen[0].iter().filter(|first| **first != INT3) {
                let whole = [OLD, JUMP].map(|bytes| bytes.as_slice().to_vec());
                let whole = whole.iter().find(|bytes| bytes[0] == *first);
                let whole = whole.unwrap_or_else(|| panic!("{at}: foreign byte {first:02x}"));
                for (offset, bytes) in seen.iter().enumerate().skip(1) {
                    let only = BTreeSet::from([whole[offset]]);
                    assert_eq!(*bytes, only, "{at}: byte {offset} after {first:02x}");
                }
            }
        }
        let sites = self.sites.clone();
        for (at, seen) in sites.into_iter().zip(0..) {
            let now = self.site(at);
            for (offset, byte) in now.into_iter().enumerate() {
                self.seen[seen][offset].insert(byte);
            }
        }
    }
}

impl PhysicalMemory for Running {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.machine.read_physical(at, into)
    }
}

impl WindowMemory for Running {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.machine.write_window(at, bytes)
    }
}

impl TargetMemory for Running {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.machine.read(at, into)
    }
}

impl TextMemory for Running {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.machine.write_physical(at, bytes)
    }
    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        if bytes
            .first()
            .is_some_and(|first| self.loses == Some((at, *first)))
        {
            return Ok(());
        }
        let outcome = self.machine.write(at, bytes);
        self.look();
        outcome
    }
}

impl LiveTarget for Running {
    fn synchronise(&mut self) -> Result<(), NotSynchronised> {
        self.synchronised += 1;
        if let Some((_, at, bytes)) = self.writes.filter(|(when, ..)| *when == self.synchronised) {
            self.machine.write(at, &bytes).unwrap();
        }
        if self.late.contains(&self.synchronised) {
            return Err(NotSynchronised {
                vcpu: 1,
                milliseconds: 7,
            });
        }
        self.forget();
        Ok(())
    }
}

fn machine(functions: u64) -> (Image, Running, Vec<Poke>) {
    let image = nop_image(functions);
    let target = MockTarget::with_image(2, 0, &image, Rights::ALL).unwrap();
    let poke = |site: &image::Site| Poke {
        function: site.function,
        at: site.address,
        expected: OLD,
        new: JUMP,
    };
    let pokes: Vec<Poke> = image.sites.iter().map(poke).collect();
    let sites = pokes.iter().map(|poke| poke.at).collect();
    (image, Running::new(target, sites), pokes)
}

fn assert_all(target: &Running, bytes: SiteBytes) {
    for at in &target.sites {
        assert_eq!(target.site(*at), bytes.as_slice(), "{at}");
    }
}

#[test]
fn no_vcpu_ever_sees_a_mixture_in_either_direction() {
    let (image, mut target, pokes) = machine(6);
    apply(&mut target, &image, &pokes).unwrap();
    assert_all(&target, JUMP);
    let back: Vec<Poke> = pokes.iter().map(|poke| poke.reverse()).collect();
    apply(&mut target, &image, &back).unwrap();
    assert_all(&target, OLD);
    assert_eq!(
        target.synchronised, 6,
        "three for each change, however many sites"
    );
}

#[test]
fn a_vcpu_that_does_not_come_by_undoes_everything() {
    for late in 1..=3 {
        let (image, mut target, pokes) = machine(4);
        target.late.insert(late);
        let error = apply(&mut target, &image, &pokes).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("vCPU 1 did not leave the guest within 7 ms"),
            "{text}"
        );
        assert_eq!((error.undone, error.stuck.len()), (4, 0), "{text}");
        assert_all(&target, OLD);
    }
}

proptest! {
    #[test]
    fn a_site_that_fails_undoes_all(site in 0usize..5, offset in 0u64..5, kind in 0..3) {
        let (image, mut target, pokes) = machine(5);
        let at = pokes[site].at.wrapping_add(offset);
        let faults = &mut target.machine.faults;
        match kind {
            0 => faults.unreadable.insert(at),
            1 => faults.unwritable.insert(at),
            _ => faults.sticky.insert(at),
        };
        let error = apply(&mut target, &image, &pokes).unwrap_err();
        let named = error.to_string().contains(&format!("f{site}"));
        prop_assert!(named, "{}", error);
        assert_all(&target, OLD);
    }
}

/// Nothing is written over what somebody else has put there.
#[test]
fn a_site_that_holds_other_bytes_is_not_touched() {
    let (image, mut target, pokes) = machine(3);
    let foreign = [0xcc, 0x1f, 0x44, 0, 0];
    let at = pokes[1].at;
    target.machine.write(at, &foreign).unwrap();
    target.forget();
    let error = apply(&mut target, &image, &pokes).unwrap_err();
    assert_eq!((error.undone, error.stuck.len()), (1, 0), "{error}");
    let PokeError::Unexpected {
        found, expected, ..
    } = error.cause
    else {
        panic!("{error}");
    };
    assert_eq!((found.as_slice(), expected), (&foreign[..], OLD));
    let sites = [OLD.as_slice(), &foreign, OLD.as_slice()];
    for (poke, bytes) in pokes.iter().zip(sites) {
        assert_eq!(target.site(poke.at), bytes);
    }
}

/// The guest's own patching had come between, and was written over: it and its text differed.
#[test]
fn what_the_guest_writes_meanwhile_is_not_undone() {
    let foreign = [INT3, 9, 9, 9, 9];
    for when in [1, 2] {
        let (image, mut target, pokes) = machine(3);
        let at = pokes[1].at;
        target.writes = Some((when, at, foreign));
        let error = apply(&mut target, &image, &pokes).unwrap_err();
        assert_eq!((error.undone, error.stuck.len()), (2, 1), "{error}");
        let sites = [OLD.as_slice(), &foreign, OLD.as_slice()];
        for (poke, bytes) in pokes.iter().zip(sites) {
            assert_eq!(target.site(poke.at), bytes, "{when}");
        }
    }
}

/// What stands there after the last write is read back, too.
#[test]
fn a_first_byte_that_does_not_stay_undoes_all() {
    let (image, mut target, pokes) = machine(3);
    // The breakpoint is written there, the jump is not.
    target.loses = Some((pokes[2].at, 0xe9));
    let error = apply(&mut target, &image, &pokes).unwrap_err();
    assert!(error.to_string().contains("f2"), "{error}");
    assert_eq!((error.undone, error.stuck.len()), (3, 0), "{error}");
    assert_all(&target, OLD);
}
