//! A thread that is moved to another vCPU between any two instructions of a stub: a signal handler
//! changes its GS base.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracer::ring::reader::{Mode, Patience, RingReader};
use tracer::stub::recorder::Clock;

use crate::ground::{CELL_DISTANCE, FUNCTIONS, Ground, Place, RINGS_MAX};
use crate::rings::{Heard, now};

/// Enough that every place in the stub is hit.
const MOVES_WANTED: u64 = 1000;

/// The GS base of vCPU 0, for the handler.
static FIRST: AtomicU64 = AtomicU64::new(0);
static MOVES: AtomicU64 = AtomicU64::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

extern "C" fn migrate(_signal: libc::c_int) {
    let to = MOVES.fetch_add(1, Ordering::SeqCst) % u64::from(RINGS_MAX);
    let base = FIRST.load(Ordering::SeqCst) + CELL_DISTANCE * to;
    // SAFETY: a bare system call may be made in a signal handler; nothing else uses GS.
    unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001_u64, base) };
}

fn migrating(place: Place, mode: Mode) {
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let ground = Ground::new(place, 1, 4096, Clock::Tsc);
    let memory = ground.session(0);
    let geometry = ground.recorders[0].geometry;
    MOVES.store(0, Ordering::SeqCst);
    FIRST.store(ground.gs_base(0), Ordering::SeqCst);
    // SAFETY: the handler is safe at any instruction, see there.
    let old = unsafe { libc::signal(libc::SIGUSR1, migrate as *const () as libc::sighandler_t) };
    assert_ne!(old, libc::SIG_ERR);
    let mut readers: Vec<RingReader> = (0..RINGS_MAX)
        .map(|ring| {
            let mut reader = RingReader::new(ring, geometry, mode, FUNCTIONS);
            reader.initialise(&memory);
            reader.switch(&memory, true);
            reader
        })
        .collect();
    let mut heard = Heard::default();
    let is_over = AtomicBool::new(false);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (ground, is_over) = (&ground, &is_over);
        scope.spawn(move || {
            // SAFETY: asks for nothing but this thread's name.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            ground.enter_vcpu(0);
            while MOVES.load(Ordering::SeqCst) < MOVES_WANTED {
                (0..FUNCTIONS).for_each(|number| ground.call(number));
            }
            is_over.store(true, Ordering::SeqCst);
            // Stays until the last signal is sent.
            while is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        let thread = told.recv().unwrap();
        while !is_over.load(Ordering::SeqCst) {
            // SAFETY: the thread waits for `is_over` to be taken back, so it exists.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            for reader in &mut readers {
                reader.look(&memory);
                reader.drain(&memory, now(), Patience::Ticks(100_000), &mut heard);
            }
        }
        is_over.store(false, Ordering::SeqCst);
    });
    for reader in &mut readers {
        reader.look(&memory);
        reader.drain(&memory, now(), Patience::Over, &mut heard);
    }
    let accounted: u64 = readers
        .iter()
        .map(|reader| {
            let losses = reader.losses();
            assert_eq!(
                (losses.invalid, losses.corrupt, losses.abandoned),
                (0, 0, 0)
            );
            assert!(reader.reserved() > 0, "never moved to every vCPU");
            reader.delivered() + losses.records()
        })
        .sum();
    let calls: u64 = (0..FUNCTIONS).map(|number| ground.body_calls(number)).sum();
    assert_eq!(accounted, calls, "{place:?} {mode:?}");
}

#[test]
fn a_thread_that_migrates_inside_stubs_is_counted_exactly() {
    for place in [Place::GsBelow, Place::GsFar] {
        for mode in [Mode::Overwrite, Mode::Discard] {
            migrating(place, mode);
        }
    }
}
