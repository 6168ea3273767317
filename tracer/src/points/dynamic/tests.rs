use std::sync::Arc;

use image::testing::{ElfFile, TEXT, body};

use super::*;
use crate::engine::{ApplyError, Engine};
use crate::mock::{MockTarget, Rights};
use crate::target::TextMemory;
use crate::text::poke::{self, Poke};

const RECORDS: u64 = TEXT - 0x8_0000;
const WORDS: u64 = TEXT - 0x7_0000;

/// Two functions of one signature (`one`, `two`) and one of another (`odd`), with targets a0 and a1, b0
/// and b1, c0 and c1; each of 16 bytes.
fn file() -> ElfFile {
    let names = ["one", "two", "odd", "a0", "a1", "b0", "b1", "c0", "c1"];
    let address = |index: usize| TEXT + 16 * index as u64;
    let mut text = Vec::new();
    let mut words = Vec::new();
    let mut records: Vec<u64> = Vec::new();
    for (index, _) in names.iter().enumerate() {
        let head = match index {
            0..3 => jump(Gva(address(index)), Gva(address(3 + 2 * index))).unwrap(),
            _ => [0xc3; 5],
        };
        text.extend(body(&head));
    }
    for (index, signature) in [7, 7, 8].into_iter().enumerate() {
        let own = WORDS + 8 * words.len() as u64;
        let name: [u8; 3] = names[index].as_bytes().try_into().unwrap();
        let [a, b, c] = name;
        words.push(u64::from_le_bytes([a, b, c, 0, 0, 0, 0, 0]));
        let [d, e] = if signature == 7 { *b"fn" } else { *b"Fn" };
        words.push(u64::from_le_bytes([d, e, 0, 0, 0, 0, 0, 0]));
        words.extend([address(3 + 2 * index), address(4 + 2 * index)]);
        records.extend([
            address(index),
            own,
            3,
            signature,
            0,
            own + 8,
            2,
            own + 16,
            2,
        ]);
    }
    let mut file = ElfFile::new()
        .text(TEXT, &text)
        .list("__dynamic_functions", RECORDS, &records)
        .list(".rodata", WORDS, &words);
    for (index, name) in names.into_iter().enumerate() {
        file = file.function(name, address(index), 16);
    }
    file
}

fn image() -> Image {
    Image::parse(&file().build()).unwrap()
}

fn refused(changes: &[(&str, Option<&str>)]) -> String {
    let plan = plan(&image(), &mut Sites::default(), changes.iter().copied());
    plan.unwrap_err().to_string()
}

#[test]
fn the_records_are_read() {
    let image = image();
    let names: Vec<&str> = image.dynamic.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["one", "two", "odd"], "{:?}", image.notes);
    let one = &image.dynamic[0];
    assert_eq!(one.jump, Gva(TEXT));
    assert_eq!(image.name_at(one.default), "a0");
    assert_eq!(one.targets, [Gva(TEXT + 0x30), Gva(TEXT + 0x40)]);
}

#[test]
fn records_that_lie_are_left_out_with_a_remark() {
    // Which word of the first record is changed, and to what.
    let cases = [
        (0, TEXT + 0x30, "a jump to nowhere"),
        (0, WORDS, "no text"),
        (0, TEXT + 1, "no function"),
        (1, 16, "a name that is not there"),
        (2, 0, "no name"),
        (2, u64::MAX, "an endless name"),
        (6, 1 << 60, "endless types"),
        (7, TEXT, "targets in the text"),
        (8, 0, "no targets"),
        (8, u64::MAX, "endless targets"),
    ];
    let good = file().build();
    let record: Vec<u8> = [TEXT, WORDS, 3]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let at = good.windows(24).position(|bytes| bytes == record).unwrap();
    for (word, value, what) in cases {
        let mut bytes = good.clone();
        bytes[at + 8 * word..at + 8 * word + 8].copy_from_slice(&u64::to_le_bytes(value));
        let image = Image::parse(&bytes).unwrap();
        assert_eq!(image.dynamic.len(), 2, "{what}");
        assert!(
            image.notes.iter().any(|note| note.ends_with(", ignored")),
            "{what}"
        );
    }
}

#[test]
fn plans_name_what_cannot_be() {
    assert_eq!(
        refused(&[("one", Some("c0"))]),
        "one is fn: it cannot lead to c0, which is Fn"
    );
    assert_eq!(
        refused(&[("one", Some("x\n"))]),
        "'x\\n' is no target of one; these are: a0, a1"
    );
    assert_eq!(
        refused(&[("a0", None)]),
        "there is no dynamic function 'a0'; there are: one, two, odd"
    );
    assert!(refused(&[("one", None), ("one", None)]).starts_with("one is there twice"));
    let none = Image::default();
    let plan = plan(&none, &mut Sites::default(), [("one", None)]);
    assert_eq!(plan, Err(RetargetError::None));
}

#[test]
fn a_target_of_the_same_signature_is_one_whoever_declares_it() {
    let image = image();
    let mut target = MockTarget::with_image(1, 0, &image, Rights::ALL).unwrap();
    let mut sites = Sites::default();
    for function in &image.dynamic {
        let bytes = jump(function.jump, function.default).unwrap();
        target.write(function.jump, &bytes).unwrap();
    }
    let there = [("one", Some("b1")), ("odd", Some("c1"))];
    let there = plan(&image, &mut sites, there).unwrap();
    let pokes: Vec<Poke> = there.iter().map(|(_, edit)| edit.poke).collect();
    poke::apply(&mut target, &image, &pokes).unwrap();
    there.iter().for_each(|(_, edit)| sites.made(edit));
    assert!(!there.iter().any(|(_, edit)| edit.is_at_jump_of_ours()));
    let leads_to = super::target(&sites, &image.dynamic[0]);
    assert_eq!(image.name_at(leads_to), "b1");

    assert!(!there.iter().any(|(_, edit)| sites.is_current(edit)));
    let back = [("one", None), ("two", None), ("odd", None)];
    let back = plan(&image, &mut sites, back).unwrap();
    assert_eq!(back.len(), 2, "what is there already is not written");
    assert!(
        back.iter()
            .all(|(_, edit)| edit.is_at_jump_of_ours() && sites.is_current(edit))
    );
}

#[test]
fn foreign_bytes_are_left_alone_and_in_our_own_jump_freeze_patching() {
    let image = image();
    let mut target = MockTarget::with_image(1, 0, &image, Rights::ALL).unwrap();
    for function in &image.dynamic {
        let bytes = jump(function.jump, function.default).unwrap();
        target.write(function.jump, &bytes).unwrap();
    }
    let one = image.dynamic[0].jump;
    let original = jump(one, image.dynamic[0].default).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    let plan = |engine: &mut Engine, to| {
        let changes = [("two", Some(to)), ("one", Some(to))];
        engine.plan_dynamic(changes).unwrap()
    };
    let apply = |engine: &mut Engine, target: &mut MockTarget, to| {
        let plan = plan(engine, to);
        engine.apply(target, &plan)
    };
    target.write(one, &[0xcc; 5]).unwrap();
    let foreign = apply(&mut engine, &mut target, "a1");
    assert!(
        matches!(foreign, Err(ApplyError::Transaction(_))),
        "{foreign:?}"
    );
    assert!(engine.sites().frozen().is_none());
    assert!(engine.plan_dynamic([("two", None)]).unwrap().is_empty());

    target.write(one, &original).unwrap();
    apply(&mut engine, &mut target, "a1").unwrap();
    target.write(one, &[0xcc; 5]).unwrap();
    let ours = apply(&mut engine, &mut target, "b1");
    assert!(matches!(ours, Err(ApplyError::Frozen(_))), "{ours:?}");
    let frozen = apply(&mut engine, &mut target, "b1");
    assert!(matches!(frozen, Err(ApplyError::Frozen(_))), "{frozen:?}");
}
