//! A Linux that changes its own text, so that nobody may put anything into it: who asks for a change waits for that, and what comes with
//! modules meanwhile is traced as soon as it is over.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use debuginfo::btf::testing::Builder;
use image::symbol::{Symbol, SymbolKind, SymbolTable};
use image::{Identity, Linux, Segment};
use trace::export::uftrace::LateModule;

use super::*;
use crate::linux::module::testing::{Guest as Modules, MODULES_AREA};
use crate::tracing::probes::SomeProbes;

/// What the kernel's own page tables are called by, and who holds its `text_mutex`.
const TABLES: Gva = Gva(0xffff_ffff_8600_0000);
const TEXT_MUTEX: Gva = Gva(0xffff_ffff_8700_0000);
const OWNER: Gpa = Gpa(0x9000);
/// Where it is between two looks.
const TICK: Duration = Duration::from_millis(20);

thread_local! {
    /// The time of this test's host.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// How often somebody has rested.
    static RESTS: Cell<u32> = const { Cell::new(0) };
    /// The guest, and the rest in which it comes to the end of its change.
    static CHANGES: RefCell<Option<(MockGuest, u32)>> = const { RefCell::new(None) };
}

/// Time goes by only while somebody rests, or when a test says so.
const CLOCK: HostClock = HostClock {
    now: || NOW.get(),
    rest: |rest| {
        NOW.set(NOW.get() + rest);
        RESTS.set(RESTS.get() + 1);
        CHANGES.with_borrow(|changes| match changes {
            Some((guest, last)) if *last == RESTS.get() => hold(&mut guest.target(), false),
            _ => {}
        });
    },
    ..mock::HOST
};

/// Somebody in the guest has `text_mutex` from now on, or nobody.
fn hold(target: &mut MockTarget, is_held: bool) {
    let owner = u64::from(is_held) << 32;
    target.write_word(OWNER, owner).unwrap();
}

/// What the kernel says of its own types.
fn types() -> Arc<[u8]> {
    let mut btf = Builder::new();
    let long = btf.int("unsigned long", 8);
    let int = btf.int("unsigned int", 4);
    let char = btf.int("char", 1);
    let name = btf.array(char, 56);
    let core = [("base", long, 0), ("text_size", int, 8)];
    let core = btf.structure("module_layout", 16, &core);
    btf.enumeration(
        "module_state",
        &[("MODULE_STATE_LIVE", 0), ("MODULE_STATE_UNFORMED", 3)],
    );
    let members = [
        ("state", int, 0),
        ("list", long, 8),
        ("name", name, 24),
        ("core_layout", core, 80),
        ("num_ftrace_callsites", int, 96),
        ("ftrace_callsites", long, 104),
        ("kallsyms", long, 112),
    ];
    btf.structure("module", 144, &members);
    let members = [
        ("symtab", long, 0),
        ("num_symtab", int, 8),
        ("strtab", long, 16),
    ];
    btf.structure("mod_kallsyms", 24, &members);
    btf.structure("mutex", 32, &[("owner", long, 0)]);
    btf.build().into()
}

/// A Linux with modules that says who changes its text.
struct Changing {
    tracing: Tracing,
    guest: MockGuest,
    modules: Modules,
}

fn linux(head: Gva, tables: Gpa) -> Image {
    let mut image = nop_image(FUNCTIONS);
    let symbol = |(name, address): (&str, Gva)| Symbol {
        address,
        size: 0,
        name: name.into(),
        display: name.into(),
        kind: SymbolKind::Object,
        global: true,
    };
    let more = [
        ("modules", head),
        ("init_top_pgt", TABLES),
        ("text_mutex", TEXT_MUTEX),
    ];
    let symbols = image.symbols.iter().cloned().chain(more.map(symbol));
    image.symbols = SymbolTable::new(symbols.collect());
    image.segments.push(Segment {
        vaddr: TABLES,
        paddr: tables,
        filesz: 0,
        memsz: 4096,
        read: true,
        write: true,
        execute: false,
    });
    image.linux = Some(Linux {
        version: "6.1.0".to_owned(),
        text: image.text.first().copied(),
        init_text: None,
        rodata: None,
        identity: Identity::default(),
        prepares_sites: true,
    });
    image.btf = Some(types());
    image
}

impl Changing {
    /// A guest that changes nothing, and has no modules yet.
    fn by(method: PatchMethod) -> Self {
        NOW.set(Duration::from_secs(7));
        RESTS.set(0);
        let image = nop_image(FUNCTIONS);
        let target = MockTarget::with_image(VCPUS.into(), WINDOW, &image, Rights::ALL).unwrap();
        let mut modules = Modules::on(target);
        let (head, tables) = (modules.layout.head, modules.layout.tables.top);
        modules
            .target
            .map(TEXT_MUTEX, OWNER, 4096, Rights::ALL)
            .unwrap();
        let empty = MockTarget::new(VCPUS.into(), WINDOW);
        let mut guest = MockGuest::new(std::mem::replace(&mut modules.target, empty));
        (guest.serves_breakpoints, guest.is_mapped) = (true, true);
        CHANGES.set(Some((guest.clone(), 0)));
        let options = TracingOptions {
            session: small(None),
            vcpus: VCPUS,
            patch_method: method,
            ..TracingOptions::default()
        };
        let kernel = Kernel {
            image: linux(head, tables),
            debug: None,
            name: "kernel".to_owned(),
        };
        let host = Host {
            clock: CLOCK,
            ..host()
        };
        let mut tracing = Tracing::new(options, kernel, host).unwrap();
        assert!(tracing.has_modules());
        tracing.look(&guest);
        Self {
            tracing,
            guest,
            modules,
        }
    }

    /// The same, whose default session traces what these globs say.
    fn tracing(method: PatchMethod, filter: &[&str]) -> Self {
        let mut on = Self::by(method);
        let globs = Globs {
            filter: filter.iter().map(|glob| (*glob).to_owned()).collect(),
            ..Globs::default()
        };
        on.tracing
            .start(&on.guest, DEFAULT_SESSION, None, &globs)
            .unwrap();
        on
    }

    fn holds(&self, is_held: bool) {
        hold(&mut self.guest.target(), is_held);
    }

    /// Somebody changes text until others have rested so often from now on.
    fn changes_until(&self, rests: u32) {
        self.holds(true);
        CHANGES.set(Some((self.guest.clone(), RESTS.get() + rests)));
    }

    /// The guest loads or unloads something.
    fn does(&mut self, what: impl FnOnce(&mut Modules)) {
        let swap = |target: &mut MockTarget, guest: &MockGuest| {
            std::mem::swap(target, &mut *guest.target());
        };
        swap(&mut self.modules.target, &self.guest);
        what(&mut self.modules);
        swap(&mut self.modules.target, &self.guest);
    }

    fn loads(&mut self, name: &str, functions: &[&str]) {
        self.does(|modules| _ = modules.module(name, functions));
    }

    /// A look, a tick after the last one has ended. Says how often the guest was paused for it.
    fn looks(&mut self) -> u64 {
        let stops = self.guest.stops();
        NOW.set(NOW.get() + TICK);
        self.tracing.look(&self.guest);
        self.guest.stops() - stops
    }

    fn late(&self) -> Vec<LateModule> {
        let sessions = self.tracing.status().sessions;
        sessions[0].late_modules.iter().cloned().collect()
    }

    /// What the only probe does, and why it does not do more.
    fn probe(&self) -> (String, Option<String>) {
        let probes = self.tracing.probes(&self.guest).probes;
        (probes[0].state.clone(), probes[0].reason.clone())
    }
}

fn late(module: &str, functions: u64, at_most: Duration) -> LateModule {
    LateModule {
        module: module.to_owned(),
        times: 1,
        functions,
        at_most_us: u64::try_from(at_most.as_micros()).unwrap(),
    }
}

#[test]
fn who_asks_for_a_change_waits_for_the_guests_own_by_each_method() {
    for method in [PatchMethod::Quiesce, PatchMethod::Live, PatchMethod::Atomic] {
        let mut on = Changing::by(method);
        on.changes_until(3);
        let stops = on.guest.stops();
        let changed = on
            .tracing
            .start(&on.guest, DEFAULT_SESSION, None, &only("f1*"));
        let changed = changed.unwrap();
        assert_eq!((changed.patched, RESTS.get()), (11, 3), "{method:?}");
        assert_eq!(changed.pauses, on.guest.stops() - stops);
    }
}

/// It was tried 31 ms and then never again, and nobody was told why.
#[test]
fn a_probe_whose_module_came_meanwhile_is_recorded_when_the_change_is_over() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["f1"]);
    let probe = ["mod:one:one_open".to_owned()];
    on.tracing
        .add_probes(&on.guest, DEFAULT_SESSION, &probe, None)
        .unwrap();
    assert_eq!(on.probe(), ("waiting".to_owned(), None));
    on.holds(true);
    on.loads("one", &["one_open"]);
    for _ in 0..3 {
        on.looks();
        let (state, reason) = on.probe();
        assert_eq!(state, "off");
        assert!(reason.unwrap().contains("text_mutex"));
    }
    on.holds(false);
    assert!(on.looks() > 0);
    assert_eq!(on.probe(), ("on".to_owned(), None));
    assert_eq!(on.looks(), 0);
    // It waits again for what it was set in.
    on.does(|modules| _ = modules.unload_last());
    on.looks();
    assert_eq!(on.probe(), ("waiting".to_owned(), None));
}

/// It was put in by itself, without the rings, and the pages for returns, that it needs.
#[test]
fn a_probe_that_is_switched_on_after_its_module_came_has_all_that_it_needs() {
    for probe in ["mod:one:one_open", "mod:one:one_open%return ret=$retval"] {
        let mut on = Changing::tracing(PatchMethod::Quiesce, &["f1"]);
        on.tracing
            .add_probes(&on.guest, DEFAULT_SESSION, &[probe.to_owned()], None)
            .unwrap();
        let all = SomeProbes {
            all_of: Some(DEFAULT_SESSION.to_owned()),
            ids: Vec::new(),
        };
        on.tracing.enable_probes(&on.guest, &all, false).unwrap();
        on.loads("one", &["one_open"]);
        on.looks();
        assert_eq!(on.probe(), ("disabled".to_owned(), None), "{probe}");
        on.tracing.enable_probes(&on.guest, &all, true).unwrap();
        assert_eq!(on.probe(), ("on".to_owned(), None), "{probe}");
        let session = on.tracing.attachment.sessions.find(DEFAULT_SESSION);
        let session = on.tracing.attachment.sessions.at(session.unwrap()).unwrap();
        let session = session.recording().unwrap();
        let engine = &on.tracing.attachment.engine;
        assert!(engine.sessions().get(session).unwrap().events.is_some());
    }
}

/// A module that is unloaded before that, and comes again, is late once, and not since it came first.
#[test]
fn what_has_gone_before_the_change_was_over_is_not_late() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["mod:one:*"]);
    on.holds(true);
    on.loads("one", &["one_open"]);
    on.looks();
    let seen = NOW.get() - Duration::from_millis(31);
    on.does(|modules| _ = modules.unload_last());
    on.loads("one", &["one_open"]);
    on.looks();
    on.holds(false);
    on.looks();
    assert_eq!(patched(&on.tracing), 1);
    assert_eq!(on.late(), [late("one", 1, NOW.get() - seen)]);
}

/// What one session could not trace another one may have, and one that is started after that has all of it from its beginning.
#[test]
fn only_the_session_that_could_not_trace_a_module_is_late() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["mod:one:*"]);
    on.tracing
        .create("other", Tracer::Function, small(None))
        .unwrap();
    on.holds(true);
    on.loads("one", &["one_open"]);
    on.looks();
    let seen = NOW.get() - Duration::from_millis(31) - TICK;
    let globs = Globs {
        filter: vec!["mod:one:*".to_owned()],
        ..Globs::default()
    };
    on.changes_until(3);
    on.tracing.start(&on.guest, "other", None, &globs).unwrap();
    on.looks();
    let sessions = on.tracing.status().sessions;
    let late_of = |index: usize| {
        sessions[index]
            .late_modules
            .iter()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(late_of(0), [late("one", 1, NOW.get() - seen)]);
    assert_eq!(late_of(1), []);
    // Nor is it, started anew, late for what it did not trace the last time.
    on.holds(true);
    on.loads("two", &["two_open"]);
    on.looks();
    on.tracing.stop(&on.guest, "other").unwrap();
    on.holds(false);
    on.tracing.start(&on.guest, "other", None, &globs).unwrap();
    on.looks();
    let sessions = on.tracing.status().sessions;
    assert_eq!(sessions[1].late_modules.iter().count(), 0);
}

/// A change that never ends (a `BUG` of the kernel's) once took six pauses at each tick.
#[test]
fn nobody_is_paused_to_see_whether_a_change_is_over() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["mod:one:*"]);
    let started = on.guest.stops();
    on.guest.pause = Duration::from_micros(70);
    on.holds(true);
    on.loads("one", &["one_open", "one_read"]);
    assert_eq!((on.looks(), RESTS.get()), (6, 5), "as a vCPU may wait");
    for _ in 0..100 {
        assert_eq!(on.looks(), 0);
    }
    on.holds(false);
    assert_eq!((on.looks(), patched(&on.tracing)), (1, 2));
    assert_eq!(on.looks(), 0);
    // No operation tells of them.
    let status = on.tracing.status();
    assert_eq!((status.looks, status.longest_look_us), (7, 70.0));
    assert_eq!(on.guest.stops(), started + 7);
}

#[test]
fn tries_that_come_to_nothing_come_less_and_less_often() {
    let mut on = Changing::tracing(PatchMethod::Atomic, &["mod:one:*"]);
    // It is seen to change nothing, and does so whenever somebody is about to write.
    on.guest.before_running = Some(|target| hold(target, true));
    on.loads("one", &["one_open"]);
    let mut tried = Vec::new();
    while NOW.get() < Duration::from_secs(17) {
        on.holds(false);
        if on.looks() > 0 {
            tried.push(NOW.get());
        }
    }
    let rests: Vec<Duration> = tried
        .array_windows()
        .map(|[one, next]| *next - *one)
        .collect();
    // The first time it is likely that it was over; then as much time as tries take, four times, is the least.
    let least = [1, 124, 124, 160, 320, 640, 1000, 1000];
    for (rest, least) in rests.iter().zip(least) {
        let (rest, least) = (rest.as_millis(), least);
        assert!((least..least + 31 + 2 * 20).contains(&rest), "{rests:?}");
    }
    assert!((11..18).contains(&rests.len()), "{rests:?}");
    on.guest.before_running = None;
    on.holds(false);
    NOW.set(NOW.get() + WINDOW_PERIOD);
    assert_eq!((on.looks(), patched(&on.tracing)), (1, 1));
}

#[test]
fn a_look_does_not_wait_as_long_as_who_asks_and_who_asks_after_it_does() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["mod:one:*"]);
    on.holds(true);
    on.loads("one", &["one_open"]);
    on.looks();
    assert_eq!(RESTS.get(), 5);
    on.changes_until(20);
    let changed =
        on.tracing
            .change_filter(&on.guest, DEFAULT_SESSION, FilterEdit::Add, &only("f1"));
    assert_eq!((changed.unwrap().patched, RESTS.get()), (2, 25));
}

/// Late is what was traced when it could have been called before: also what was announced, if it could not be traced then.
#[test]
fn what_is_traced_when_the_change_is_over_is_late_by_all_of_that() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["mod:*:*"]);
    let announced = |on: &mut Changing, number: u64, name: &str, function: &str| {
        on.loads(name, &[function]);
        on.does(|modules| modules.set_state(name, 1));
        on.guest.target().vcpus_mut()[1].rdi = MODULES_AREA + number * 0x1_0000;
        on.tracing.announcement(&on.guest, 1);
        on.does(|modules| modules.set_state(name, 0));
    };
    announced(&mut on, 0, "one", "one_open");
    on.looks();
    assert_eq!((on.late(), patched(&on.tracing)), (Vec::new(), 1));
    let seen = NOW.get();
    on.loads("two", &["two_open", "two_read"]);
    on.looks();
    let two = late("two", 2, NOW.get() - seen);
    assert_eq!(on.late(), std::slice::from_ref(&two));
    on.holds(true);
    let told = NOW.get();
    announced(&mut on, 2, "three", "three_open");
    assert_eq!(NOW.get() - told, Duration::from_millis(31));
    on.loads("four", &["four_open"]);
    for _ in 0..4 {
        on.looks();
    }
    assert_eq!((on.late(), patched(&on.tracing)), (vec![two.clone()], 3));
    on.holds(false);
    on.looks();
    let [three, four] = [
        late("three", 1, NOW.get() - told),
        late("four", 1, NOW.get() - told),
    ];
    assert_eq!(patched(&on.tracing), 5);
    assert_eq!(on.late(), [two, three, four]);
}

/// A session whose stop has failed goes on as before, also with what comes.
#[test]
fn a_stop_that_fails_keeps_following_modules() {
    let mut on = Changing::tracing(PatchMethod::Quiesce, &["f1", "mod:one:*"]);
    on.guest.stuck = Some(1);
    let error = on.tracing.stop(&on.guest, DEFAULT_SESSION).unwrap_err();
    assert!(matches!(error, TracingError::Stop(_)), "{error}");
    on.guest.stuck = None;
    on.loads("one", &["one_open"]);
    on.looks();
    assert_eq!(patched(&on.tracing), 2);
}
