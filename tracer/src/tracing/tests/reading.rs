//! Who reads the rings of sessions: while they are dumped, and when all that was recorded is to be read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::ring::reader::Mode;
use crate::tracing::checks::check_occasion;

thread_local! {
    /// Those that are read here.
    static READ: RefCell<Vec<Arc<SharedDrain>>> = const { RefCell::new(Vec::new()) };
    /// How often this thread has rested, and how often all of them were free then.
    static RESTS: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
}

/// Notes at each rest whether all readers are free.
const RESTED: HostClock = HostClock {
    rest: |_| {
        let are_free = READ.with_borrow(|all| all.iter().all(|drain| drain.is_free()));
        let [rests, free] = RESTS.get();
        RESTS.set([rests + 1, free + u32::from(are_free)]);
    },
    ..mock::HOST
};

/// Who polls and never comes, or nobody.
#[derive(Debug, Clone, Copy)]
struct Away {
    makes_rounds: bool,
}

impl Pollers for Away {
    fn start(&self, drain: Arc<SharedDrain>) -> std::io::Result<Box<dyn Poller>> {
        READ.with_borrow_mut(|all| all.push(drain));
        Ok(Box::new(*self))
    }
}

impl Poller for Away {
    fn makes_rounds(&self) -> bool {
        self.makes_rounds
    }

    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, _: &dyn Fn() -> bool) -> bool {
        last();
        true
    }
}

fn started(makes_rounds: bool) -> (Tracing, MockGuest) {
    let (mut tracing, guest) = prepared_with(nop_image(FUNCTIONS), small(None), |_| Host {
        clock: RESTED,
        pollers: Box::new(Away { makes_rounds }),
        ..host()
    });
    let started = tracing.start(&guest, DEFAULT_SESSION, None, &everything());
    started.unwrap();
    (tracing, guest)
}

/// Its reader had to wait for the disk that the dump waited for.
#[test]
fn rings_are_free_while_a_dump_of_them_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tracing, guest) = started(false);
    let place = tracing.rings_of(DEFAULT_SESSION).unwrap();
    assert!(guest.call(&place, 0, FunctionId(0), 1 << 39).unwrap());
    RESTS.take();
    let copy = folder.path().join("copy");
    let wanted = WantedDump::whole(&copy, true);
    let dumped = tracing.dump(&guest, DEFAULT_SESSION, &wanted).unwrap();
    assert_eq!(dumped.records, 1);
    let [rests, free] = RESTS.get();
    assert!(rests > 0 && free == rests, "{free} of {rests}");
}

#[test]
fn a_session_that_nobody_has_read_is_named() {
    let wanted = BTreeSet::from(["nobody", DEFAULT_SESSION]);
    let (tracing, _guest) = started(false);
    assert_eq!(OneSession::read_now(&tracing, &wanted), BTreeSet::new());
    let (tracing, _guest) = started(true);
    let unread = BTreeSet::from([DEFAULT_SESSION.to_owned()]);
    assert_eq!(OneSession::read_now(&tracing, &wanted), unread);
    assert_eq!(
        OneSession::read_now(&tracing, &BTreeSet::from(["nobody"])),
        BTreeSet::new()
    );
}

/// Larger rings were advised, of which a dump takes longer to copy.
#[test]
fn what_is_lost_while_a_dump_holds_the_rings_is_no_want_of_room() {
    for (mode, known) in [(Mode::Overwrite, 7), (Mode::Discard, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let session = SessionOptions {
            mode,
            ..small(Some(&folder.path().join("trace")))
        };
        let (mut tracing, guest) = prepared(session);
        let started = tracing.start(&guest, DEFAULT_SESSION, None, &everything());
        started.unwrap();
        let place = tracing.rings_of(DEFAULT_SESSION).unwrap();
        let counted = place.cells[0].wrapping_add(u64::from(LOST.unsigned_abs()));
        guest.target().write_word(counted, 7).unwrap();
        let finished = tracing.finish(&guest, None).unwrap();
        let [Closing::Written { tally, held, .. }] = &finished.closings[..] else {
            panic!("{:?}", finished.closings);
        };
        assert_eq!((tally.lost, *held), (7, known), "{mode:?}");
    }
}

/// It was waited for, without a word, although no stub would ever tell of it.
#[test]
fn what_no_function_of_the_filter_can_be_is_told_from_what_one_can() {
    let (mut tracing, guest) = prepared(small(None));
    let names: Vec<String> = nop_image(FUNCTIONS)
        .functions
        .iter()
        .map(|function| function.name.to_string())
        .collect();
    let sees = |tracing: &mut Tracing, occasion: &str| {
        let session = tracing.session(DEFAULT_SESSION).unwrap();
        session.selects_some_of(&occasion.parse().unwrap()).unwrap()
    };
    assert!(sees(&mut tracing, &names[1]));
    let one = only(&names[0]);
    tracing.start(&guest, DEFAULT_SESSION, None, &one).unwrap();
    let longer = format!("{} > 1us", names[1]);
    for (occasion, is_seen) in [
        (&*names[0], true),
        (&*names[1], false),
        (&*longer, false),
        ("*", true),
        ("event any", true),
        ("mod:any:*", true),
    ] {
        assert_eq!(sees(&mut tracing, occasion), is_seen, "{occasion}");
    }
}

#[test]
fn a_session_of_no_functions_waits_for_the_call_of_none() {
    let image = nop_image(FUNCTIONS);
    let call = image.functions[0].name.parse().unwrap();
    let check = |tracer| check_occasion(&call, tracer, &small(None), &image);
    check(Tracer::Function).unwrap();
    let refused = check(Tracer::Nop).unwrap_err().to_string();
    let expected = "can never be: the session traces no functions";
    assert!(refused.ends_with(expected), "{refused}");
}
