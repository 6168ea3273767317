use image::testing::{TEXT, nop_image};
use insn::nop::NOP5;
use proptest::prelude::*;
use terms::addr::Gpa;
use terms::function::FunctionId;

use super::*;
use crate::mock::{MockTarget, Rights};
use crate::target::{MemoryError, PhysicalMemory, TargetMemory, TextMemory};

const OLD: SiteBytes = SiteBytes::new(NOP5);
const JUMP: SiteBytes = SiteBytes::new([0xe9, 1, 2, 3, 4]);

/// A guest that does something of its own right before each exchange, by the number of that.
struct Busy<F> {
    machine: MockTarget,
    meanwhile: F,
    exchanges: u32,
}

impl<F: FnMut(&mut MockTarget, u32)> Busy<F> {
    fn bytes<const N: usize>(&self, at: Gva) -> [u8; N] {
        let mut bytes = [0; N];
        self.machine.read(at, &mut bytes).unwrap();
        bytes
    }
}

impl<F> PhysicalMemory for Busy<F> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.machine.read_physical(at, into)
    }
}

impl<F> TargetMemory for Busy<F> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.machine.read(at, into)
    }
}

impl<F: FnMut(&mut MockTarget, u32)> AtomicTarget for Busy<F> {
    fn reaches(&self, at: Gva) -> bool {
        self.machine.reaches(at)
    }

    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError> {
        self.exchanges += 1;
        (self.meanwhile)(&mut self.machine, self.exchanges);
        self.machine.exchange(at, old, new)
    }
}

/// A guest with so many functions, and the pokes that have each of them jump.
fn guest<F: FnMut(&mut MockTarget, u32)>(
    functions: u64,
    meanwhile: F,
) -> (Image, Busy<F>, Vec<Poke>) {
    let image = nop_image(functions);
    let machine = MockTarget::with_image(2, 0, &image, Rights::ALL).unwrap();
    let pokes = image.sites.iter().map(|site| Poke {
        function: site.function,
        at: site.address,
        expected: OLD,
        new: JUMP,
    });
    let pokes = pokes.collect();
    let busy = Busy {
        machine,
        meanwhile,
        exchanges: 0,
    };
    (image, busy, pokes)
}

fn idle(_: &mut MockTarget, _: u32) {}

fn sites<F: FnMut(&mut MockTarget, u32)>(busy: &Busy<F>, pokes: &[Poke]) -> Vec<[u8; 5]> {
    pokes.iter().map(|poke| busy.bytes(poke.at)).collect()
}

const NONE: fn(usize) -> Shared = |_| Shared {
    before: false,
    after: false,
    is_its_own: true,
};
const BEFORE: Shared = Shared {
    before: true,
    after: false,
    is_its_own: true,
};

/// Of a guest that cannot be asked whether it changes its text.
fn apply<F: FnMut(&mut MockTarget, u32)>(
    busy: &mut Busy<F>,
    image: &Image,
    pokes: &[Poke],
    shared: impl Fn(usize) -> Shared,
) -> Result<Left, TransactionError> {
    super::apply(busy, image, pokes, shared, |_| None)
}

#[test]
fn each_site_is_one_exchange_and_the_rest_of_its_word_stays() {
    for offset in 0..8 {
        let (image, mut busy, pokes) = guest(1, idle);
        let word = pokes[0].at;
        let neighbours = [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7];
        busy.machine.write(word, &neighbours).unwrap();
        let at = word.wrapping_add(offset);
        busy.machine.write(at, &NOP5).unwrap();
        let poke = Poke { at, ..pokes[0] };
        let applied = apply(&mut busy, &image, &[poke], NONE);
        if offset > 3 {
            let why = applied.unwrap_err().cause;
            assert!(matches!(why, PokeError::NotOneWord { .. }), "{why}");
            assert_eq!(busy.exchanges, 0);
            continue;
        }
        assert_eq!(applied.unwrap(), Left::new());
        assert_eq!(busy.exchanges, 1);
        let mut expected = neighbours;
        let from = usize::try_from(offset).unwrap();
        expected[from..from + 5].copy_from_slice(JUMP.as_slice());
        assert_eq!(busy.bytes::<8>(word), expected);
    }
}

#[test]
fn what_the_guest_does_to_the_rest_of_the_word_is_kept() {
    let at = Gva(TEXT + 6);
    let (image, mut busy, pokes) = guest(1, |machine: &mut MockTarget, number| {
        if number < 4 {
            let byte = u8::try_from(number).unwrap();
            machine.write(at, &[byte]).unwrap();
        }
    });
    apply(&mut busy, &image, &pokes, NONE).unwrap();
    assert_eq!((busy.exchanges, busy.bytes(at)), (4, [3]));
    assert_eq!(sites(&busy, &pokes), [JUMP.as_slice()]);
}

#[test]
fn a_guest_that_never_rests_is_given_up() {
    let (image, mut busy, pokes) = guest(2, |machine: &mut MockTarget, number| {
        let byte = u8::try_from(number % 251).unwrap();
        machine.write(Gva(TEXT + 16 + 6), &[byte]).unwrap();
    });
    let error = apply(&mut busy, &image, &pokes, NONE).unwrap_err();
    assert!(error.cause.passes(), "{error}");
    assert_eq!((error.undone, error.stuck.len()), (1, 0), "{error}");
    assert_eq!(sites(&busy, &pokes), [OLD.as_slice(); 2]);
    assert_eq!(busy.exchanges, 1 + TRIES + 1);
}

#[test]
fn a_site_that_the_guest_takes_between_the_look_and_the_exchange_is_its_own() {
    let foreign = [0x0f, 0x1f, 0x44, 0x00, 0x01];
    let take = |machine: &mut MockTarget, number| {
        if number == 2 {
            machine.write(Gva(TEXT + 16), &foreign).unwrap();
        }
    };
    let (image, mut busy, pokes) = guest(3, take);
    let error = apply(&mut busy, &image, &pokes, NONE).unwrap_err();
    assert!(
        matches!(error.cause, PokeError::Unexpected { .. }),
        "{error}"
    );
    assert_eq!((error.undone, error.stuck.len()), (1, 0), "{error}");
    let stand = [OLD.as_slice(), &foreign, OLD.as_slice()];
    assert_eq!(sites(&busy, &pokes), stand);
    // Where that is allowed it is left out, and the others are made.
    let (image, mut busy, pokes) = guest(3, take);
    let left = apply(&mut busy, &image, &pokes, |poke| Shared {
        before: poke == 1,
        ..Shared::default()
    })
    .unwrap();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [1]);
    let stand = [JUMP.as_slice(), &foreign, JUMP.as_slice()];
    assert_eq!(sites(&busy, &pokes), stand);
}

#[test]
fn what_the_guest_writes_over_a_new_jump_stays_and_is_said() {
    let foreign = [0xcc, 0x1f, 0x44, 0x00, 0x01];
    let (image, mut busy, pokes) = guest(2, |machine: &mut MockTarget, number| {
        if number == 2 {
            machine.write(Gva(TEXT), &foreign).unwrap();
        }
    });
    let error = apply(&mut busy, &image, &pokes, NONE).unwrap_err();
    assert_eq!((error.undone, error.stuck.len()), (1, 1), "{error}");
    assert!(error.to_string().contains("f0"), "{error}");
    let stand = [&foreign[..], OLD.as_slice()];
    assert_eq!(sites(&busy, &pokes), stand);
}

/// Linux' own tracer looks at all of its sites first and writes them afterwards.
#[test]
fn a_site_whose_new_jump_the_guest_has_written_a_call_over_is_its_own() {
    let call = [0xe8, 1, 0, 0, 0];
    let over = |machine: &mut MockTarget, number| {
        if number == 2 {
            machine.write(Gva(TEXT), &call).unwrap();
        }
    };
    let (image, mut busy, pokes) = guest(2, over);
    let left = apply(&mut busy, &image, &pokes, |_| BEFORE).unwrap();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [0]);
    assert_eq!(sites(&busy, &pokes), [&call[..], JUMP.as_slice()]);
}

/// What the guest has just written it compares: a jump of ours that is there by then would be the end of it.
#[test]
fn nothing_is_put_into_the_text_of_a_guest_that_is_changing_it() {
    let (image, mut busy, pokes) = guest(3, idle);
    let patches = |_: &Busy<_>| Some(true);
    let error = super::apply(&mut busy, &image, &pokes, |_| BEFORE, patches).unwrap_err();
    assert!(
        matches!(error.cause, PokeError::GuestPatches { .. }),
        "{error}"
    );
    assert_eq!(busy.exchanges, 0);
    // Neither is what comes later, where it has begun meanwhile; what was put there before is taken away.
    let many = SEEN_TOGETHER as u64 + 1;
    let (image, mut busy, pokes) = guest(many, idle);
    let asked = std::cell::Cell::new(0);
    let patches = |_: &Busy<_>| Some(asked.replace(asked.get() + 1) > 2);
    let error = super::apply(&mut busy, &image, &pokes, |_| BEFORE, patches).unwrap_err();
    assert_eq!(
        (error.undone, error.stuck.len()),
        (SEEN_TOGETHER, 0),
        "{error}"
    );
    assert!(sites(&busy, &pokes).iter().all(|bytes| *bytes == NOP5));
    // Our own are taken away whatever it does.
    let (image, mut busy, pokes) = guest(1, idle);
    apply(&mut busy, &image, &pokes, NONE).unwrap();
    let back = [pokes[0].reverse()];
    let after = Shared {
        after: true,
        ..Shared::default()
    };
    super::apply(&mut busy, &image, &back, |_| after, |_| Some(true)).unwrap();
    assert_eq!(sites(&busy, &pokes), [NOP5]);
}

/// One that is given back after the guest was asked may not have been compared yet.
#[test]
fn a_site_that_was_the_guests_when_it_was_looked_at_is_left_even_if_it_is_given_back() {
    let (image, mut busy, pokes) = guest(2, |machine: &mut MockTarget, _| {
        machine.write(Gva(TEXT + 16), &NOP5).unwrap();
    });
    busy.machine
        .write(pokes[1].at, &[0xe8, 1, 0, 0, 0])
        .unwrap();
    let left = super::apply(&mut busy, &image, &pokes, |_| BEFORE, |_| Some(false)).unwrap();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [1]);
    assert_eq!(sites(&busy, &pokes), [JUMP.as_slice(), &NOP5]);
}

/// What is wrong with a site.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Unreadable,
    Unwritable,
    Sticky,
}

proptest! {
    #[test]
    fn a_site_that_fails_undoes_all(site in 0usize..5, offset in 0u64..5, kind in 0..3) {
        let (image, mut busy, pokes) = guest(5, idle);
        let at = pokes[site].at.wrapping_add(offset);
        let fault = [Fault::Unreadable, Fault::Unwritable, Fault::Sticky][usize::try_from(kind).unwrap()];
        let faults = &mut busy.machine.faults;
        match fault {
            Fault::Unreadable => faults.unreadable.insert(at),
            Fault::Unwritable => faults.unwritable.insert(at),
            Fault::Sticky => faults.sticky.insert(at),
        };
        let error = apply(&mut busy, &image, &pokes, |_| BEFORE).unwrap_err();
        let named = error.to_string().contains(&format!("f{site}"));
        prop_assert!(named, "{}", error);
        busy.machine.faults = crate::mock::Faults::default();
        let now = sites(&busy, &pokes);
        for (number, bytes) in now.into_iter().enumerate() {
            // Memory that keeps some of a word is none that a mixture could be taken back from.
            if !(matches!(fault, Fault::Sticky) && number == site) {
                prop_assert_eq!(&bytes[..], OLD.as_slice());
            }
        }
    }

    /// The guest patches the same sites as one that minds what others have put there: it changes only what it knows. Then
    /// nothing that it has put there is ever written over, whatever is changed meanwhile, in either direction.
    #[test]
    fn a_guest_that_patches_the_same_sites_is_never_overwritten(
        deeds in prop::collection::vec((0usize..4, any::<bool>()), 0..200),
        changes in prop::collection::vec(prop::collection::vec(0usize..4, 1..5), 1..20),
    ) {
        const OTHER: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x01];
        let mut is_others = [false; 4];
        let (mut deeds, mut overwritten) = (deeds.into_iter(), 0);
        let meanwhile = |machine: &mut MockTarget, _| {
            let Some((site, takes)) = deeds.next() else { return };
            let at = Gva(TEXT + 16 * site as u64);
            let mut now = [0; 5];
            machine.read(at, &mut now).unwrap();
            overwritten += u32::from(is_others[site] && now != OTHER);
            if takes && now == NOP5 {
                machine.write(at, &OTHER).unwrap();
                is_others[site] = true;
            } else if !takes && now == OTHER {
                machine.write(at, &NOP5).unwrap();
                is_others[site] = false;
            }
        };
        let (image, mut busy, pokes) = guest(4, meanwhile);
        let mut ours = [false; 4];
        for change in changes {
            let mut toggled: Vec<usize> = change;
            toggled.sort_unstable();
            toggled.dedup();
            let poke = |site: &usize| match ours[*site] {
                true => pokes[*site].reverse(),
                false => pokes[*site],
            };
            let all: Vec<Poke> = toggled.iter().map(poke).collect();
            let shared = |poke: usize| {
                let after = ours[toggled[poke]];
                Shared { before: !after, after, is_its_own: !after }
            };
            let left = apply(&mut busy, &image, &all, shared).unwrap();
            let made = toggled.iter().enumerate().filter(|(poke, _)| !left.contains_key(poke));
            made.for_each(|(_, site)| ours[*site] = !ours[*site]);
            for (site, is_ours) in ours.iter().enumerate() {
                let now: [u8; 5] = busy.bytes(pokes[site].at);
                prop_assert_eq!(now == *JUMP.as_slice(), *is_ours);
            }
        }
        drop(busy);
        prop_assert_eq!(overwritten, 0);
    }
}

#[test]
fn no_function_is_asked_for_that_the_image_has_not() {
    let (image, mut busy, pokes) = guest(1, idle);
    let poke = Poke {
        function: FunctionId(7),
        at: Gva(0x10),
        ..pokes[0]
    };
    let error = apply(&mut busy, &image, &[poke], NONE).unwrap_err();
    assert!(
        matches!(error.cause, PokeError::CannotRead { .. }),
        "{error}"
    );
}
