//! Every way in which stubs and the reader of their ring can meet, one after the other (loom). The reader is the one that
//! there is; the stubs are their accesses to memory, of which a processor keeps the order (x86: what is stored is seen in
//! order, and what has a lock prefix keeps all order).

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::*;

/// How often one thread can be interrupted by another: errors need few, and each more multiplies the ways.
const PREEMPTIONS_MAX: usize = 2;

/// A reader has the records of a batch on its stack.
const STACK_WORDS: usize = 1 << 16;

fn in_every_way(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        let thread = thread::Builder::new().stack_size(STACK_WORDS);
        let body = thread.spawn(move || model()).unwrap();
        body.join().unwrap();
    });
}

/// A ring and its cell.
struct Ring {
    geometry: Geometry,
    cell: [AtomicU64; 3],
    slots: Vec<AtomicU64>,
    can_halt: bool,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Called {
    Off,
    Lost,
    At(Position),
}

impl Ring {
    fn new(slots_log2: u32, can_halt: bool) -> Self {
        let geometry = Geometry::of_slots_log2(slots_log2);
        Self {
            geometry,
            cell: std::array::from_fn(|_| AtomicU64::new(0)),
            slots: (0..geometry.slots()).map(|_| AtomicU64::new(0)).collect(),
            can_halt,
        }
    }

    fn word(&self, word: CellWord) -> &AtomicU64 {
        &self.cell[word as usize]
    }

    /// Stores a word. Of what several threads have stored in one word, and nobody has read, the model keeps no order, which a
    /// processor does: so each reads what was there.
    fn put(&self, word: CellWord, value: u64) {
        self.word(word).swap(value, Ordering::AcqRel);
    }

    /// Loads a word. As an addition of nothing: the model forgets a load of one thread when another thread loads the same, and
    /// then never tries the first one after a change of the other's.
    fn get(&self, word: CellWord) -> u64 {
        self.word(word).fetch_add(0, Ordering::AcqRel)
    }

    fn is_full(&self) -> bool {
        let head = self.get(CellWord::Head);
        head >= self.get(CellWord::Limit)
    }

    /// A stub.
    fn call(&self, function: u32) -> Called {
        if self.is_full() {
            if self.get(CellWord::Limit) == LIMIT_OFF {
                return Called::Off;
            }
            if self.is_full() {
                self.word(CellWord::Lost).fetch_add(1, Ordering::AcqRel);
                return Called::Lost;
            }
        }
        let head = self.word(CellWord::Head);
        let word = head.fetch_add(RECORD_BYTES, Ordering::AcqRel);
        let position = Position::of_word(word, 0).unwrap();
        let lap = position.0 / self.geometry.slots();
        let record = Record::new(0, FunctionId(function), lap);
        let record = record.with(self.geometry.spill(word));
        let slot = usize::try_from(self.geometry.slot(position)).unwrap();
        self.slots[slot].store(record.0, Ordering::Release);
        Called::At(position)
    }

    /// The routine of a stub that ends recording (`stub/halt.rs`).
    fn halt(&self) {
        self.put(CellWord::Limit, LIMIT_HOLD);
    }
}

impl RingMemory for Ring {
    fn load(&self, _ring: u16, word: CellWord) -> u64 {
        self.get(word)
    }

    fn store(&self, _ring: u16, word: CellWord, value: u64) {
        self.put(word, value);
    }

    fn copy(&self, _ring: u16, slot: u64, into: &mut [u64]) {
        let from = usize::try_from(slot).unwrap();
        for (word, slot) in into.iter_mut().zip(&self.slots[from..]) {
            *word = slot.load(Ordering::Acquire);
        }
    }

    fn can_halt(&self) -> bool {
        self.can_halt
    }

    fn exchange(&self, _ring: u16, word: CellWord, old: u64, new: u64) {
        let word = self.word(word);
        let _ = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A reader, and what it has delivered.
struct Reads {
    reader: RingReader,
    heard: Heard,
}

impl Reads {
    fn begin(ring: &Ring, mode: Mode) -> Self {
        let mut reader = RingReader::new(0, ring.geometry, mode, FUNCTIONS_MAX).timed(false);
        reader.initialise(ring);
        reader.switch(ring, true);
        Self {
            reader,
            heard: Heard::default(),
        }
    }

    fn poll(&mut self, ring: &Ring, patience: Patience) {
        let head = self.reader.look(ring);
        let timeline = Timeline::of_one(head, Moment::exact(1));
        self.reader
            .drain(ring, &timeline, patience, &mut self.heard);
    }

    /// Nobody writes any more. Each call was delivered, once, or is in one count.
    fn end(mut self, ring: &Ring, called: &[(u32, Called)]) -> super::super::reader::Losses {
        self.poll(ring, Patience::Over);
        let losses = self.reader.losses();
        let lost = called.iter().filter(|(_, called)| *called == Called::Lost);
        assert_eq!(lost.count() as u64, losses.discarded);
        let reserved: Vec<_> = called
            .iter()
            .filter_map(|(function, called)| match called {
                Called::At(position) => Some((*position, *function)),
                Called::Off | Called::Lost => None,
            })
            .collect();
        assert_eq!(self.reader.reserved(), reserved.len() as u64);
        let delivered: BTreeSet<_> = self
            .heard
            .records
            .iter()
            .map(|record| (record.position, record.function.0))
            .collect();
        assert_eq!(delivered.len(), self.heard.records.len(), "once");
        assert!(delivered.iter().all(|one| reserved.contains(one)));
        let missing = losses.overwritten + losses.abandoned;
        assert_eq!(delivered.len() as u64 + missing, reserved.len() as u64);
        assert_eq!((losses.invalid, losses.corrupt), (0, 0));
        losses
    }
}

/// Two threads that call, and a reader beside them. `before`: so many calls were made and not read.
fn writers_and_a_reader(
    (slots_log2, mode): (u32, Mode),
    before: u32,
    patience: Patience,
    each: u32,
) {
    in_every_way(move || {
        let ring = Arc::new(Ring::new(slots_log2, false));
        let mut reads = Reads::begin(&ring, mode);
        let mut called: Vec<_> = (0..before).map(|call| (call, ring.call(call))).collect();
        let writers: Vec<_> = [1000, 2000]
            .into_iter()
            .map(|first| {
                let ring = Arc::clone(&ring);
                let calls = move || {
                    (first..first + each)
                        .map(|call| (call, ring.call(call)))
                        .collect()
                };
                thread::spawn(calls)
            })
            .collect();
        reads.poll(&ring, patience);
        for writer in writers {
            let theirs: Vec<_> = writer.join().unwrap();
            called.extend(theirs);
        }
        let losses = reads.end(&ring, &called);
        assert!(
            mode == Mode::Overwrite || losses.overwritten == 0,
            "{losses:?}"
        );
    });
}

#[test]
fn each_call_is_delivered_or_counted_where_the_oldest_give_way() {
    for patience in [Patience::Ticks(0), Patience::Ticks(1000)] {
        writers_and_a_reader((2, Mode::Overwrite), 3, patience, 2);
    }
}

#[test]
fn each_call_is_delivered_or_counted_where_the_newest_give_way() {
    // Of sixteen one is left for who has compared before the other reserved.
    writers_and_a_reader((4, Mode::Discard), 14, Patience::Ticks(1000), 2);
}

#[test]
fn what_a_stub_has_ended_no_reader_lets_go_on() {
    in_every_way(|| {
        let ring = Arc::new(Ring::new(2, true));
        let mut reads = Reads::begin(&ring, Mode::Discard);
        let theirs = Arc::clone(&ring);
        let stub = thread::spawn(move || {
            let called = theirs.call(7);
            theirs.halt();
            (7, called)
        });
        reads.poll(&ring, Patience::Ticks(0));
        let called = stub.join().unwrap();
        let limit = ring.load(0, CellWord::Limit);
        assert!(limit <= LIMIT_HOLD, "{limit:#x}");
        let losses = reads.end(&ring, &[called]);
        assert_eq!(losses.discarded, 0);
    });
}
