//! Text that comes and goes: freed init text, modules.

use image::testing::{ElfFile, body};
use image::{Linux, TextRange};
use insn::jump::INT3;

use super::journal::written;
use super::*;
use crate::linux::kernel::{InitState, Kernel};
use crate::linux::kernel_view::KernelTables;
use crate::linux::mutex::KernelMutex;
use crate::points::any;

/// Where the mock guest's `system_state` lies, and the value from which on init text is gone.
const STATE: Gpa = Gpa(0x8000);
const FREEING: u32 = 3;

/// What such a Linux can be asked.
fn kernel() -> Kernel {
    Kernel {
        orc: None,
        init: Some(InitState {
            at: STATE,
            gone_from: FREEING,
        }),
        modules: None,
        kprobes: Ok(None),
        hides_kprobes: false,
        text_mutex: None,
        tasks: None,
        cgroups: None,
        stacks: None,
    }
}

/// A Linux with 8 functions, the last 4 of which are init text.
fn booting_linux() -> (Engine, MockTarget, SessionId) {
    let mut image = nop_image(8);
    let text = TextRange {
        start: image.functions[0].address,
        end: image.functions[4].address,
    };
    image.linux = Some(Linux {
        version: "6.1.0".to_owned(),
        text: Some(text),
        init_text: None,
        rodata: None,
        identity: image::Identity::default(),
        prepares_sites: true,
    });
    let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    target.write_physical(STATE, &2_u32.to_le_bytes()).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    engine.transient.inside = Some(Box::new(kernel()));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session)
}

#[test]
fn freed_init_text_is_never_written() {
    let (mut engine, mut target, session) = booting_linux();
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!(
        (applied.patched, engine.sites().patched(), gone(&engine)),
        (8, 8, 0)
    );
    // The guest frees the text and uses the memory; one word of it happens to look like our jump.
    let ours = site(&engine, &target, 7);
    let plan = engine.plan(&mut target, session, &select([])).unwrap();
    assert_eq!(plan.steps.len(), 8);
    let freed = engine.image().functions[4].address;
    target.write(freed, &[0x5a; 64]).unwrap();
    let last = engine.image().site_of(FunctionId(7)).unwrap().address;
    target.write(last, &ours).unwrap();
    target
        .write_physical(STATE, &FREEING.to_le_bytes())
        .unwrap();
    let writes = target.writes;
    let applied = engine.apply(&mut target, &plan).unwrap();
    assert_eq!((applied.restored, applied.skipped.len()), (4, 0));
    assert_eq!(target.writes, writes + 4);
    assert_eq!((engine.sites().patched(), gone(&engine)), (0, 4));
    assert_eq!(site(&engine, &target, 7), ours);
    assert!(engine.sites().frozen().is_none());
    // They cannot be traced any more; the others can.
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, engine.sites().patched()), (4, 4));
}

#[test]
fn init_text_counts_as_gone_when_the_guest_cannot_be_asked() {
    let (mut engine, mut target, session) = booting_linux();
    engine.transient.inside = Some(Box::new(Kernel {
        init: None,
        ..kernel()
    }));
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, gone(&engine)), (4, 4));
}

/// A Linux with 8 functions of its own that stay, and modules.
fn linux_with_modules() -> (Engine, crate::linux::module::testing::Guest, SessionId) {
    let (engine, target, _) = booting_linux();
    let mut guest = crate::linux::module::testing::Guest::on(target);
    let mut image = (**engine.image()).clone();
    let kernel = Kernel {
        modules: Some(guest.layout.clone()),
        ..kernel()
    };
    if let Some(linux) = &mut image.linux {
        linux.text = image.text.first().copied();
    }
    let mut engine = Engine::new(Arc::new(image));
    engine.transient.inside = Some(Box::new(kernel));
    let region = guest.target.region();
    engine.attach(&mut guest.target, region).unwrap();
    let session = engine
        .create_session(&mut guest.target, config("one"))
        .unwrap();
    (engine, guest, session)
}

fn all(engine: &Engine) -> std::ops::Range<u32> {
    0..u32::try_from(engine.image().functions.len()).unwrap()
}

/// Whether modules are announced by the function with this number: its stub calls a routine that leaves the guest.
fn announces(engine: &Engine, guest: &crate::linux::module::testing::Guest, function: u32) -> bool {
    let State::Ours(Lead {
        captures, to: stub, ..
    }) = *engine.sites().state(FunctionId(function))
    else {
        return false;
    };
    let Some(routine) = captures.entry else {
        return false;
    };
    let mut call = [0; 5];
    guest.target.read(stub, &mut call).unwrap();
    let distance = i32::from_le_bytes([call[1], call[2], call[3], call[4]]);
    let called = stub
        .wrapping_add(5)
        .wrapping_add(i64::from(distance).cast_unsigned());
    let mut code = [0; 3];
    guest.target.read(routine, &mut code).unwrap();
    // `call` of the routine, which is `out 0xf6, al` and `ret`.
    call[0] == 0xe8 && called == routine && code == [0xe6, 0xf6, 0xc3]
}

#[test]
fn while_somebody_wants_to_know_each_module_is_announced_before_it_is_live() {
    let (like, ..) = linux_with_modules();
    let mut image = (**like.image()).clone();
    image.functions[3].name = "do_init_module".into();
    let text = image.site_of(FunctionId(3)).unwrap().address;
    let target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    let mut guest = crate::linux::module::testing::Guest::on(target);
    let mut before = [0; 5];
    guest.target.read(text, &mut before).unwrap();
    guest
        .target
        .write_physical(STATE, &2_u32.to_le_bytes())
        .unwrap();
    let mut engine = Engine::new(Arc::new(image));
    engine.transient.inside = like.transient.inside;
    let mut engine = engine.announcing_by(0xf6);
    let region = guest.target.region();
    engine.attach(&mut guest.target, region).unwrap();
    let session = engine
        .create_session(&mut guest.target, config("one"))
        .unwrap();
    engine.points_mut().want_announcements(true);
    let applied = change(&mut engine, &mut guest.target, session, [0, 1]).unwrap();
    // It is nobody's, and in no count.
    assert_eq!((applied.patched, engine.sites().patched()), (2, 2));
    assert!(announces(&engine, &guest, 3));
    assert!(
        !engine
            .sites()
            .state(FunctionId(3))
            .lead()
            .is_some_and(Lead::is_for_users)
    );
    // Traced as well, it does both; and continues to announce when it is not any more.
    let applied = change(&mut engine, &mut guest.target, session, [0, 3]).unwrap();
    assert_eq!((applied.patched, applied.restored), (1, 1));
    assert!(
        announces(&engine, &guest, 3)
            && engine
                .sites()
                .state(FunctionId(3))
                .lead()
                .is_some_and(Lead::is_for_users)
    );
    let applied = change(&mut engine, &mut guest.target, session, []).unwrap();
    assert_eq!((applied.patched, applied.restored), (0, 2));
    assert!(announces(&engine, &guest, 3));
    // A module that is being loaded is taken in when it is announced, and not before.
    guest.module("one", &["one_open", "one_read"]);
    guest.module("two", &["two_open"]);
    guest.set_state("one", 1);
    guest.set_state("two", 1);
    assert!(
        !engine
            .read_modules(&guest.target, None)
            .unwrap()
            .is_change()
    );
    let at = Gva(crate::linux::module::testing::MODULES_AREA);
    let moved = engine.read_modules(&guest.target, Some(at)).unwrap();
    assert_eq!(moved.came, [Arc::from("one")]);
    assert_eq!(moved.announced.as_deref(), Some("one"));
    let moved = engine
        .read_modules(&guest.target, Some(Gva(0x1234)))
        .unwrap();
    assert!(!moved.is_change());
    guest.set_state("one", 0);
    assert!(
        !engine
            .read_modules(&guest.target, None)
            .unwrap()
            .is_change()
    );
    engine.points_mut().want_announcements(false);
    let applied = change(&mut engine, &mut guest.target, session, []).unwrap();
    assert_eq!((applied.restored, engine.sites().patched()), (0, 0));
    let mut after = [0; 5];
    guest.target.read(text, &mut after).unwrap();
    assert_eq!(after, before);
}

#[test]
fn functions_of_modules_come_are_traced_and_leave_without_a_write() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open", "one_read"]);
    guest.module("two", &["two_read"]);
    let moved = engine.read_modules(&guest.target, None).unwrap();
    assert_eq!(moved.came, [Arc::from("one"), Arc::from("two")]);
    assert_eq!(engine.image().functions.len(), 11);
    assert_eq!(&*engine.image().functions[10].name, "two_read");
    assert!(
        !engine
            .read_modules(&guest.target, None)
            .unwrap()
            .is_change()
    );
    let everything = all(&engine);
    let applied = change(&mut engine, &mut guest.target, session, everything).unwrap();
    assert_eq!((applied.patched, applied.skipped.len()), (11, 0));
    // A plan is made, then the module goes and something else uses its memory.
    let plan = engine
        .plan(&mut guest.target, session, &select([]))
        .unwrap();
    assert_eq!(plan.steps.len(), 11);
    guest.unload_last();
    let writes = guest.target.writes;
    let applied = engine.apply(&mut guest.target, &plan).unwrap();
    assert_eq!((applied.restored, guest.target.writes - writes), (10, 10));
    assert_eq!((engine.sites().patched(), gone(&engine)), (0, 1));
    assert!(engine.sites().is_gone(FunctionId(10)));
    // Its text was not touched: our jump is still there.
    assert_eq!(site(&engine, &guest.target, 10)[0], 0xe9);
}

/// That nothing of ours stands any more where it stood was once taken for another kernel in this one's place.
#[test]
fn a_module_that_takes_all_that_is_traced_with_it_is_no_other_kernel() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open"]);
    engine.read_modules(&guest.target, None).unwrap();
    change(&mut engine, &mut guest.target, session, 8..9).unwrap();
    let (at, _) = engine.sites().ours_at(FunctionId(8)).unwrap();
    guest.unload_last();
    guest.target.write(at, &[0; 5]).unwrap();
    let vcpus = StoppedTarget::vcpus(&guest.target).to_vec();
    assert_eq!(engine.check_foothold(&mut guest.target, &vcpus), Ok(()));
    assert_eq!((engine.sites().patched(), gone(&engine)), (0, 1));
}

#[test]
fn a_module_that_was_loaded_again_at_its_old_place_is_another_one() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open", "one_read"]);
    engine.read_modules(&guest.target, None).unwrap();
    let everything = all(&engine);
    change(&mut engine, &mut guest.target, session, everything).unwrap();
    let at = guest.unload_last();
    guest.load_at(at, "one", &["one_open", "one_read"]);
    let moved = engine.read_modules(&guest.target, None).unwrap();
    assert_eq!((moved.left.len(), moved.came.len()), (1, 1));
    assert_eq!((engine.sites().patched(), gone(&engine)), (8, 2));
    let everything = all(&engine);
    let applied = change(&mut engine, &mut guest.target, session, everything).unwrap();
    assert_eq!((applied.patched, engine.sites().patched()), (2, 10));
    assert!(engine.sites().frozen().is_none());
}

/// The guest's own tracer was switched on in it: where it stands nobody of ours does, but elsewhere in the same module.
#[test]
fn a_module_is_there_as_long_as_any_jump_of_ours_is() {
    let (mut engine, mut guest, session) = linux_with_modules();
    let names: Vec<String> = (0..100).map(|number| format!("f{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    guest.module("one", &names);
    engine.read_modules(&guest.target, None).unwrap();
    let everything = all(&engine);
    change(&mut engine, &mut guest.target, session, everything).unwrap();
    assert_eq!(engine.sites().patched(), 108);
    let module = (8..108).map(FunctionId);
    let places: Vec<Gva> = module
        .map(|id| engine.sites().ours_at(id).unwrap().0)
        .collect();
    let theirs = [[0xe8, 1, 2, 3, 4], NOP5];
    for (number, at) in places.iter().enumerate() {
        let moved = engine.read_modules(&guest.target, None).unwrap();
        assert_eq!((moved.left.len(), gone(&engine)), (0, 0), "{number}");
        // Its breakpoint over the last one is none of its jumps' end.
        guest.target.write(*at, &[INT3]).unwrap();
        let moved = engine.read_modules(&guest.target, None).unwrap();
        assert_eq!((moved.left.len(), gone(&engine)), (0, 0), "{number}");
        guest.target.write(*at, &theirs[number % 2]).unwrap();
    }
    let moved = engine.read_modules(&guest.target, None).unwrap();
    assert_eq!((moved.left.len(), gone(&engine)), (1, 100));
}

/// It can be read in the middle of a change: then all jumps in modules were once forgotten, and nobody took them back.
#[test]
fn what_is_patched_in_modules_is_not_forgotten_for_a_list_that_cannot_be_read() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open"]);
    engine.read_modules(&guest.target, None).unwrap();
    let everything = all(&engine);
    change(&mut engine, &mut guest.target, session, everything).unwrap();
    guest.tie_to("one", 0x1000);
    engine.read_modules(&guest.target, None).unwrap_err();
    assert_eq!((gone(&engine), engine.sites().patched()), (0, 9));
    let writes = guest.target.writes;
    change(&mut engine, &mut guest.target, session, []).unwrap();
    assert_eq!(guest.target.writes - writes, 9);
    assert_eq!((gone(&engine), engine.sites().patched()), (0, 0));
    assert!(engine.sites().frozen().is_none());
}

/// Functions 4 to 7 are a module's: they are not there at the start.
fn with_module() -> (Engine, MockTarget, SessionId, Gva) {
    let mut image = nop_image(8);
    let start = image.functions[4].address;
    image.parts.push(image::Part {
        name: Arc::from("one"),
        text: TextRange {
            start,
            end: start.wrapping_add(64),
        },
        at_start: false,
    });
    let target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    let mut target = target;
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session, start)
}

#[test]
fn a_module_is_written_only_between_its_coming_and_its_going() {
    let (mut engine, mut target, session, start) = with_module();
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, gone(&engine)), (4, 4));
    for _ in 0..3 {
        assert_eq!(engine.part_came(&mut target, start), Ok(4));
        assert_eq!(engine.part_came(&mut target, start), Ok(0));
        let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
        assert_eq!((applied.patched, engine.sites().patched()), (4, 8));
        // Planned while it was there, applied when it is gone.
        let plan = engine.plan(&mut target, session, &select([])).unwrap();
        assert_eq!(engine.part_goes(start), 4);
        target.write(start, &[0xcc; 64]).unwrap();
        let applied = engine.apply(&mut target, &plan).unwrap();
        assert_eq!((applied.restored, engine.sites().patched()), (4, 0));
        let mut poison = [0; 64];
        target.read(start, &mut poison).unwrap();
        assert_eq!(poison, [0xcc; 64]);
        // The guest loads it again: with its nops.
        for site in engine.image().sites.clone().iter().skip(4) {
            target.write(site.address, &site.original).unwrap();
        }
        change(&mut engine, &mut target, session, 0..8).unwrap();
    }
    assert!(engine.sites().frozen().is_none());
    assert_eq!(engine.part_came(&mut target, Gva(1)), Ok(0), "no such part");
}

/// The word of a module's description that says how many symbols it has.
const SYMBOLS: u64 = 16;

#[test]
fn modules_of_very_many_symbols_have_their_turns_one_after_the_other() {
    let (mut engine, mut guest, _) = linux_with_modules();
    for name in ["one", "two", "three"] {
        guest.module(name, &["open"]);
    }
    // What they say cannot be read, but that is known only when it was tried.
    guest.set_word("one", SYMBOLS, 100_000);
    guest.set_word("two", SYMBOLS, 10_000);
    let looks: Vec<_> = (0..3)
        .map(|_| engine.read_modules(&guest.target, None).unwrap())
        .map(|moved| (moved.unread.len(), moved.came.len(), moved.waiting))
        .collect();
    // The first is more than one look may read, and has one for itself; the others share the next.
    assert_eq!(looks, [(1, 0, 2), (1, 1, 0), (0, 0, 0)]);
}

/// It was passed over without a word.
#[test]
fn where_a_kernel_may_have_probes_that_nobody_sees_is_counted() {
    const COUNT: u64 = 6;
    let code: Vec<u8> = (0..COUNT)
        .flat_map(|_| body(&[0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5d, 0xc3]))
        .collect();
    let file = ElfFile::new().text(TEXT, &code);
    let file = ["a", "b", "c", "d", "e", "f"]
        .into_iter()
        .zip((TEXT..).step_by(16))
        .fold(file, |file, (name, at)| file.function(name, at, 16));
    let mut displaced = Image::parse(&file.build()).unwrap();
    assert_eq!(any::admit(&mut displaced) as u64, COUNT);
    for (image, hides_kprobes, unasked) in [
        (displaced.clone(), true, COUNT),
        (displaced, false, 0),
        // Nothing is displaced.
        (nop_image(COUNT), true, 0),
    ] {
        let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
        let mut engine = Engine::new(Arc::new(image));
        engine.transient.inside = Some(Box::new(Kernel {
            hides_kprobes,
            ..kernel()
        }));
        let region = target.region();
        engine.attach(&mut target, region).unwrap();
        let session = engine.create_session(&mut target, config("one")).unwrap();
        let all = 0..u32::try_from(COUNT).unwrap();
        let applied = change(&mut engine, &mut target, session, all).unwrap();
        assert_eq!((applied.patched as u64, applied.unasked), (COUNT, unasked));
        let back = change(&mut engine, &mut target, session, []).unwrap();
        assert_eq!((back.restored as u64, back.unasked), (COUNT, unasked));
    }
}

/// Where the mock guest's `text_mutex` has its owner.
const TEXT_MUTEX: Gva = Gva(0xffff_ffff_8700_0000);

/// A Linux with 2 functions that says who changes its text.
fn linux_that_patches() -> (Engine, MockTarget, SessionId) {
    let image = nop_image(2);
    let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    let page = Gpa(0x9000);
    target.map(TEXT_MUTEX, page, 4096, Rights::ALL).unwrap();
    let tables = KernelTables {
        top: target.root().table,
        five_levels: None,
    };
    let mut engine = Engine::new(Arc::new(image));
    engine.transient.inside = Some(Box::new(Kernel {
        text_mutex: Some(KernelMutex::at(TEXT_MUTEX, tables)),
        ..kernel()
    }));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session)
}

/// Its `__text_poke` compares what it has written: a jump of ours there by then is a `BUG`.
#[test]
fn nothing_is_put_into_the_text_of_a_linux_that_is_changing_it() {
    let (mut engine, mut target, session) = linux_that_patches();
    let holds = |target: &mut MockTarget, owner: u64| {
        target.write(TEXT_MUTEX, &owner.to_le_bytes()).unwrap();
    };
    holds(&mut target, 0xffff_8881_0000_0000);
    let original = target.clone();
    let refused = change(&mut engine, &mut target, session, 0..2).unwrap_err();
    assert!(refused.to_string().contains("text_mutex"), "{refused}");
    for function in 0..2 {
        let at = engine.image().sites[function].address;
        let bytes = |target: &MockTarget| {
            let mut bytes = [0; 5];
            target.read(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(&target), bytes(&original));
    }
    holds(&mut target, 0);
    let applied = change(&mut engine, &mut target, session, 0..1).unwrap();
    assert_eq!(applied.patched, 1);
    // What is ours is taken away all the same; nothing new comes.
    holds(&mut target, 1);
    let refused = change(&mut engine, &mut target, session, 1..2).unwrap_err();
    assert!(refused.to_string().contains("text_mutex"), "{refused}");
    let applied = change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(applied.restored, 1);
    // Who hides the word keeps nobody from anything.
    let tables = KernelTables {
        top: target.root().table,
        five_levels: None,
    };
    let nowhere = KernelMutex::at(Gva(TEXT_MUTEX.0 + 4096), tables);
    engine.transient.inside = Some(Box::new(Kernel {
        text_mutex: Some(nowhere),
        ..kernel()
    }));
    let applied = change(&mut engine, &mut target, session, 0..2).unwrap();
    assert_eq!(applied.patched, 2);
}

/// Its tracer was switched on over our jumps, and off again.
#[test]
fn what_the_guest_has_given_back_is_its_own_once_somebody_has_looked() {
    let (mut engine, mut target, session) = linux_that_patches();
    change(&mut engine, &mut target, session, 0..2).unwrap();
    let at = engine.image().sites[0].address;
    for theirs in [[0xe8, 1, 2, 3, 4], NOP5] {
        target.write(at, &theirs).unwrap();
        let frozen = change(&mut engine, &mut target, session, []).unwrap_err();
        assert!(matches!(frozen, ApplyError::Frozen(_)), "{frozen}");
        // With a call there it is not given back yet.
        let given_back = engine.commit().thaw(&mut target);
        assert_eq!(given_back, Ok(u64::from(theirs == NOP5)));
        let ours: Vec<_> = engine.sites().ours().collect();
        assert_eq!(
            written(&engine, &target),
            ours,
            "nor does the journal say so"
        );
    }
    assert_eq!(engine.sites().patched(), 1);
    let applied = change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!((applied.restored, applied.written), (1, 1));
    // It can be traced again.
    let applied = change(&mut engine, &mut target, session, 0..2).unwrap();
    assert_eq!(applied.patched, 2);
}
