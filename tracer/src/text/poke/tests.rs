use image::testing::nop_image;
use insn::nop::NOP5;
use terms::site::SITE_LENGTH;

use super::*;
use crate::mock::{MockTarget, Rights};
use crate::target::TargetMemory;
use crate::target::TextMemory;

const JUMP: SiteBytes = SiteBytes::new([0xe9, 1, 2, 3, 4]);

fn machine(functions: u64) -> (Image, MockTarget, Vec<Poke>) {
    let image = nop_image(functions);
    let target = MockTarget::with_image(2, 0, &image, Rights::ALL).unwrap();
    let pokes = image
        .sites
        .iter()
        .map(|site| Poke {
            function: site.function,
            at: site.address,
            expected: SiteBytes::new(NOP5),
            new: JUMP,
        })
        .collect();
    (image, target, pokes)
}

fn bytes(target: &MockTarget, pokes: &[Poke]) -> Vec<SiteBytes> {
    let read = |poke: &Poke| {
        let mut bytes = [0; SITE_LENGTH];
        target.read(poke.at, &mut bytes).unwrap();
        SiteBytes::new(bytes)
    };
    pokes.iter().map(read).collect()
}

/// Applies with a fault in front of poke `k` and checks that every site is as before.
fn fails_at(k: usize, spoil: impl Fn(&mut MockTarget, Gva)) -> (TransactionError, Vec<Poke>) {
    let (image, mut target, pokes) = machine(6);
    spoil(&mut target, pokes[k].at);
    let mut sane = target.clone();
    sane.faults = crate::mock::Faults::default();
    let before = bytes(&sane, &pokes);
    let error = apply(&mut target, &image, &pokes).unwrap_err();
    target.faults = crate::mock::Faults::default();
    assert_eq!(bytes(&target, &pokes), before, "fault at poke {k}");
    (error, pokes)
}

#[test]
fn writes_all_and_takes_all_back() {
    let (image, mut target, pokes) = machine(6);
    apply(&mut target, &image, &pokes).unwrap();
    assert_eq!(bytes(&target, &pokes), vec![JUMP; 6]);
    let back: Vec<Poke> = pokes.iter().map(|poke| poke.reverse()).collect();
    apply(&mut target, &image, &back).unwrap();
    assert_eq!(bytes(&target, &pokes), vec![SiteBytes::new(NOP5); 6]);
}

/// More than are made at once: those that were are taken back, and how many there were is told.
#[test]
fn a_failure_among_many_undoes_all_before() {
    let (image, mut target, pokes) = machine(batch::MOST as u64 + 40);
    let k = batch::MOST + 20;
    target.faults.sticky.insert(pokes[k].at.wrapping_add(1));
    let before = bytes(&target, &pokes);
    let error = apply(&mut target, &image, &pokes).unwrap_err();
    assert_eq!(bytes(&target, &pokes), before);
    assert_eq!((error.undone, error.stuck.len()), (k + 1, 0));
    assert!(matches!(&error.cause, PokeError::Unexpected { at, .. } if *at == pokes[k].at));
    target.faults.sticky.clear();
    apply(&mut target, &image, &pokes).unwrap();
    assert_eq!(bytes(&target, &pokes), vec![JUMP; pokes.len()]);
}

/// Of those that are made at once one cannot be put back: those before them are, the last one, too.
#[test]
fn a_site_among_many_that_cannot_be_put_back_is_named_and_all_before_are_undone() {
    let (image, mut target, pokes) = machine(batch::MOST as u64 + 40);
    let (k, stuck) = (batch::MOST + 20, batch::MOST + 10);
    target.faults.sticky.insert(pokes[k].at);
    target.faults.once.insert(pokes[stuck].at);
    let mut expected = bytes(&target, &pokes);
    let error = apply(&mut target, &image, &pokes).unwrap_err();
    expected[stuck] = JUMP;
    assert_eq!(bytes(&target, &pokes), expected);
    assert!(
        matches!(&error.stuck[..], [PokeError::CannotWrite { at, .. }] if *at == pokes[stuck].at),
        "{error}"
    );
    assert_eq!(error.undone, batch::MOST);
}

#[test]
fn a_site_that_cannot_be_read_undoes_those_before() {
    for k in 0..6 {
        let (error, pokes) = fails_at(k, |target, at| {
            target.faults.unreadable.insert(at.wrapping_add(2));
        });
        assert!(
            matches!(&error.cause, PokeError::CannotRead { at, symbol, .. }
                if *at == pokes[k].at && **symbol == *format!("f{k}")),
            "{error}"
        );
        assert_eq!((error.undone, error.stuck.len()), (k, 0));
    }
}

#[test]
fn a_site_with_other_bytes_undoes_those_before_and_is_left() {
    for k in 0..6 {
        let (error, pokes) = fails_at(k, |target, at| {
            target.write(at, &[0xcc]).unwrap();
        });
        let found = SiteBytes::new([0xcc, 0x1f, 0x44, 0, 0]);
        assert!(
            matches!(&error.cause, PokeError::Unexpected { at, found: f, expected, .. }
                if *at == pokes[k].at && *f == found && *expected == SiteBytes::new(NOP5)),
            "{error}"
        );
        assert_eq!((error.undone, error.stuck.len()), (k, 0));
    }
}

#[test]
fn a_site_that_cannot_be_written_undoes_those_before() {
    for k in 0..6 {
        let (error, pokes) = fails_at(k, |target, at| {
            target.faults.unwritable.insert(at.wrapping_add(4));
        });
        assert!(
            matches!(&error.cause, PokeError::CannotWrite { at, .. } if *at == pokes[k].at),
            "{error}"
        );
        assert_eq!((error.undone, error.stuck.len()), (k, 0));
    }
}

#[test]
fn a_write_that_sticks_in_part_is_put_back_too() {
    for k in 0..6 {
        for byte in 0..SITE_LENGTH as u64 {
            let (error, pokes) = fails_at(k, |target, at| {
                target.faults.sticky.insert(at.wrapping_add(byte));
            });
            assert!(
                matches!(&error.cause, PokeError::Unexpected { at, expected, .. }
                    if *at == pokes[k].at && *expected == JUMP),
                "{error}"
            );
            assert_eq!((error.undone, error.stuck.len()), (k + 1, 0));
        }
    }
}

#[test]
fn a_site_that_cannot_be_put_back_is_named() {
    let (image, mut target, pokes) = machine(3);
    let [first, second, third] = [pokes[0], pokes[1], pokes[2]];
    // The second site takes the jump and then nothing more: its write is allowed once.
    apply(&mut target, &image, &[first, second]).unwrap();
    target.faults.unwritable.insert(second.at);
    target.write(third.at, &[0xcc]).unwrap();
    let failure = Failure {
        cause: PokeError::VcpuInside {
            symbol: "x".into(),
            at: third.at,
            vcpu: 0,
            rip: third.at,
        },
        is_written: false,
    };
    let error = undo(&mut target, &image, &[first, second], &third, failure);
    assert_eq!(error.undone, 1);
    assert!(
        matches!(&error.stuck[..], [PokeError::CannotWrite { at, .. }] if *at == second.at),
        "{error}"
    );
    assert!(error.to_string().contains("could not be: cannot write"));
}

#[test]
fn a_vcpu_inside_a_site_forbids_it_and_one_at_its_edges_does_not() {
    for offset in 0..=SITE_LENGTH as u64 {
        let (image, mut target, pokes) = machine(3);
        target.vcpus_mut()[1].rip = pokes[2].at.0 + offset;
        let result = apply(&mut target, &image, &pokes);
        if offset == 0 || offset == SITE_LENGTH as u64 {
            assert_eq!(result, Ok(()));
            continue;
        }
        let error = result.unwrap_err();
        assert!(
            matches!(&error.cause, PokeError::VcpuInside { vcpu: 1, at, .. } if *at == pokes[2].at),
            "{error}"
        );
        assert_eq!(bytes(&target, &pokes), vec![SiteBytes::new(NOP5); 3]);
    }
}

#[test]
fn a_vcpu_after_a_prefix_of_one_byte_is_not_inside_it() {
    let (image, mut target, pokes) = machine(1);
    let poke = Poke {
        expected: SiteBytes::one(NOP5[0]),
        new: SiteBytes::one(0x3e),
        ..pokes[0]
    };
    for offset in [0, 1, 4] {
        target.vcpus_mut()[0].rip = poke.at.0 + offset;
        apply(&mut target, &image, &[poke]).unwrap();
        let mut now = [0; SITE_LENGTH];
        target.read(poke.at, &mut now).unwrap();
        assert_eq!(now[0], 0x3e);
        assert_eq!(now[1..], NOP5[1..], "only one byte changes");
        apply(&mut target, &image, &[poke.reverse()]).unwrap();
    }
}

/// It is tried again where it passes, so nothing else may say so.
#[test]
fn only_what_will_not_be_so_for_long_passes() {
    let (symbol, at, rip) = (Arc::<str>::from("f"), Gva(16), Gva(18));
    let vcpu = PokeError::VcpuInside {
        symbol: Arc::clone(&symbol),
        at,
        vcpu: 1,
        rip,
    };
    let thread = PokeError::ThreadInside {
        symbol: Arc::clone(&symbol),
        at,
        rip,
        held_at: Gpa(4096),
    };
    assert!(vcpu.passes() && thread.passes());
    // It can stay for long, where the word is what is left of a probe: then this is what is said.
    let said = thread.to_string();
    for words in [
        "guest physical 0x1000",
        "(a kprobe)",
        "try again later",
        "tactic 5",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let kprobes = |source| PokeError::KprobesUnknown {
        symbol: Arc::clone(&symbol),
        at,
        source,
    };
    assert!(kprobes(KprobesError::Busy).passes());
    assert!(!kprobes(KprobesError::Endless(1)).passes());
    let unexpected = PokeError::Unexpected {
        symbol: Arc::clone(&symbol),
        at,
        expected: JUMP,
        found: SiteBytes::new(NOP5),
    };
    assert!(!unexpected.passes() && !PokeError::NeedsStop { symbol, at }.passes());
}
