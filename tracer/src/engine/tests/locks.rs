//! Lock prefixes are switched all together, or not at all.

use image::LockSite;
use insn::lock::{DS, LOCK};

use super::*;
use crate::engine::locks::LockError;
use crate::points::locks::LockPrefixes::{Off, On};

const COUNT: u64 = 5;

fn address(number: u64) -> Gva {
    Gva(image::testing::TEXT + 16 * number + 8)
}

/// Each function has a lock prefix after its site.
fn machine(vcpus: u64) -> (Engine, MockTarget) {
    let mut image = nop_image(COUNT);
    image.locks = (0u32..)
        .zip(0..COUNT)
        .map(|(function, number)| LockSite {
            address: address(number),
            function: FunctionId(function),
        })
        .collect();
    let mut target = MockTarget::with_image(vcpus, REGION, &image, Rights::ALL).unwrap();
    for number in 0..COUNT {
        target.write(address(number), &[LOCK]).unwrap();
    }
    (Engine::new(Arc::new(image)), target)
}

fn prefixes(target: &MockTarget) -> Vec<u8> {
    let byte = |number| {
        let mut byte = [0];
        target.read(address(number), &mut byte).unwrap();
        byte[0]
    };
    (0..COUNT).map(byte).collect()
}

#[test]
fn off_and_on_again_restores_the_text() {
    let (mut engine, mut target) = machine(1);
    let before = digest(&engine, &target);
    assert_eq!(engine.switch_locks(&mut target, Off, 1), Ok(5));
    assert_eq!(prefixes(&target), [DS; 5]);
    assert_eq!(engine.switch_locks(&mut target, Off, 1), Ok(0));
    assert_eq!(engine.switch_locks(&mut target, On, 1), Ok(5));
    assert_eq!(digest(&engine, &target), before);
}

#[test]
fn off_is_refused_with_two_vcpus_even_if_only_one_runs() {
    let (mut engine, mut target) = machine(2);
    target.vcpus_mut()[1].online = false;
    let error = engine.switch_locks(&mut target, Off, 2).unwrap_err();
    assert_eq!(error, LockError::SeveralVcpus { vcpus: 2 });
    assert_eq!(prefixes(&target), [LOCK; 5]);
    assert_eq!(target.writes, 5, "those of the set-up only");
}

#[test]
fn one_foreign_byte_leaves_all_as_they_were() {
    let (mut engine, mut target) = machine(1);
    target.write(address(3), &[0x90]).unwrap();
    let message = engine
        .switch_locks(&mut target, Off, 1)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("f3") && message.contains("holds 90, expected f0"),
        "{message}"
    );
    assert_eq!(prefixes(&target), [LOCK, LOCK, LOCK, 0x90, LOCK]);
    let now = crate::points::locks::now(&engine.image, &engine.sites);
    assert_eq!((now, engine.image.locks.len()), (On, 5));
}

/// The guest changes such prefixes itself: that is no reason to touch nothing any more.
#[test]
fn another_byte_than_ours_is_refused_and_freezes_nothing() {
    let (mut engine, mut target) = machine(1);
    assert_eq!(engine.switch_locks(&mut target, Off, 1), Ok(5));
    target.write(address(3), &[0x90]).unwrap();
    let error = engine.switch_locks(&mut target, On, 1).unwrap_err();
    assert!(error.to_string().contains("f3"), "{error}");
    assert_eq!(prefixes(&target), [DS, DS, DS, 0x90, DS]);
    target.write(address(3), &[DS]).unwrap();
    assert_eq!(engine.switch_locks(&mut target, On, 1), Ok(5));
}

#[test]
fn an_image_without_a_list_is_told_from_one_with() {
    let (mut engine, mut target) = super::machine(1);
    let error = engine.switch_locks(&mut target, Off, 1).unwrap_err();
    assert_eq!(error, LockError::NoList);
}
