use std::collections::BTreeSet;

use image::Unhookable;
use image::testing::nop_image;
use proptest::prelude::*;
use terms::addr::Gpa;

use super::*;
use crate::mock::{MockTarget, Rights};
use crate::record::Format;
use crate::ring::geometry::Geometry;
use crate::stub::arena::Arena;
use crate::stub::cell::CellPlace;
use crate::stub::halt::Halts;
use crate::stub::recorder::{Clock, Recorder};
use crate::stub::spec::{SiteShape, StubSpec};
use crate::stub::template::{TEMPLATE_MAX, Template};
use crate::target::{PhysicalMemory, TargetMemory};
use crate::text::edit::Edit;
use crate::text::poke::{self, Poke};
use crate::text::sites::State;

const FUNCTIONS: u64 = 6;
const SESSIONS: u8 = 4;
const ARENA: Gva = Gva(0xffff_ffff_9000_0000);
const ARENA_PHYSICAL: Gpa = Gpa(1 << 32);

fn recorder(session: u8) -> Recorder {
    Recorder {
        cell: CellPlace::FromGs(0x1000 + 64 * i64::from(session)),
        rings: Gva(ARENA.0 + 0x100_0000 + 0x1_0000 * u64::from(session)),
        format: Format::Calls,
        details: None,
        geometry: Geometry::with_bytes(4096).unwrap(),
        clock: Clock::Tsc,
        halts: Halts::default(),
        waits: None,
        tasks: None,
    }
}

fn spec(of: &Recording) -> StubSpec {
    StubSpec {
        profiles: Vec::new(),
        recorders: of.sessions.iter().map(recorder).collect(),
        shape: of.shape,
        hook: None,
        captures_entry: of.captures.entry.is_some(),
        captures_exit: of.captures.exit.is_some(),
    }
}

fn store(start: Gva, bytes: u64) -> StubStore {
    StubStore::new(Arena::new(start, ARENA_PHYSICAL, bytes))
}

fn target_of(image: &Image) -> MockTarget {
    MockTarget::with_image(1, 1 << 21, image, Rights::ALL).unwrap()
}

fn bytes_of(target: &MockTarget, at: Gva) -> [u8; SITE_LENGTH] {
    let mut bytes = [0; SITE_LENGTH];
    target.read(at, &mut bytes).unwrap();
    bytes
}

/// The changes that bring about what is wanted.
fn plan(
    image: &Image,
    sites: &mut Sites,
    what: impl Fn(FunctionId) -> (SessionSet, Captures, HaltSet),
    store: &mut StubStore,
    memory: &mut MockTarget,
) -> Result<Vec<Edit>, StoreError> {
    let none = SessionSet::default();
    let leads = leads(image, sites, none, what, spec, store, memory)?;
    let mut edits = Vec::new();
    for (site, lead) in leads {
        let wanted = wanted(site, sites, lead)?;
        edits.extend(sites.edit(wanted));
    }
    Ok(edits)
}

/// No stub is looked for and no jump computed where nothing becomes other than it is: a kernel has tens of thousands of sites.
#[test]
fn sites_of_which_nothing_else_is_wanted_are_left_out() {
    let image = nop_image(FUNCTIONS);
    let mut target = target_of(&image);
    let (mut arena, mut sites) = (store(ARENA, 1 << 20), Sites::default());
    let what = |function: FunctionId| {
        let sessions = SessionSet::default();
        let sessions = match function.0 {
            0..3 => sessions.with(1),
            _ => sessions,
        };
        (sessions, Captures::default(), HaltSet::default())
    };
    let edits = plan(&image, &mut sites, what, &mut arena, &mut target).unwrap();
    assert_eq!(edits.len(), 3);
    edits.iter().for_each(|edit| sites.made(edit));
    let mut again = |anew| {
        let leads = leads(&image, &sites, anew, what, spec, &mut arena, &mut target);
        leads.unwrap().len()
    };
    assert_eq!(again(SessionSet::default()), 0);
    // Nor are those looked for whose stubs are other ones now, but of their sessions.
    assert_eq!(again(SessionSet::default().with(2)), 0);
    assert_eq!(again(SessionSet::default().with(1)), 3);
}

/// Which sessions trace which function, as a set of pairs.
type Model = BTreeSet<(u32, u8)>;

fn traced_by(model: &Model, function: FunctionId) -> SessionSet {
    model
        .iter()
        .filter(|(traced, _)| *traced == function.0)
        .fold(SessionSet::default(), |set, (_, session)| {
            set.with(*session)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sites_always_hold_what_the_sets_say(
        steps in prop::collection::vec((0..SESSIONS, 0u32..1 << FUNCTIONS, any::<bool>()), 1..24),
    ) {
        let image = nop_image(FUNCTIONS);
        let mut target = target_of(&image);
        let before = crate::digest::text_digest(&target, &image).unwrap();
        let mut arena = store(ARENA, 1 << 20);
        let mut sites = Sites::default();
        let mut model = Model::new();
        let mut stubs: HashMap<(u32, SessionSet), Gva> = HashMap::new();
        // Each step asks one session for the functions of a mask; the last asks for nothing.
        let end = (0..SESSIONS).map(|session| (session, 0, true));
        for (session, mask, is_applied) in steps.into_iter().chain(end) {
            let mut next = model.clone();
            next.retain(|(_, one)| *one != session);
            next.extend((0u32..6).filter(|f| mask >> f & 1 != 0).map(|f| (f, session)));
            let plan = plan(&image, &mut sites, |f| (traced_by(&next, f), Captures::default(), HaltSet::default()), &mut arena, &mut target).unwrap();
            let changed = (0u32..6).map(FunctionId)
                .filter(|f| traced_by(&model, *f) != traced_by(&next, *f));
            prop_assert!(plan.iter().map(|change| change.poke.function).eq(changed));
            if is_applied {
                let pokes: Vec<Poke> = plan.iter().map(|change| change.poke).collect();
                poke::apply(&mut target, &image, &pokes).unwrap();
                for change in &plan {
                    prop_assert!(sites.is_current(change));
                    sites.made(change);
                }
                model = next;
            }
            for site in &image.sites {
                let set = traced_by(&model, site.function);
                prop_assert_eq!(sites.sessions(site.function), set);
                let found = bytes_of(&target, site.address);
                let State::Ours(Lead { to: stub, .. }) = *sites.state(site.function) else {
                    prop_assert!(set.is_empty());
                    prop_assert_eq!(found, site.original);
                    continue;
                };
                prop_assert!(!set.is_empty());
                prop_assert_eq!(Some(found), jump(site.address, stub));
                prop_assert!(arena.arena().contains(stub));
                // The same function and sessions: the same stub, for stubs stay.
                prop_assert_eq!(*stubs.entry((site.function.0, set)).or_insert(stub), stub);
                let recording = Recording {
                    sessions: set,
                    shape: SiteShape::Entry,
                    captures: Captures::default(),
                    halts: HaltSet::default(),
                };
                let template = Template::new(&spec(&recording), Gva(ARENA.0 - TEMPLATE_MAX)).unwrap();
                let code = template
                    .stamp(stub, site.function, site.address.wrapping_add(5))
                    .unwrap();
                let physical = ARENA_PHYSICAL.wrapping_add(stub.0 - ARENA.0);
                let mut there = vec![0; code.len()];
                target.read_physical(physical, &mut there).unwrap();
                prop_assert_eq!(there, code);
            }
            let distinct: BTreeSet<Gva> = stubs.values().copied().collect();
            prop_assert_eq!(distinct.len(), stubs.len(), "two functions share a stub");
        }
        prop_assert_eq!(sites.patched(), 0);
        prop_assert_eq!(crate::digest::text_digest(&target, &image).unwrap(), before);
    }
}

#[test]
fn an_arena_that_is_full_or_too_far_changes_nothing() {
    let image = nop_image(4);
    let all = |_| {
        (
            SessionSet::default().with(0),
            Captures::default(),
            HaltSet::default(),
        )
    };
    let mut target = target_of(&image);
    let mut sites = Sites::default();
    let mut small = store(ARENA, 256);
    let error = plan(&image, &mut sites, all, &mut small, &mut target).unwrap_err();
    assert!(matches!(error, StoreError::Arena(_)), "{error}");
    let mut far = store(Gva(0xffff_8000_0000_0000), 1 << 20);
    let error = plan(&image, &mut sites, all, &mut far, &mut target).unwrap_err();
    assert!(matches!(error, StoreError::Stub(_)), "{error}");
    assert_eq!((sites.patched(), sites.ours().count()), (0, 0));
}

#[test]
fn sets_of_sessions_hold_what_was_put_in() {
    let set = SessionSet::default().with(3).with(15).with(0).without(3);
    assert_eq!(set.iter().collect::<Vec<_>>(), [0, 15]);
    assert!(set.has(15) && !set.has(3) && !set.is_empty());
    assert!(set.without(0).without(15).is_empty());
}

/// What the guest has given back is somebody else's memory: nothing is planned there until it has come again.
#[test]
fn functions_that_are_gone_are_left_alone() {
    let image = nop_image(3);
    let (mut arena, mut target) = (store(ARENA, 1 << 20), target_of(&image));
    let mut sites = Sites::default();
    let all = |_| {
        (
            SessionSet::default().with(0),
            Captures::default(),
            HaltSet::default(),
        )
    };
    let planned = |sites: &mut Sites, arena: &mut StubStore, target: &mut MockTarget| -> Vec<u32> {
        let plan = plan(&image, sites, all, arena, target).unwrap();
        let functions = plan.iter().map(|change| change.poke.function.0);
        functions.collect()
    };
    sites.gone([FunctionId(1)]);
    assert_eq!(planned(&mut sites, &mut arena, &mut target), [0, 2]);
    sites.came(FunctionId(1));
    assert_eq!(planned(&mut sites, &mut arena, &mut target), [0, 1, 2]);
}

/// A return that is not hooked is not captured either: what was asked of it is not planned again and again.
#[test]
fn the_return_of_a_function_that_cannot_be_hooked_is_not_captured() {
    let mut image = nop_image(2);
    let at = image.functions[1].address;
    image.unhookable = vec![(FunctionId(1), Unhookable::OtherReturn { at })];
    let (mut arena, mut target) = (store(ARENA, 1 << 20), target_of(&image));
    let mut sites = Sites::default();
    let (entry, exit) = (
        Some(Gva(ARENA.0 + 0x10_0000)),
        Some(Gva(ARENA.0 + 0x10_0040)),
    );
    let none = HaltSet::default;
    let both = |_| {
        (
            SessionSet::default().with(0),
            Captures { entry, exit },
            none(),
        )
    };
    let both_planned = plan(&image, &mut sites, both, &mut arena, &mut target).unwrap();
    let captures: Vec<Captures> = both_planned
        .iter()
        .map(|change| change.after.unwrap().captures)
        .collect();
    assert_eq!(
        captures,
        [Captures { entry, exit }, Captures { entry, exit: None }]
    );
    both_planned.iter().for_each(|change| sites.made(change));
    let again = plan(&image, &mut sites, both, &mut arena, &mut target);
    assert_eq!(again, Ok(Vec::new()));
}

#[test]
fn what_is_captured_for_nobody_who_records_has_a_stub_all_the_same() {
    let image = nop_image(1);
    let (mut arena, mut target) = (store(ARENA, 1 << 20), target_of(&image));
    let mut sites = Sites::default();
    let entry = Some(Gva(ARENA.0 + 0x10_0000));
    let captured = |_| {
        (
            SessionSet::default(),
            Captures { entry, exit: None },
            HaltSet::default(),
        )
    };
    let plan = plan(&image, &mut sites, captured, &mut arena, &mut target).unwrap();
    assert!(plan[0].after.is_some() && plan[0].before.is_none());
}

/// A detour is made once, and is in guest memory before anything leads to it: a thread may be in it for ever.
#[test]
fn a_detour_is_made_once_and_written() {
    use image::testing::{ElfFile, TEXT};
    // mov eax, 1; ret
    let file = ElfFile::new().text(TEXT, &[0xb8, 1, 0, 0, 0, 0xc3]);
    let mut image = Image::parse(&file.function("wide", TEXT, 6).build()).unwrap();
    assert_eq!(crate::points::any::admit(&mut image), 1);
    let (mut arena, mut target) = (store(ARENA, 1 << 20), target_of(&image));
    let detour = after(&image.sites[0], &mut arena, &mut target).unwrap();
    let place = ARENA_PHYSICAL.wrapping_add(detour.0 - ARENA.0);
    let mut written = [0; 5];
    target.read_physical(place, &mut written).unwrap();
    assert_eq!(written, [0xb8, 1, 0, 0, 0]);
    let used = arena.arena().used();
    assert_eq!(after(&image.sites[0], &mut arena, &mut target), Ok(detour));
    assert_eq!(arena.arena().used(), used);
}
