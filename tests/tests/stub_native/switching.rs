//! A patch site that is switched while threads execute it, by one exchange of its word: between the nop, the jump to its
//! function's stub, and the jump to the stub of another function. Each call takes one of the three ways, and no other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use image::Image;
use insn::jump::jump;
use insn::nop::NOP5;
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::site::SiteBytes;
use tests::is_long;
use tracer::ring::reader::{Mode, Patience, RingReader};
use tracer::stub::recorder::Clock;
use tracer::target::{AtomicTarget, MemoryError, PhysicalMemory, TargetMemory};
use tracer::text::atomic::{Shared, apply};
use tracer::text::poke::Poke;

use crate::ground::{FUNCTIONS, Ground};
use crate::rings::{Heard, looked};
use crate::setup::Place;

/// As many as are to be made, and for how long at most if nobody has said that it may take longer.
const SWITCHES: u64 = 100_000_000;
const PATIENCE: Duration = Duration::from_secs(10);
/// Threads that execute the site, each on a vCPU of its own.
const CALLERS: u16 = 2;
/// Switches between two looks at the rings.
const BATCH: u64 = 3000;

/// The function whose site is switched, and the one that is called in its place.
const SWITCHED: u32 = 0;
const OTHER: u32 = 1;

/// The text of this process, by its own addresses.
struct Text<'g>(&'g Ground);

impl Text<'_> {
    fn read(&self, at: u64, into: &mut [u8]) {
        let word = self.0.word(at - at % 8).load(Ordering::SeqCst);
        let from = (at % 8) as usize;
        into.copy_from_slice(&word.to_le_bytes()[from..from + into.len()]);
    }
}

impl PhysicalMemory for Text<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.read(at.0, into);
        Ok(())
    }
}

impl TargetMemory for Text<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.read(at.0, into);
        Ok(())
    }
}

impl AtomicTarget for Text<'_> {
    fn reaches(&self, _: Gva) -> bool {
        true
    }

    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError> {
        let word = self.0.word(at.0);
        let swapped = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.unwrap_or_else(|found| found))
    }
}

/// The three ways, in their order.
fn ways(ground: &Ground) -> [SiteBytes; 3] {
    let site = Gva(ground.function(SWITCHED));
    let to = |function: u32| {
        let (stub, _) = &ground.stubs[function as usize];
        SiteBytes::new(jump(site, Gva(*stub)).unwrap())
    };
    [to(SWITCHED), SiteBytes::new(NOP5), to(OTHER)]
}

/// Switches until that was done so often, or for so long; reads the rings meanwhile. Says how often it was done.
fn switch(ground: &Ground, image: &Image, read: &mut dyn FnMut()) -> u64 {
    let (ways, mut text) = (ways(ground), Text(ground));
    let begin = Instant::now();
    let mut switches = 0;
    while switches < SWITCHES && (is_long() || begin.elapsed() < PATIENCE) {
        // A whole number of rounds: the first way is the last.
        for number in 0..BATCH as usize {
            let poke = Poke {
                function: FunctionId(0),
                at: Gva(ground.function(SWITCHED)),
                expected: ways[number % ways.len()],
                new: ways[(number + 1) % ways.len()],
            };
            apply(&mut text, image, &[poke], |_| Shared::default(), |_| None).unwrap();
        }
        switches += BATCH;
        read();
    }
    switches
}

#[test]
fn a_site_that_is_switched_under_execution_takes_each_call_one_way() {
    let ground = Ground::new(Place::GsBelow, 1, 4096, Clock::Tsc);
    let (image, memory) = (Image::default(), ground.session(0));
    let geometry = ground.recorders[0].geometry;
    let mut readers: Vec<(RingReader, Heard)> = (0..CALLERS)
        .map(|ring| {
            let mut reader = RingReader::new(ring, geometry, Mode::Discard, FUNCTIONS);
            reader.initialise(&memory);
            reader.switch(&memory, true);
            (reader, Heard::default())
        })
        .collect();
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut heard = [0; FUNCTIONS as usize];
    let mut read = |patience| {
        for (reader, new) in &mut readers {
            reader.look(&memory);
            reader.drain(&memory, &looked(reader), patience, new);
            for record in new.records.drain(..) {
                heard[record.function.index()] += 1;
            }
        }
    };
    let switches = std::thread::scope(|scope| {
        for vcpu in 0..CALLERS {
            let (ground, is_over, calls) = (&ground, &is_over, &calls);
            scope.spawn(move || {
                ground.enter_vcpu(vcpu);
                let mut own = 0;
                while !is_over.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| ground.call(SWITCHED));
                    own += 1000;
                }
                calls.fetch_add(own, Ordering::SeqCst);
            });
        }
        let switches = switch(&ground, &image, &mut || read(Patience::Ticks(100_000)));
        is_over.store(true, Ordering::SeqCst);
        switches
    });
    read(Patience::Over);
    let calls = calls.load(Ordering::SeqCst);
    let [own, other] = [SWITCHED, OTHER].map(|function| ground.body_calls(function));
    println!("{switches} switches under {calls} calls, {other} of them of the other function");
    assert!(own > 0 && other > 0);
    assert_eq!(own + other, calls);
    let of_readers = |of: fn(&RingReader) -> u64| readers.iter().map(|(one, _)| of(one)).sum();
    let recorded: u64 = of_readers(|reader| reader.delivered() + reader.losses().records());
    let wrong: u64 = of_readers(|reader| reader.losses().invalid + reader.losses().corrupt);
    assert_eq!(wrong, 0);
    // Whoever went to the other function was recorded; of the rest who came by the jump.
    assert!((other + 1..calls).contains(&recorded), "{recorded} records");
    assert_eq!(heard[2..], [0; FUNCTIONS as usize - 2]);
    assert!(heard[0] > 0 && heard[1] > 0 && heard[1] <= other);
}
