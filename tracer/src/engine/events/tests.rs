use image::Image;
use image::testing::{ElfFile, TEXT, body};
use insn::jump::{jump, jump_target};
use insn::nop::NOP5;

use std::sync::Arc;

use super::*;
use crate::digest::text_digest;
use crate::engine::Engine;
use crate::engine::tests::journal::{Killed, killed_everywhere};
use crate::mock::{MockTarget, Rights};
use crate::target::{TargetMemory, TextMemory};
use crate::text::word::WordError;

const WORDS: u64 = TEXT - 0x8_0000;
const RECORD: u64 = TEXT - 0x7_0000;
const SITES: u64 = TEXT - 0x6_0000;
/// The functions of the image: the one that passes the tracepoint (twice), dispatch, the iterator, callbacks.
const PASSER: u64 = TEXT;
const DISPATCH: u64 = TEXT + 0x10;
const ITERATE: u64 = TEXT + 0x20;
const FIRST: u64 = TEXT + 0x30;
const SECOND: u64 = TEXT + 0x40;
/// Where the word is that points at the list, and the empty list.
const LIST: u64 = WORDS + 32;
const NOBODY: u64 = WORDS + 40;
const EVENT: EventId = EventId(0);

fn image() -> Image {
    let word = |text: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..text.len()].copy_from_slice(text);
        u64::from_le_bytes(bytes)
    };
    // One field, `size` of type `u64`; the tracepoint is called `sent`.
    let words = [
        word(b"sent"),
        word(b"size"),
        word(b"u64"),
        0,
        NOBODY,
        0,
        FIRST,
        SECOND,
    ];
    let fields = [WORDS + 8, 4, WORDS + 16, 3];
    let record = [
        DISPATCH,
        WORDS,
        4,
        7,
        7,
        RECORD + 80,
        1,
        LIST,
        WORDS + 48,
        2,
    ];
    let sites = [PASSER, PASSER + 10, RECORD, PASSER + 5, PASSER + 10, RECORD];
    let leads = jump(Gva(DISPATCH), Gva(ITERATE)).unwrap();
    let passer = body(&[NOP5, NOP5].concat());
    let text = [
        passer,
        body(&leads),
        body(&[0xc3]),
        body(&[0xc3]),
        body(&[0xc3]),
    ]
    .concat();
    let file = ElfFile::new()
        .text(TEXT, &text)
        .list(".rodata", WORDS, &words)
        .list("__tracepoints", RECORD, &record)
        .list(".fields", RECORD + 80, &fields)
        .list("__tracepoint_sites", SITES, &sites)
        .list("__mcount_loc", TEXT - 0x5_0000, &[PASSER])
        .function("passer", PASSER, 16)
        .function("dispatch", DISPATCH, 16)
        .function("iterate", ITERATE, 16)
        .function("first", FIRST, 16)
        .function("second", SECOND, 16);
    Image::parse(&file.build()).unwrap()
}

fn machine() -> (Engine, MockTarget) {
    let (mut engine, mut target) = unattached();
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    (engine, target)
}

fn unattached() -> (Engine, MockTarget) {
    let image = image();
    assert_eq!(image.tracepoints.len(), 1, "{:?}", image.notes);
    let mut target = MockTarget::with_image(2, 64 << 20, &image, Rights::ALL).unwrap();
    let data = Rights {
        execute: false,
        ..Rights::ALL
    };
    let page = Gva(WORDS & !0xfff);
    target
        .map(page, terms::addr::Gpa(0x800_0000), 4096, data)
        .unwrap();
    target.write(Gva(LIST), &NOBODY.to_le_bytes()).unwrap();
    target.write(Gva(PASSER), &[NOP5, NOP5].concat()).unwrap();
    let leads = jump(Gva(DISPATCH), Gva(ITERATE)).unwrap();
    target.write(Gva(DISPATCH), &leads).unwrap();
    (Engine::new(Arc::new(image)), target)
}

/// The words that lead to our lists are the guest's again, as is its text.
#[test]
fn callbacks_of_a_tracer_that_was_killed_are_gone() {
    let life = |engine: &mut Engine, target: &mut Killed<'_>| -> Result<(), ApplyError> {
        let region = target.target.region();
        let attached = engine.attach(target, region);
        attached.map_err(|_| ApplyError::NotAttached)?;
        for (callbacks, on) in [(&[FIRST][..], true), (&[FIRST, SECOND], true), (&[], false)] {
            let callbacks = callbacks.iter().map(|at| Callback::Guest(Gva(*at)));
            let plan = engine.plan_events(target, &[(EVENT, callbacks.collect())], on)?;
            engine.apply(target, &plan)?;
        }
        Ok(())
    };
    let writes = killed_everywhere(unattached, |engine, target| {
        let _ = life(engine, target);
    });
    assert!(writes > 20, "{writes}");
}

fn change(
    engine: &mut Engine,
    target: &mut MockTarget,
    callbacks: &[u64],
    on: bool,
) -> Result<(), ApplyError> {
    let callbacks = callbacks
        .iter()
        .map(|at| Callback::Guest(Gva(*at)))
        .collect();
    let plan = engine.plan_events(target, &[(EVENT, callbacks)], on)?;
    engine.apply(target, &plan).map(drop)
}

fn change_live(
    engine: &mut Engine,
    target: &mut MockTarget,
    callbacks: &[u64],
    on: bool,
) -> Result<(), ApplyError> {
    let callbacks = callbacks.iter().map(|at| Callback::Guest(Gva(*at)));
    let plan = engine.plan_events(target, &[(EVENT, callbacks.collect())], on)?;
    engine.apply_live(target, &plan).map(drop)
}

/// Where the first site and dispatch lead, and what the list holds.
fn state(target: &MockTarget) -> (Option<u64>, u64, Vec<u64>) {
    let leads = |at: u64| {
        let mut bytes = [0; SITE_LENGTH];
        target.read(Gva(at), &mut bytes).unwrap();
        jump_target(Gva(at), bytes).map(|to| to.0)
    };
    let word = |at: u64| {
        let mut bytes = [0; 8];
        target.read(Gva(at), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    let sites = [leads(PASSER), leads(PASSER + 5)];
    assert_eq!(sites[0], sites[1], "all sites or none");
    let list = word(LIST);
    let called: Vec<u64> = match list {
        NOBODY => Vec::new(),
        list => (0..)
            .map(|n| word(list + 8 * n))
            .take_while(|at| *at != 0)
            .collect(),
    };
    (sites[0], leads(DISPATCH).unwrap(), called)
}

#[test]
fn one_callback_is_called_directly_and_several_through_the_iterator() {
    let (mut engine, mut target) = machine();
    let digest = text_digest(&target, engine.image()).unwrap();
    assert_eq!(state(&target), (None, ITERATE, vec![]));
    let on = Some(PASSER + 10);
    change(&mut engine, &mut target, &[FIRST], true).unwrap();
    assert_eq!(state(&target), (on, FIRST, vec![FIRST]));
    change(&mut engine, &mut target, &[SECOND], true).unwrap();
    assert_eq!(state(&target), (on, ITERATE, vec![FIRST, SECOND]));
    let used = engine.foothold().unwrap().stub_bytes();
    change(&mut engine, &mut target, &[FIRST], false).unwrap();
    assert_eq!(state(&target), (on, SECOND, vec![SECOND]));
    change(&mut engine, &mut target, &[SECOND], false).unwrap();
    assert_eq!(state(&target), (None, ITERATE, vec![]));
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);
    for _ in 0..10 {
        change(&mut engine, &mut target, &[FIRST, SECOND], true).unwrap();
        assert_eq!(state(&target), (on, ITERATE, vec![FIRST, SECOND]));
        change(&mut engine, &mut target, &[FIRST, SECOND], false).unwrap();
    }
    let again = engine.foothold().unwrap().stub_bytes() - used;
    assert!(again <= 64, "lists are found again: {again} bytes more");
}

#[test]
fn a_list_that_the_guest_has_changed_or_that_cannot_be_written_undoes_all() {
    let (mut engine, mut target) = machine();
    let digest = text_digest(&target, engine.image()).unwrap();
    target.write(Gva(LIST), &0x1234u64.to_le_bytes()).unwrap();
    let error = change(&mut engine, &mut target, &[FIRST], true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the list of callbacks of sent") && error.contains("0x1234"),
        "{error}"
    );
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);

    target.write(Gva(LIST), &NOBODY.to_le_bytes()).unwrap();
    target.faults.unwritable.insert(Gva(LIST));
    let error = change(&mut engine, &mut target, &[FIRST], true).unwrap_err();
    assert!(
        matches!(error, ApplyError::Word(WordError::Memory { .. })),
        "{error}"
    );
    assert!(
        error.to_string().contains("callbacks of sent at"),
        "{error}"
    );
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);
    assert!(engine.sites().frozen().is_none());
    target.faults.unwritable.clear();
    change(&mut engine, &mut target, &[FIRST], true).unwrap();
}

#[test]
fn foreign_bytes_at_a_nop_are_left_alone_and_at_our_jump_freeze_patching() {
    let (mut engine, mut target) = machine();
    target.write(Gva(PASSER + 5), &[0xcc; 5]).unwrap();
    let error = change(&mut engine, &mut target, &[FIRST], true).unwrap_err();
    assert!(matches!(error, ApplyError::Transaction(_)), "{error}");
    target.write(Gva(PASSER + 5), &NOP5).unwrap();
    assert_eq!(
        state(&target),
        (None, ITERATE, vec![]),
        "the other site was put back"
    );
    change(&mut engine, &mut target, &[FIRST], true).unwrap();
    target.write(Gva(DISPATCH), &[0xcc; 5]).unwrap();
    let error = change(&mut engine, &mut target, &[FIRST], false).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    let error = change(&mut engine, &mut target, &[SECOND], true).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
}

/// Live, as with the guest stopped: the same states, and nothing changed when one part fails.
#[test]
fn a_live_change_comes_to_the_same() {
    let (mut engine, mut target) = machine();
    let digest = text_digest(&target, engine.image()).unwrap();
    let on = Some(PASSER + 10);
    change_live(&mut engine, &mut target, &[FIRST], true).unwrap();
    assert_eq!(state(&target), (on, FIRST, vec![FIRST]));
    change_live(&mut engine, &mut target, &[SECOND], true).unwrap();
    assert_eq!(state(&target), (on, ITERATE, vec![FIRST, SECOND]));
    change_live(&mut engine, &mut target, &[FIRST, SECOND], false).unwrap();
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);

    target.faults.unwritable.insert(Gva(LIST));
    let error = change_live(&mut engine, &mut target, &[FIRST], true).unwrap_err();
    assert!(matches!(error, ApplyError::Word(_)), "{error}");
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);
    target.faults.unwritable.clear();
    target.write(Gva(PASSER + 5), &[0xcc; 5]).unwrap();
    let error = change_live(&mut engine, &mut target, &[FIRST], true).unwrap_err();
    assert!(matches!(error, ApplyError::Transaction(_)), "{error}");
    target.write(Gva(PASSER + 5), &NOP5).unwrap();
    assert_eq!(text_digest(&target, engine.image()).unwrap(), digest);
    assert!(engine.sites().frozen().is_none());
}

#[test]
fn a_plan_that_another_one_has_overtaken_is_stale() {
    let (mut engine, mut target) = machine();
    let mut plan = |at: u64| {
        let called = vec![Callback::Guest(Gva(at))];
        engine.plan_events(&mut target, &[(EVENT, called)], true)
    };
    let (first, second) = (plan(FIRST).unwrap(), plan(SECOND).unwrap());
    engine.apply(&mut target, &first).unwrap();
    let error = engine.apply(&mut target, &second).unwrap_err();
    assert_eq!(error, ApplyError::Stale);
    assert_eq!(state(&target), (Some(PASSER + 10), FIRST, vec![FIRST]));
}

/// A site that leads where it is to lead is not written.
#[test]
fn only_what_changes_is_written() {
    let (mut engine, mut target) = machine();
    change(&mut engine, &mut target, &[FIRST], true).unwrap();
    let called = vec![Callback::Guest(Gva(SECOND))];
    let plan = engine
        .plan_events(&mut target, &[(EVENT, called)], true)
        .unwrap();
    let before = target.writes;
    engine.apply(&mut target, &plan).unwrap();
    // Dispatch, and the word that points at the list.
    assert_eq!(target.writes - before, 2);
}

#[test]
fn a_callback_is_one_of_an_event_with_the_same_fields() {
    use image::points::Signature;

    use crate::points::events::{NoSuchEvent, find_callback};
    let mut image = image();
    let found = |image: &Image| find_callback(image, EventId(1), "first");
    let mut other = image.tracepoints[0].clone();
    other.candidates.clear();
    image.tracepoints.push(other);
    assert_eq!(found(&image), Ok(Gva(FIRST)));
    image.tracepoints[1].signature = Signature([7, 8]);
    assert!(matches!(found(&image), Err(NoSuchEvent::Signature { .. })));
}
