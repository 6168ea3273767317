//! Who reads, who writes and who asks, on a guest without a hypervisor.

mod dumps;
mod gaps;
mod late;
mod listeners;
mod points;
mod rings;
mod turns;
mod waits;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::thread::{self, yield_now};
use std::time::{Duration, Instant};

use image::testing::nop_image;
use terms::addr::Gpa;
use terms::function::FunctionId;

use super::backlog::{Backlog, Batch, Records};
use super::drain::Drain;
use super::encoder::Encoding;
use super::ring_clock::{RingClock, TraceTime};
use super::rings::SharedRings;
use super::*;
use crate::clock::page::Beats;
use crate::clock::{HostClock, Relation, RunClock, VcpuClocks};
use crate::guest::Guest;
use crate::host_events::HostEvents;
use crate::mock::{self, MockGuest, MockTarget, NoPollers};
use crate::record::Format as RecordFormat;
use crate::ring::geometry::{Geometry, Position};
use crate::ring::reader::Mode;
use crate::session::SessionMemory;
use crate::stub::cell::HEAD;
use trace::crew::Alone;
use trace::doubt::TimeDoubts;
use trace::event::Step;
use trace::export::uftrace::{CallCoder, GRAPH, Metadata, NOP};
use trace::form::Form;
use trace::host::{HostStep, HostThread};
use trace::live::{Happening, Live, Tail, tail};
use trace::report::{Format, print};
use trace::stream::{Origin, Stream, StreamOptions, WAITING_MAX};

const FUNCTIONS: u64 = 4;
const CALLS: u64 = 100;
/// Bytes of a stack.
const STACK: u64 = 16 << 10;
/// When the host's clock stands still ([`mock::HOST`]).
pub(in crate::collect) const NOW: u64 = 1 << 40;
/// When the first call is made of those that have returns.
pub(in crate::collect) const BEGUN: u64 = NOW - 10_000_000;
/// A machine that does ten other things is not late yet.
const NEVER: Duration = Duration::from_secs(300);

/// Times from a clock page that is never late.
pub(in crate::collect) fn paged(host: HostClock) -> RingClock {
    RingClock::Page(host, Beats::without_end())
}

/// A guest with one ring, and its reader.
fn reader(output: Option<&Path>) -> (MockGuest, SessionMemory, Polled) {
    reader_by(output, paged(mock::HOST))
}

/// The same, where records are timed by `clock`.
fn reader_by(output: Option<&Path>, clock: RingClock) -> (MockGuest, SessionMemory, Polled) {
    reader_of(output, clock, 1, 4096)
}

/// The same, with so many rings of so many bytes.
fn reader_of(
    output: Option<&Path>,
    clock: RingClock,
    rings: u16,
    bytes: u64,
) -> (MockGuest, SessionMemory, Polled) {
    reader_in(RecordFormat::Calls, output, clock, rings, bytes)
}

/// The same, of records of this format.
pub(in crate::collect) fn reader_in(
    format: RecordFormat,
    output: Option<&Path>,
    clock: RingClock,
    rings: u16,
    bytes: u64,
) -> (MockGuest, SessionMemory, Polled) {
    let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
    let place = place_in(&guest, format, rings, bytes);
    let polled = reader_at(&guest, &place, output, clock);
    (guest, place, polled)
}

/// So many rings, of so many bytes, of records of this format.
fn place_in(guest: &MockGuest, format: RecordFormat, rings: u16, bytes: u64) -> SessionMemory {
    let geometry = Geometry::with_bytes(bytes).unwrap();
    let window = guest.window().start;
    let all = bytes * u64::from(rings);
    let details = format.has_details();
    SessionMemory {
        cells: (0..u64::from(rings))
            .map(|ring| window.wrapping_add(ring * 64))
            .collect(),
        rings: window.wrapping_add(4096),
        format,
        details: details.then_some(window.wrapping_add(4096 + all)),
        directory: None,
        room: 2 * all,
        geometry,
        first: vec![geometry.first(); usize::from(rings)],
        halts_left: None,
        awaited: None,
    }
}

/// The reader of these rings.
fn reader_at(
    guest: &MockGuest,
    place: &SessionMemory,
    output: Option<&Path>,
    clock: RingClock,
) -> Polled {
    let memory: Arc<dyn crate::guest::SharedMemory> = Arc::new(guest.memory().clone());
    let rings = u16::try_from(place.cells.len()).unwrap();
    let format = place.format;
    let image = Arc::new(nop_image(FUNCTIONS));
    let stack_bytes = format.is_graph().then_some(STACK);
    let metadata = Metadata {
        vcpus: rings,
        tracer: stack_bytes.map_or(NOP, |_| GRAPH).into(),
        ..Metadata::default()
    };
    let options = StreamOptions {
        rings,
        stack_bytes,
        ..StreamOptions::default()
    };
    let output = output.map(|output| {
        let stream = Stream::of(&options, &image.functions, WAITING_MAX).unwrap();
        Output::create(output, false, &image, metadata, stream)
    });
    let output = output.transpose().unwrap();
    let mut drain = Drain::new(
        SharedRings::new(memory, place.clone()),
        place.geometry,
        Mode::Overwrite,
        u32::try_from(FUNCTIONS).unwrap(),
        TraceTime {
            run: RunClock::new(0, 1_000_000),
            rings: clock,
        },
        output.is_some(),
    );
    if let Some(encoding) = output.as_ref().and_then(Output::encodes) {
        drain.encode(&encoding);
    }
    drain.switch(true);
    Polled::start(drain, output, &NoPollers).unwrap()
}

thread_local! {
    /// What this thread's counter says.
    pub(in crate::collect) static TICKS: Cell<u64> = const { Cell::new(BEGUN) };
}

/// A clock that is set by a test: it begins before its calls are made, [`BEGUN`].
pub(in crate::collect) const TICKING: HostClock = HostClock {
    counter: || TICKS.get(),
    ..mock::HOST
};

/// The word of a cell at this offset.
fn cell_word(place: &SessionMemory, ring: u16, offset: i32) -> Gpa {
    place.cells[usize::from(ring)].wrapping_add(u64::from(offset.unsigned_abs()))
}

/// The next slot of the first ring is reserved, by one whose record comes later ([`comes_late`]).
fn reserve(guest: &MockGuest, place: &SessionMemory) -> u64 {
    let (head, mut target) = (cell_word(place, 0, HEAD), guest.target());
    let word = target.read_word(head).unwrap();
    let next = Position::of_word(word, 0).unwrap().after(1);
    target.write_word(head, next.word(0)).unwrap();
    word
}

/// The record of a slot that was reserved: what `write` writes next.
fn comes_late(guest: &MockGuest, place: &SessionMemory, slot: u64, write: impl FnOnce()) {
    let head = cell_word(place, 0, HEAD);
    let word = guest.target().read_word(head).unwrap();
    guest.target().write_word(head, slot).unwrap();
    write();
    guest.target().write_word(head, word).unwrap();
}

fn call(guest: &MockGuest, place: &SessionMemory, calls: u64) {
    call_on(0, guest, place, 0..calls);
}

pub(in crate::collect) fn call_on(
    vcpu: u16,
    guest: &MockGuest,
    place: &SessionMemory,
    calls: Range<u64>,
) {
    for call in calls {
        let function = FunctionId(u32::try_from(call % FUNCTIONS).unwrap());
        let ticks = NOW - 1_000_000 + call;
        assert!(guest.call(place, vcpu, function, ticks).unwrap());
    }
}

fn wait_until(is_so: impl FnMut() -> bool) {
    assert!(comes(is_so), "it never came to be so");
}

/// Whether it comes to be so.
fn comes(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + NEVER;
    while !is_so() {
        if Instant::now() >= end {
            return false;
        }
        yield_now();
    }
    true
}

/// A file that takes nothing before it is opened to be read.
fn pipe(at: &Path) {
    assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
}

/// Of few calls nothing fills a buffer. Once they lay in memory until the end, and who was killed after a minute had none.
#[test]
fn what_was_read_is_in_the_files_a_second_later_however_little_it_is() {
    static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
    let clock = HostClock {
        counter: || BEGUN + NANOSECONDS.load(SeqCst),
        now: || Duration::from_nanos(NANOSECONDS.load(SeqCst)),
        ..mock::HOST
    };
    let folder = tempfile::tempdir().unwrap();
    // Without returns each step is a call, which a directory has with its end.
    for (format, records) in [(RecordFormat::Calls, 160), (RecordFormat::Graph, 80)] {
        NANOSECONDS.store(0, SeqCst);
        let output = folder.path().join(format!("{format:?}"));
        let clock = paged(clock);
        let (guest, place, mut polled) = reader_in(format, Some(&output), clock, 2, 1 << 14);
        let length = |number| fs::metadata(output.join(format!("{number}.dat")));
        let length = |number| length(number).map_or(0, |file| file.len());
        let written = || length(1000) + length(1001);
        for turn in 0..3 {
            let before = written();
            rings::call_two_deep(&guest, &place, turn * 10, 10);
            NANOSECONDS.fetch_add(999_999_999, SeqCst);
            polled.round();
            assert_eq!(written(), before, "{format:?}: at once");
            NANOSECONDS.fetch_add(1, SeqCst);
            polled.round();
            assert_eq!(written(), before + records * 16, "{format:?}");
        }
        polled.finish().unwrap();
    }
}

thread_local! {
    /// What this thread's clock says.
    static SECONDS: Cell<u64> = const { Cell::new(0) };
}

/// A clock that is set by a test.
const SET: HostClock = HostClock {
    counter: || BEGUN + 1000 * SECONDS.get(),
    now: || Duration::from_secs(SECONDS.get()),
    ..mock::HOST
};

#[test]
fn what_cannot_be_put_into_the_files_a_second_later_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let format = RecordFormat::Graph;
    let (guest, place, mut polled) = reader_in(format, Some(&output), paged(SET), 2, 1 << 14);
    fs::create_dir(output.join("1000.dat")).unwrap();
    rings::call_two_deep(&guest, &place, 0, 10);
    polled.round();
    assert_eq!(polled.told().error, None);
    SECONDS.set(1);
    polled.round();
    let error = polled.told().error.expect("a file that is none");
    assert!(error.contains("1000.dat"), "{error}");
    polled.finish().unwrap_err();
}

/// Files that have no names any more take everything. It was once noticed at the end only, and then the trace was said to stay
/// readable.
#[test]
fn a_trace_that_was_taken_away_is_missed_a_second_later() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader_by(Some(&output), paged(SET));
    call(&guest, &place, CALLS);
    polled.round();
    fs::remove_dir_all(&output).unwrap();
    // Somebody else may put something there.
    fs::create_dir(&output).unwrap();
    polled.round();
    assert_eq!(polled.told().error, None);
    SECONDS.set(1);
    polled.round();
    let error = polled.told().error.expect("nothing is there");
    assert!(error.contains("/trace is gone"), "{error}");
    let is_read = |polled: &Polled| {
        let drain = polled.lock();
        (drain.is_written(), drain.status()[0].read)
    };
    assert_eq!(is_read(&polled), (false, CALLS));
    call(&guest, &place, CALLS);
    polled.round();
    assert_eq!(is_read(&polled), (false, CALLS), "for nobody");
    let error = polled.finish().unwrap_err();
    assert!(matches!(error, ExportError::Gone(_)), "{error}");
    assert_eq!(fs::read_dir(&output).unwrap().count(), 0, "it is not ours");
}

/// A name that is gone before its file has its own was taken away, and the others will be: the trace was once said to stay
/// readable then.
#[test]
fn a_trace_that_is_just_being_taken_away_is_missed_too() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader(Some(&output));
    std::os::unix::fs::symlink("nowhere/there", output.join("exotrace.json.new")).unwrap();
    call(&guest, &place, CALLS);
    polled.lock().describe(Metadata::default());
    polled.round();
    let error = polled.told().error.expect("its name was taken away");
    assert!(error.contains("/trace is gone"), "{error}");
    assert!(output.join("exotrace.json").exists());
    let error = polled.finish().unwrap_err();
    assert!(matches!(error, ExportError::Gone(_)), "{error}");
}

/// It was once: `status` waited for a disk that took nothing, and with it everybody on the control socket.
#[test]
fn who_asks_does_not_wait_for_a_disk_that_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader(Some(&output));
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    call(&guest, &place, CALLS);
    polled.lock().describe(Metadata::default());
    thread::scope(|scope| {
        let drain = Arc::clone(&polled.drain);
        let poller = scope.spawn(move || drain.round());
        wait_until(|| polled.told().busy_since.is_some() || poller.is_finished());
        let (tell, told) = channel();
        let (guest, place, drain) = (&guest, &place, Arc::clone(&polled.drain));
        scope.spawn(move || {
            call(guest, place, CALLS);
            let mut asking = drain.ask();
            asking.look();
            asking.switch(false);
            asking.describe(Metadata::default());
            tell.send(asking.status()).unwrap();
        });
        let told = told.recv_timeout(NEVER);
        let is_stuck = !poller.is_finished();
        // Only now does the disk take something.
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        let rings = told.expect("who asks waits for who writes");
        assert!(is_stuck);
        assert_eq!((rings[0].written, rings[0].read), (2 * CALLS, CALLS));
    });
    assert!(polled.told().busy_since.is_none());
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(
        (written.tally().calls, written.tally().lost),
        (2 * CALLS, 0)
    );
}

/// Of a guest that has gone, or that nobody could look at any more.
#[test]
fn a_trace_whose_clock_was_not_looked_at_in_the_end_says_so() {
    let known = |measured| Relation {
        offset: 0,
        bound: 0,
        measured,
    };
    // Before its calls, and after them.
    for (measured, is_said) in [(1, true), (NOW, false)] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("trace");
        let clocks = Arc::new(VcpuClocks::new(1, mock::HOST));
        clocks.begin(&[Some(known(measured))], 1 << 62);
        let by = RingClock::Vcpus(Arc::clone(&clocks));
        let (guest, place, mut polled) = reader_by(Some(&output), by);
        call(&guest, &place, 5);
        polled.drain.round();
        assert_eq!(polled.lock().doubts().notes(), [], "it may be yet");
        polled.finish().unwrap().unwrap();
        let mut report = Vec::new();
        print(&output, &Format::Counts.into(), &mut report).unwrap();
        let report = String::from_utf8(report).unwrap();
        let said = "# 1 × the clock of a vCPU could not be looked at after its last records";
        assert_eq!(report.contains(said), is_said, "{report}");
    }
}

#[test]
fn a_counter_that_could_not_be_set_back_is_said_with_what_may_be_wrong_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let clocks = Arc::new(VcpuClocks::new(1, mock::HOST));
    let known = Relation {
        offset: 0,
        bound: 0,
        measured: 1,
    };
    clocks.begin(&[Some(known)], 1 << 62);
    let by = RingClock::Vcpus(Arc::clone(&clocks));
    let (guest, place, mut polled) = reader_by(Some(&output), by);
    for (calls, ahead) in [(5, Some(100)), (7, None), (4, None)] {
        call(&guest, &place, calls);
        polled.drain.round();
        if let Some(ticks) = ahead {
            clocks.cannot_be_set_back(0, ticks);
        }
    }
    let doubts = polled.lock().doubts();
    polled.finish().unwrap().unwrap();
    let mut report = Vec::new();
    print(&output, &Format::Counts.into(), &mut report).unwrap();
    let report = String::from_utf8(report).unwrap();
    let said = doubts.notes();
    assert_eq!(said.len(), 2, "{said:?}");
    for note in said {
        assert!(report.contains(&format!("# {note}\n")), "{note}: {report}");
    }
}

#[test]
fn what_takes_long_is_told_with_how_long() {
    let seconds = Duration::from_secs;
    let mut told = Told::default();
    assert_eq!(told.busy_for(seconds(9)), Duration::ZERO);
    told.busy_since = Some(seconds(4));
    assert_eq!(told.busy_for(seconds(9)), seconds(5));
    assert_eq!(told.busy_for(seconds(3)), Duration::ZERO);
}

#[test]
fn what_is_read_out_of_turn_is_written_and_bounded_as_long_as_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (guest, place, mut polled) = reader(Some(&folder.path().join("trace")));
    call(&guest, &place, CALLS);
    polled.lock().refresh();
    assert_eq!(polled.lock().status()[0].read, CALLS);
    let mut rounds = 0u64;
    let read = || polled.lock().status()[0].read;
    loop {
        call(&guest, &place, CALLS);
        let before = read();
        polled.lock().refresh();
        if read() == before {
            break;
        }
        rounds += 1;
    }
    assert!((1 << 19..1 << 21).contains(&(rounds * CALLS)), "{rounds}");
    let kept = read();
    assert_eq!(polled.drain.round() as u64, CALLS);
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, kept + CALLS);
}

/// Calls that were heard, in their order, and whether that was all.
fn heard(tail: &Tail) -> (Vec<String>, Option<u64>) {
    let calls = tail.take(usize::MAX).into_iter().map(|event| {
        let Happening::Entry { function, .. } = event.what else {
            panic!("{event:?}");
        };
        function
    });
    (calls.collect(), tail.end())
}

/// One more listens, where something is read already.
fn listens_too(polled: &Polled) -> Tail {
    let (tail, listener) = tail(|| ());
    let no_other = |_: Live| -> Result<Output, ()> { panic!("there is an output") };
    polled.lock().listen(listener, no_other).unwrap();
    tail
}

/// One listens, where nothing may be read so far.
fn begins_to_listen(polled: &Polled) -> Tail {
    let (tail, listener) = tail(|| ());
    let output = |live| {
        let image = Arc::new(nop_image(FUNCTIONS));
        let stream = Stream::of_functions(1, WAITING_MAX);
        Ok::<_, ()>(Output::told(&image, stream, live))
    };
    polled.lock().listen(listener, output).unwrap();
    tail
}

/// The names of calls as [`call`] makes them.
fn called(calls: u64) -> Vec<String> {
    let image = nop_image(FUNCTIONS);
    let names: Vec<_> = image.functions.iter().map(|one| &one.display).collect();
    let calls = (0..calls).map(|call| usize::try_from(call % FUNCTIONS).unwrap());
    calls.map(|index| names[index].to_string()).collect()
}
