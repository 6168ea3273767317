//! A start with all its phases, on a guest without a hypervisor: what stands where in each, and every call counted.

use image::testing::{TEXT, nop_image};
use image::{Identity, Linux, SiteForm, SiteKind, Symbol, SymbolKind, SymbolTable};
use insn::nop::NOP5;
use terms::addr::Gpa;
use terms::function::FunctionId;

use trace::glob::Pattern;
use trace::live::Occasion;

use super::*;
use crate::engine::AttachError;
use crate::mock::{self, MockGuest, MockTarget, NoPollers, Rights};
use crate::paging::{PAGE_2M, PAGE_4K};
use crate::stub::cell::LIMIT;
use crate::stub::halt::HALTS_MAX;
use crate::target::TextMemory;
use crate::tracing::closing::Closing;
use crate::tracing::filters::Globs;
use crate::tracing::options::{DEFAULT_SESSION, SessionOptions, Tracer};
use crate::tracing::session::HaltAt;
use crate::tracing::{Host, Kernel, TracingOptions};

const FUNCTIONS: u32 = 40;
const CALL: [u8; 5] = [0xe8, 1, 2, 3, 4];
const OFFSETS: Gva = Gva(TEXT + 0x4000);
const STACK: Gva = Gva(TEXT + 0x8000);
const BASES: [u64; 2] = [0xffff_8880_3e60_0000, 0xffff_8880_3e70_0000];
/// What an entry of that list is before it is one.
const NO_BASE: u64 = 0xffff_ffff_8360_0000;
/// Where the guest is told to be: the functions of these numbers.
const START: u32 = 0;
const CLEARS: u32 = 1;
const NOPS: u32 = 2;

fn at(function: u32) -> Gva {
    Gva(TEXT + 16 * u64::from(function))
}

fn image() -> Image {
    let mut image = nop_image(FUNCTIONS.into());
    for site in &mut image.sites {
        site.kind = SiteKind::Fentry;
        site.form = SiteForm::RawCall { target: Gva(TEXT) };
        site.original = CALL;
    }
    let symbol = |(name, address): (&str, Gva)| Symbol {
        address,
        size: 16,
        name: name.into(),
        display: name.into(),
        kind: SymbolKind::Function,
        global: true,
    };
    let symbols = [
        ("start_kernel", at(START)),
        ("cleanup_highmap", at(CLEARS)),
        ("ftrace_init", at(NOPS)),
        ("__per_cpu_offset", OFFSETS),
    ];
    image.symbols = SymbolTable::new(symbols.map(symbol).to_vec());
    image.linux = Some(Linux {
        version: "6.1.0".to_owned(),
        text: None,
        init_text: None,
        rodata: None,
        prepares_sites: true,
        identity: Identity::default(),
    });
    image
}

/// The entries after the image, of which a kernel that starts has not cleared any.
fn entries(target: &mut MockTarget) -> Vec<Gpa> {
    let first = (TEXT & !(PAGE_2M - 1)) + PAGE_2M;
    let all = (0..255).map(|number| Gva(first + number * PAGE_2M));
    all.map(|at| target.entry(at, 2).unwrap()).collect()
}

/// A guest before its first function, with two processors of which one runs, and its tracing.
fn prepared(image: Image, session: SessionOptions, tracer: Tracer) -> (Tracing, MockGuest) {
    let mut target = MockTarget::with_image(2, 64 << 20, &image, Rights::ALL).unwrap();
    for (page, physical) in [(OFFSETS, 0x180_0000), (STACK, 0x180_1000)] {
        let page = Gva(page.0 & !(PAGE_4K - 1));
        target
            .map(page, Gpa(physical), PAGE_4K, Rights::ALL)
            .unwrap();
    }
    target.write(OFFSETS, &NO_BASE.to_le_bytes()).unwrap();
    for entry in entries(&mut target) {
        target
            .write_physical(entry, &0x12_3000u64.to_le_bytes())
            .unwrap();
    }
    let vcpus = target.vcpus_mut();
    vcpus[0].gs_base = NO_BASE;
    vcpus[1].online = false;
    let options = TracingOptions {
        enabled: true,
        tracer,
        session,
        attach_at: Some("start_kernel".to_owned()),
        vcpus: 2,
        ..TracingOptions::default()
    };
    let kernel = Kernel {
        image,
        debug: None,
        name: "kernel".to_owned(),
    };
    let host = Host {
        clock: mock::HOST,
        pollers: Box::new(NoPollers),
        command_line: String::new(),
    };
    let mut tracing = Tracing::new(options, kernel, host).unwrap();
    let first = tracing.before_start(&mut target).unwrap();
    assert_eq!(first, Some(at(START)));
    (tracing, MockGuest::new(target))
}

fn untraced() -> (Tracing, MockGuest) {
    prepared(image(), SessionOptions::default(), Tracer::Function)
}

/// The first vCPU is at the beginning of a function, which returns there.
fn enters(guest: &MockGuest, function: u32, back: Gva) {
    let mut target = guest.target();
    target.write(STACK, &back.0.to_le_bytes()).unwrap();
    target.vcpus_mut()[0].rip = at(function).0;
    target.vcpus_mut()[0].rsp = STACK.0;
}

/// What stands at every site, if that is the same.
fn sites(guest: &MockGuest) -> Option<[u8; 5]> {
    let site = |function| {
        let mut found = [0; 5];
        guest.target().read(at(function), &mut found).unwrap();
        found
    };
    let first = site(0);
    (1..FUNCTIONS)
        .all(|function| site(function) == first)
        .then_some(first)
}

/// How many sites lead to code that is there.
fn led(guest: &MockGuest) -> usize {
    let target = guest.target();
    let leads = |function: &u32| {
        let mut jump = [0; 5];
        target.read(at(*function), &mut jump).unwrap();
        let [0xe9, distance @ ..] = jump else {
            return false;
        };
        let distance = i64::from(i32::from_le_bytes(distance));
        let to = at(*function)
            .wrapping_add(5)
            .0
            .wrapping_add_signed(distance);
        target.read(Gva(to), &mut jump).is_ok()
    };
    (0..FUNCTIONS).filter(leads).count()
}

/// Calls of every function on a vCPU.
fn call_all(tracing: &Tracing, guest: &MockGuest, vcpu: u16, ticks: u64) {
    let place = tracing.rings_of(DEFAULT_SESSION).unwrap();
    for function in 0..FUNCTIONS {
        let ticks = ticks + u64::from(function);
        assert!(
            guest
                .call(&place, vcpu, FunctionId(function), ticks)
                .unwrap()
        );
    }
}

/// The kernel clears the entries that it does not need.
fn clears_tables(guest: &MockGuest) {
    let mut target = guest.target();
    for entry in entries(&mut target) {
        target.write_physical(entry, &[0; 8]).unwrap();
    }
}

/// It has cleared its entries, and is about to make its sites nops: they are as linked.
fn goes_on_to_nops(tracing: &mut Tracing, guest: &MockGuest) {
    enters(guest, CLEARS, at(5));
    tracing.reached(guest).unwrap();
    clears_tables(guest);
    tracing.reached(guest).unwrap();
    enters(guest, NOPS, at(6));
    tracing.reached(guest).unwrap();
}

/// It has made its sites nops, and has set up what tells its processors apart.
fn prepares_nops(guest: &MockGuest, bases: [u64; 2]) {
    let mut target = guest.target();
    for function in 0..FUNCTIONS {
        target.write(at(function), &NOP5).unwrap();
    }
    for (base, number) in bases.iter().zip(0..) {
        let at = OFFSETS.wrapping_add(8 * number);
        target.write(at, &base.to_le_bytes()).unwrap();
    }
    target.vcpus_mut()[0].gs_base = bases[0];
}

/// Memory of processors can be anywhere, and where a kernel has a list, it need not be filled in yet.
#[test]
fn vcpus_that_cannot_be_told_apart_share_the_ring_of_the_first() {
    for second in [BASES[0] + (1 << 40), NO_BASE] {
        let folder = tempfile::tempdir().unwrap();
        let session = SessionOptions {
            output: Some(folder.path().join("trace")),
            ..SessionOptions::default()
        };
        let (mut tracing, guest) = prepared(image(), session, Tracer::Function);
        tracing.reached(&guest).unwrap();
        let early = tracing.rings_of(DEFAULT_SESSION).unwrap();
        call_all(&tracing, &guest, 0, 1 << 40);
        goes_on_to_nops(&mut tracing, &guest);
        prepares_nops(&guest, [BASES[0], second]);
        assert_eq!(tracing.reached(&guest).unwrap(), None);
        assert_eq!(led(&guest), FUNCTIONS as usize);
        assert_eq!(tracing.attachment.found().strategy, Some("shared"));
        assert!(!tracing.attachment.knows_vcpus());
        let late = tracing.rings_of(DEFAULT_SESSION).unwrap();
        assert_eq!(late.cells, early.cells, "they are where they were");
        let one = tracing.session(DEFAULT_SESSION).unwrap().record_only(&[1]);
        assert!(
            matches!(one, Err(TracingError::VcpusAlike { .. })),
            "{one:?}"
        );
        call_all(&tracing, &guest, 0, (1 << 40) + 2000);
        tracing.stop(&guest, DEFAULT_SESSION).unwrap();
        assert_eq!(sites(&guest), Some(NOP5));
        let finished = tracing.finish(&guest, None).unwrap();
        let [Closing::Written { tally, .. }] = &finished.closings[..] else {
            panic!("{:?}", finished.closings);
        };
        assert_eq!((tally.calls, tally.lost), (2 * u64::from(FUNCTIONS), 0));
    }
}

/// Who chose vCPUs is not given the calls of others.
#[test]
fn a_session_of_one_vcpu_is_not_started_again_where_all_are_alike() {
    let (mut tracing, guest) = untraced();
    tracing.reached(&guest).unwrap();
    tracing
        .session(DEFAULT_SESSION)
        .unwrap()
        .record_only(&[1])
        .unwrap();
    goes_on_to_nops(&mut tracing, &guest);
    prepares_nops(&guest, [BASES[0], NO_BASE]);
    assert_eq!(tracing.reached(&guest).unwrap(), None);
    assert_eq!(sites(&guest), Some(NOP5), "nothing is traced any more");
    tracing
        .session(DEFAULT_SESSION)
        .unwrap()
        .record_only(&[])
        .unwrap();
    let globs = Globs::default();
    tracing
        .start(&guest, DEFAULT_SESSION, None, &globs)
        .unwrap();
    assert_eq!(led(&guest), FUNCTIONS as usize);
}

/// While a kernel rewrites its sites nobody is traced, so a session can be deleted; one of its name is another one.
#[test]
fn a_session_that_is_deleted_while_it_rests_is_not_started_again() {
    for is_made_again in [false, true] {
        let (mut tracing, guest) = untraced();
        tracing.reached(&guest).unwrap();
        goes_on_to_nops(&mut tracing, &guest);
        tracing.delete(&guest, DEFAULT_SESSION).unwrap();
        if is_made_again {
            let options = SessionOptions::default();
            let tracer = Tracer::Function;
            tracing.create(DEFAULT_SESSION, tracer, options).unwrap();
        }
        prepares_nops(&guest, BASES);
        assert_eq!(tracing.reached(&guest).unwrap(), None);
        assert_eq!(sites(&guest), Some(NOP5), "nobody has asked for it");
    }
}

/// Between two borders a session is stopped and started as at any time.
#[test]
fn sessions_are_stopped_and_started_between_borders() {
    let (mut tracing, guest) = untraced();
    let globs = Globs::default();
    tracing.reached(&guest).unwrap();
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(sites(&guest), Some(CALL), "as linked");
    enters(&guest, CLEARS, at(5));
    tracing.reached(&guest).unwrap();
    clears_tables(&guest);
    tracing.reached(&guest).unwrap();
    tracing
        .start(&guest, DEFAULT_SESSION, None, &globs)
        .unwrap();
    assert_eq!(led(&guest), FUNCTIONS as usize);
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    enters(&guest, NOPS, at(6));
    tracing.reached(&guest).unwrap();
    prepares_nops(&guest, BASES);
    assert_eq!(tracing.reached(&guest).unwrap(), None);
    assert_eq!(sites(&guest), Some(NOP5), "who was stopped stays so");
    tracing
        .start(&guest, DEFAULT_SESSION, None, &globs)
        .unwrap();
    assert_eq!(led(&guest), FUNCTIONS as usize);
    let late = tracing.rings_of(DEFAULT_SESSION).unwrap();
    assert_eq!(late.cells[1].0 - late.cells[0].0, BASES[1] - BASES[0]);
}

/// What ends recording at once writes to the cells that there are then, and counts in the same words as before.
#[test]
fn what_ends_recording_goes_with_the_cells() {
    let (mut tracing, guest) = untraced();
    let halt = || HaltAt {
        occasion: Occasion::Call(Pattern::new("f7").unwrap()),
        times: 3,
        counts_lost: false,
    };
    tracing
        .session(DEFAULT_SESSION)
        .unwrap()
        .halt_at(halt())
        .unwrap()
        .unwrap();
    tracing.reached(&guest).unwrap();
    let routine = |tracing: &Tracing| {
        let sessions = tracing.attachment.engine.sessions();
        let session = sessions.iter().next().unwrap();
        session.halts[0].halt.routine
    };
    let left = |tracing: &Tracing, session| {
        let at = tracing.rings_of(session).unwrap().halts_left.unwrap();
        (at, guest.target().read_word(at).unwrap())
    };
    let early = (routine(&tracing), left(&tracing, DEFAULT_SESSION));
    assert_eq!(early.1.1, 3);
    guest.target().write_word(early.1.0, 2).unwrap();
    goes_on_to_nops(&mut tracing, &guest);
    prepares_nops(&guest, BASES);
    assert_eq!(tracing.reached(&guest).unwrap(), None);
    assert_ne!(
        routine(&tracing),
        early.0,
        "it wrote to the cells of before"
    );
    assert_eq!(left(&tracing, DEFAULT_SESSION), (early.1.0, 2));
    // One that is made now has its word among those of the others.
    let (tracer, options) = (Tracer::Function, SessionOptions::default());
    tracing.create("later", tracer, options).unwrap();
    tracing
        .session("later")
        .unwrap()
        .halt_at(halt())
        .unwrap()
        .unwrap();
    let globs = Globs::default();
    tracing.start(&guest, "later", None, &globs).unwrap();
    let later = left(&tracing, "later");
    assert_eq!(
        (later.0.0 - early.1.0.0, later.1),
        (8 * HALTS_MAX as u64, 3)
    );
}

#[test]
fn every_call_is_counted_over_every_border() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionOptions {
        output: Some(folder.path().join("trace")),
        ..SessionOptions::default()
    };
    let (mut tracing, guest) = prepared(image(), session, Tracer::Function);
    // Its tables will be cleared.
    assert_eq!(tracing.reached(&guest).unwrap(), Some(at(CLEARS)));
    assert_eq!(led(&guest), FUNCTIONS as usize);
    let early = tracing.rings_of(DEFAULT_SESSION).unwrap();
    assert_eq!(early.cells.len(), 2, "a ring for each vCPU, whoever runs");
    call_all(&tracing, &guest, 0, 1 << 40);
    let back = at(5).wrapping_add(8);
    enters(&guest, CLEARS, back);
    assert_eq!(tracing.reached(&guest).unwrap(), Some(back));
    clears_tables(&guest);
    assert_eq!(led(&guest), 0);
    assert_eq!(tracing.reached(&guest).unwrap(), Some(at(NOPS)));
    assert_eq!(led(&guest), FUNCTIONS as usize, "the window is back");
    call_all(&tracing, &guest, 0, (1 << 40) + 1000);
    // Its sites will be compared.
    let back = at(6).wrapping_add(8);
    enters(&guest, NOPS, back);
    assert_eq!(tracing.reached(&guest).unwrap(), Some(back));
    assert_eq!(sites(&guest), Some(CALL), "as linked");
    let globs = Globs::default();
    for refused in [
        tracing.stop(&guest, DEFAULT_SESSION),
        tracing.start(&guest, DEFAULT_SESSION, None, &globs),
    ] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(
                refused,
                TracingError::Rewriting {
                    function: "ftrace_init"
                }
            ),
            "{refused}"
        );
    }
    prepares_nops(&guest, BASES);
    assert_eq!(tracing.reached(&guest).unwrap(), None);
    assert_eq!(led(&guest), FUNCTIONS as usize);
    let late = tracing.rings_of(DEFAULT_SESSION).unwrap();
    let apart = late.cells[1].0 - late.cells[0].0;
    assert_eq!(apart, BASES[1] - BASES[0], "found by the bases");
    for old in &early.cells {
        assert!(!late.cells.contains(old));
        let limit = old.wrapping_add(u64::from(LIMIT.unsigned_abs()));
        assert_eq!(
            guest.target().read_word(limit).unwrap(),
            0,
            "nobody records"
        );
    }
    call_all(&tracing, &guest, 0, (1 << 40) + 2000);
    call_all(&tracing, &guest, 1, (1 << 40) + 2000);
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(sites(&guest), Some(NOP5));
    let finished = tracing.finish(&guest, None).unwrap();
    let [Closing::Written { tally, .. }] = &finished.closings[..] else {
        panic!("{:?}", finished.closings);
    };
    assert_eq!((tally.calls, tally.lost), (4 * u64::from(FUNCTIONS), 0));
}

#[test]
fn a_kernel_that_starts_is_traced_only_where_it_can_be_followed() {
    let (mut tracing, guest) = untraced();
    let globs = Globs::default();
    let refused = tracing.start(&guest, DEFAULT_SESSION, None, &globs);
    assert!(
        matches!(refused, Err(TracingError::TooEarly)),
        "{refused:?}"
    );
    assert_eq!(sites(&guest), Some(CALL));

    let mut unknown = image();
    unknown.symbols = SymbolTable::default();
    let error = check_borders(&unknown).unwrap_err().to_string();
    assert!(error.contains("'cleanup_highmap'"), "{error}");
    check_borders(&nop_image(1)).unwrap();

    let (mut tracing, guest) = prepared(image(), SessionOptions::default(), Tracer::Profile);
    let refused = tracing.reached(&guest);
    let Err(TracingError::Attach(AttachError::ProfileTooEarly { name })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(name, DEFAULT_SESSION);
}

#[test]
fn where_a_function_returns_to_is_not_believed() {
    let cases = [
        (CLEARS, Gva(0x1234), "no text"),
        (CLEARS, STACK, "no text"),
        (NOPS, at(5), "no vCPU"),
    ];
    for (function, back, why) in cases {
        let (mut tracing, guest) = untraced();
        tracing.reached(&guest).unwrap();
        enters(&guest, function, back);
        let refused = tracing.reached(&guest).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(refused.contains("cleanup_highmap"), "{refused}");
    }
    let (mut tracing, guest) = untraced();
    tracing.reached(&guest).unwrap();
    enters(&guest, CLEARS, at(5));
    guest.target().vcpus_mut()[0].rsp = 0x10;
    let refused = tracing.reached(&guest).unwrap_err().to_string();
    assert!(refused.contains("its stack"), "{refused}");
}
