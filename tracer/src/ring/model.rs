//! A simulated guest: writers that execute a stub instruction by instruction, and can be preempted
//! and migrated between any two of them, delayed for laps, or never come back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use terms::function::FunctionId;

use super::geometry::{Geometry, LIMIT_OFF, Position, RING_SHIFT};
use super::reader::{CellWord, Delivered, RingMemory, Sink};
use crate::record::{FUNCTIONS_MAX, RECORD_BYTES, Record};

/// How many threads can be preempted inside a stub.
pub(super) const WRITERS: usize = 6;

/// One thing that happens in the guest.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// A thread that nothing interrupts calls traced functions.
    Burst { vcpu: usize, calls: u32 },
    /// A writer executes its next instructions.
    Step { writer: usize, instructions: u8 },
    /// The scheduler moves a writer.
    Migrate { writer: usize, vcpu: usize },
}

/// The instruction that a writer executes next, with what it holds in registers.
#[derive(Debug, Clone, Copy, Default)]
enum Next {
    #[default]
    LoadHead,
    CompareLimit {
        head: u64,
    },
    Full,
    LoadAgain,
    CompareAgain {
        head: u64,
    },
    CountLost,
    ReadTime,
    Reserve {
        time: u64,
    },
    Store {
        time: u64,
        word: u64,
        call: usize,
    },
}

/// A call that has reserved a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub ring: u16,
    pub position: Position,
    pub time: u64,
    pub is_stored: bool,
}

#[derive(Debug, Default)]
struct Memory {
    cells: Vec<[u64; 3]>,
    slots: Vec<Vec<u64>>,
    writers: [(usize, Next); WRITERS],
    calls: Vec<Call>,
    lost: u64,
}

/// The guest. Whatever the host reads, the guest may continue before it.
#[derive(Debug)]
pub(super) struct Guest {
    geometry: Geometry,
    memory: RefCell<Memory>,
    clock: Cell<u64>,
    /// What happens between the host's accesses, one at a time.
    pub meanwhile: RefCell<VecDeque<Op>>,
}

impl Guest {
    pub fn new(rings: usize, geometry: Geometry) -> Self {
        let slots = usize::try_from(geometry.slots()).unwrap();
        let memory = Memory {
            cells: vec![[0; 3]; rings],
            slots: vec![vec![0; slots]; rings],
            ..Memory::default()
        };
        Self {
            geometry,
            memory: RefCell::new(memory),
            // Close to where the low bits go round.
            clock: Cell::new((1 << 36) - 5000),
            meanwhile: RefCell::default(),
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Nothing happens for so long.
    pub fn wait(&self, ticks: u64) {
        self.clock.set(self.clock.get() + ticks);
    }

    pub fn run(&self, op: Op) {
        match op {
            Op::Burst { vcpu, calls } => {
                for _ in 0..calls {
                    let mut next = Next::LoadHead;
                    loop {
                        next = self.execute(vcpu, next);
                        if matches!(next, Next::LoadHead) {
                            break;
                        }
                    }
                }
            }
            Op::Step {
                writer,
                instructions,
            } => {
                for _ in 0..instructions {
                    let (vcpu, next) = self.memory.borrow().writers[writer];
                    let next = self.execute(vcpu, next);
                    self.memory.borrow_mut().writers[writer].1 = next;
                }
            }
            Op::Migrate { writer, vcpu } => self.memory.borrow_mut().writers[writer].0 = vcpu,
        }
    }

    /// One instruction of a stub on `vcpu`.
    fn execute(&self, vcpu: usize, next: Next) -> Next {
        let now = self.now();
        let mut memory = self.memory.borrow_mut();
        let vcpu = vcpu % memory.cells.len();
        let [head, limit, lost] = &mut memory.cells[vcpu];
        match next {
            Next::LoadHead => Next::CompareLimit { head: *head },
            Next::CompareLimit { head } if head >= *limit => Next::Full,
            Next::CompareLimit { .. } => Next::ReadTime,
            Next::Full if *limit == LIMIT_OFF => Next::LoadHead,
            Next::Full => Next::LoadAgain,
            Next::LoadAgain => Next::CompareAgain { head: *head },
            Next::CompareAgain { head } if head < *limit => Next::ReadTime,
            Next::CompareAgain { .. } => Next::CountLost,
            Next::CountLost => {
                *lost += 1;
                memory.lost += 1;
                Next::LoadHead
            }
            Next::ReadTime => Next::Reserve { time: now },
            Next::Reserve { time } => {
                let word = *head;
                *head += RECORD_BYTES;
                let ring = u16::try_from(word >> RING_SHIFT).unwrap();
                memory.calls.push(Call {
                    ring,
                    position: Position::of_word(word, ring).unwrap(),
                    time,
                    is_stored: false,
                });
                let call = memory.calls.len() - 1;
                Next::Store { time, word, call }
            }
            Next::Store { time, word, call } => {
                let Call { ring, position, .. } = memory.calls[call];
                assert_eq!(word, position.word(ring));
                let function = FunctionId(u32::try_from(call).unwrap());
                assert!(
                    function.0 < FUNCTIONS_MAX,
                    "every call has its own function"
                );
                let record = Record::new(time, function, position.0 / self.geometry.slots());
                let record = record.with(self.geometry.spill(word));
                let slot = usize::try_from(self.geometry.slot(position)).unwrap();
                memory.slots[usize::from(ring)][slot] = record.0;
                memory.calls[call].is_stored = true;
                Next::LoadHead
            }
        }
    }

    fn go_on(&self) {
        let op = self.meanwhile.borrow_mut().pop_front();
        if let Some(op) = op {
            self.run(op);
        }
    }

    /// The calls that have reserved a slot, and how many were counted as lost.
    pub fn calls(&self) -> (Vec<Call>, u64) {
        let memory = self.memory.borrow();
        (memory.calls.clone(), memory.lost)
    }

    /// Whether the slot of a call still holds its record.
    pub fn is_kept(&self, number: usize, call: &Call) -> bool {
        let memory = self.memory.borrow();
        let slot = usize::try_from(self.geometry.slot(call.position)).unwrap();
        let record = Record(memory.slots[usize::from(call.ring)][slot]);
        let record = record.without(self.geometry.spill(call.position.word(call.ring)));
        call.is_stored && record.function().index() == number
    }
}

impl RingMemory for Guest {
    fn load(&self, ring: u16, word: CellWord) -> u64 {
        self.go_on();
        self.memory.borrow().cells[usize::from(ring)][word as usize]
    }

    fn store(&self, ring: u16, word: CellWord, value: u64) {
        self.go_on();
        self.memory.borrow_mut().cells[usize::from(ring)][word as usize] = value;
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        assert!(slot + into.len() as u64 <= self.geometry.slots());
        for (word, number) in into.iter_mut().zip(slot..) {
            if number % 64 == 0 {
                self.go_on();
            }
            let number = usize::try_from(number).unwrap();
            *word = self.memory.borrow().slots[usize::from(ring)][number];
        }
    }
}

/// Everything that a reader says.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub records: Vec<Delivered>,
    pub lost: u64,
    /// Which of the records are said to come late.
    pub late: Vec<usize>,
}

impl Sink for Heard {
    fn record(&mut self, record: Delivered) {
        self.records.push(record);
    }

    fn lost(&mut self, _ticks: u64, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    fn late(&mut self) {
        self.late.push(self.records.len());
    }
}
