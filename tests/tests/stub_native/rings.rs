//! What stubs write: heads, lap marks, functions, times, losses; read back by the ring reader.

use std::arch::x86_64::_rdtsc;
use std::sync::atomic::Ordering;

use terms::function::FunctionId;
use tracer::clock::layout;
use tracer::record::{MARK_MASK, Record};
use tracer::ring::moment::Moment;
use tracer::ring::reader::{CellWord, Delivered, Mode, Patience, RingMemory, RingReader, Sink};
use tracer::ring::timeline::Timeline;
use tracer::stub::recorder::Clock;

use crate::ground::{FUNCTIONS, Ground, PAGE, RINGS_MAX};
use crate::random::Random;
use crate::setup::{PLACES, Place};

/// Everything that a reader says.
#[derive(Debug, Default)]
pub struct Heard {
    pub records: Vec<Delivered>,
    pub lost: u64,
}

impl Sink for Heard {
    fn record(&mut self, record: Delivered) {
        self.records.push(record);
    }

    fn lost(&mut self, _ticks: u64, records: u64) {
        self.lost += records;
    }
}

pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and Linux allows it.
    unsafe { _rdtsc() }
}

/// What a reader that has just looked knows of the time.
pub fn looked(reader: &RingReader) -> Timeline {
    Timeline::of_one(reader.head(), Moment::exact(now()))
}

fn rings(place: Place) -> u16 {
    if place == Place::Shared { 1 } else { RINGS_MAX }
}

#[test]
fn records_come_back_in_order_over_many_laps() {
    let mut random = Random::new("records_come_back_in_order_over_many_laps");
    for place in PLACES {
        for ring in 0..rings(place) {
            let ground = Ground::new(place, 2, 4096, Clock::Tsc);
            ground.enter_vcpu(ring);
            let geometry = ground.recorders[0].geometry;
            let memory = [ground.session(0), ground.session(1)];
            let reader = || RingReader::new(ring, geometry, Mode::Overwrite, FUNCTIONS);
            let mut readers = [reader(), reader()];
            for (reader, memory) in readers.iter_mut().zip(&memory) {
                reader.initialise(memory);
                reader.switch(memory, true);
            }
            let mut called = Vec::new();
            let mut heard = [Heard::default(), Heard::default()];
            let start = now();
            while called.len() < 2000 {
                for _ in 0..=random.below(512).min(511) {
                    let number = random.below(FUNCTIONS);
                    ground.call(number);
                    called.push(number);
                }
                for ((reader, memory), heard) in readers.iter_mut().zip(&memory).zip(&mut heard) {
                    let head = reader.look(memory);
                    assert_eq!(head, geometry.first().after(called.len() as u64));
                    assert_eq!(memory.load(ring, CellWord::Head), head.word(ring));
                    reader.drain(memory, &looked(reader), Patience::Ticks(u64::MAX), heard);
                }
            }
            for (heard, memory) in heard.iter().zip(&memory) {
                assert!(
                    heard
                        .records
                        .iter()
                        .map(|r| r.function.0)
                        .eq(called.iter().copied()),
                    "{place:?}"
                );
                assert_eq!(heard.lost, 0);
                let times: Vec<u64> = heard.records.iter().map(|record| record.ticks).collect();
                assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
                assert!(times[0] >= start && times[times.len() - 1] <= now());
                check_slots(memory, ring, &called);
            }
        }
    }
}

/// The bare words of the last lap.
fn check_slots(memory: &impl RingMemory, ring: u16, called: &[u32]) {
    let mut slots = [0; 512];
    memory.copy(ring, 0, &mut slots);
    for (number, back) in called.iter().rev().zip(1..=512) {
        let position = 512 + called.len() - back;
        let record = Record(slots[position % 512]);
        assert_eq!(record.function(), FunctionId(*number));
        assert_eq!(record.mark(), (position / 512) as u64 & MARK_MASK);
    }
}

/// The first session's rings, switched on.
fn recording(ground: &Ground) -> impl RingMemory {
    let memory = ground.session(0);
    let geometry = ground.recorders[0].geometry;
    let mut reader = RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS);
    reader.initialise(&memory);
    reader.switch(&memory, true);
    memory
}

#[test]
fn without_a_clock_records_carry_no_time() {
    for place in PLACES {
        let ground = Ground::new(place, 1, 4096, Clock::None);
        ground.enter_vcpu(0);
        let memory = recording(&ground);
        (0..FUNCTIONS).for_each(|number| ground.call(number));
        let mut slots = [0; FUNCTIONS as usize];
        memory.copy(0, 0, &mut slots);
        let expected: Vec<u64> = (0..FUNCTIONS)
            .map(|number| Record::new(0, FunctionId(number), 1).0)
            .collect();
        assert_eq!(slots[..], expected[..]);
    }
}

#[test]
fn with_a_clock_page_records_carry_its_time() {
    for place in PLACES {
        let ground = Ground::new(place, 1, 4096, PAGE);
        ground.enter_vcpu(0);
        let memory = recording(&ground);
        let time = |number: u32| u64::MAX / 3 - u64::from(number) * 0x1_0000_0001;
        for number in 0..FUNCTIONS {
            let word = layout::shifted(time(number));
            ground.clock().store(word, Ordering::SeqCst);
            ground.call(number);
        }
        let mut slots = [0; FUNCTIONS as usize];
        memory.copy(0, 0, &mut slots);
        let expected: Vec<u64> = (0..FUNCTIONS)
            .map(|number| Record::new(time(number), FunctionId(number), 1).0)
            .collect();
        assert_eq!(slots[..], expected[..]);
    }
}

#[test]
fn a_full_ring_loses_exactly_what_it_says() {
    let mut random = Random::new("a_full_ring_loses_exactly_what_it_says");
    for place in PLACES {
        for mode in [Mode::Discard, Mode::Overwrite] {
            let ring = rings(place) - 1;
            let ground = Ground::new(place, 1, 4096, Clock::Tsc);
            ground.enter_vcpu(ring);
            let memory = ground.session(0);
            let geometry = ground.recorders[0].geometry;
            let mut reader = RingReader::new(ring, geometry, mode, FUNCTIONS);
            reader.initialise(&memory);
            let mut heard = Heard::default();
            let mut calls = 0;
            for round in 0..40 {
                // Switched off, nothing is counted.
                reader.switch(&memory, round % 5 != 4);
                let batch = random.below(2000);
                (0..batch).for_each(|_| ground.call(random.below(FUNCTIONS)));
                if reader.is_on() {
                    calls += u64::from(batch);
                }
                reader.look(&memory);
                reader.drain(&memory, &looked(&reader), Patience::Ticks(0), &mut heard);
            }
            reader.look(&memory);
            reader.drain(&memory, &looked(&reader), Patience::Over, &mut heard);
            let losses = reader.losses();
            assert_eq!(reader.delivered() + losses.records(), calls, "{losses:?}");
            assert_eq!(heard.lost, losses.records());
            let other = match mode {
                Mode::Discard | Mode::Lossless => losses.overwritten,
                Mode::Overwrite => losses.discarded,
            };
            assert_eq!((other, losses.abandoned, losses.invalid), (0, 0, 0));
            assert!(losses.records() > 0, "the test loses nothing");
        }
    }
}
