//! Several threads at once: rings of their own, and one shared ring.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use tracer::ring::reader::{Mode, Patience, RingReader};
use tracer::stub::recorder::Clock;

use crate::ground::{FUNCTIONS, Ground};
use crate::rings::{Heard, looked};
use crate::setup::Place;

const CALLS: u64 = 200_000;

/// Hammers all functions in turn on `threads` threads while a reader reads; every call is accounted
/// for.
fn hammer(place: Place, threads: u16, mode: Mode, ring_bytes: u64) {
    let ground = Ground::new(place, 1, ring_bytes, Clock::Tsc);
    let memory = ground.session(0);
    let geometry = ground.recorders[0].geometry;
    let rings = if place == Place::Shared { 1 } else { threads };
    let mut readers: Vec<(RingReader, Heard)> = (0..rings)
        .map(|ring| {
            let mut reader = RingReader::new(ring, geometry, mode, FUNCTIONS);
            reader.initialise(&memory);
            reader.switch(&memory, true);
            (reader, Heard::default())
        })
        .collect();
    let start = Barrier::new(usize::from(threads) + 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (ground, start) = (&ground, &start);
                scope.spawn(move || {
                    ground.enter_vcpu(thread);
                    start.wait();
                    (0..CALLS).for_each(|call| ground.call((call % u64::from(FUNCTIONS)) as u32));
                })
            })
            .collect();
        let is_over = &is_over;
        scope.spawn(move || {
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            is_over.store(true, Ordering::SeqCst);
        });
        start.wait();
        loop {
            let last = is_over.load(Ordering::SeqCst);
            let patience = if last {
                Patience::Over
            } else {
                Patience::Ticks(100_000)
            };
            for (reader, heard) in &mut readers {
                reader.look(&memory);
                reader.drain(&memory, &looked(reader), patience, heard);
            }
            if last {
                break;
            }
        }
    });
    let calls: u64 = (0..FUNCTIONS).map(|number| ground.body_calls(number)).sum();
    assert_eq!(calls, CALLS * u64::from(threads));
    let accounted: u64 = readers
        .iter()
        .map(|(reader, heard)| {
            let losses = reader.losses();
            assert_eq!(heard.records.len() as u64, reader.delivered());
            assert_eq!(heard.lost, losses.records());
            assert_eq!((losses.invalid, losses.corrupt), (0, 0));
            if place != Place::Shared {
                assert_eq!(reader.delivered() + losses.records(), CALLS);
            }
            reader.delivered() + losses.records()
        })
        .sum();
    assert_eq!(accounted, calls);
    // Without a loss, each function was called equally often.
    if readers
        .iter()
        .all(|(reader, _)| reader.losses().records() == 0)
    {
        let delivered = readers.iter().flat_map(|(_, heard)| &heard.records);
        let mut counts = [0; FUNCTIONS as usize];
        delivered.for_each(|record| counts[record.function.index()] += 1);
        let each = calls / u64::from(FUNCTIONS);
        assert_eq!(counts, [each; FUNCTIONS as usize]);
    }
}

#[test]
fn threads_with_rings_of_their_own_are_counted_exactly() {
    for place in [
        Place::GsBelow,
        Place::GsAbove,
        Place::GsFar,
        Place::GsElsewhere,
    ] {
        for mode in [Mode::Overwrite, Mode::Discard] {
            hammer(place, 2, mode, 4096);
            hammer(place, 2, mode, 1 << 19);
        }
    }
}

#[test]
fn a_shared_ring_counts_four_threads_exactly() {
    for mode in [Mode::Overwrite, Mode::Discard] {
        hammer(Place::Shared, 4, mode, 4096);
        hammer(Place::Shared, 4, mode, 1 << 21);
    }
}
