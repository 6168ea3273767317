//! Looks at the heads of rings that do not wait for the reader of these rings.
//!
//! A reader looks before it reads; but reading a large ring, and writing what was read, can take longer than the
//! time in a record takes to go round (26 s at 2.6 GHz). So a thread of its own, which does nothing else, looks a few
//! times a second, and the reader takes its looks over.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tracer::ring::geometry::{Geometry, Position};
use tracer::ring::reader::{CellWord, RingMemory};
use tracer::ring::timeline::Timeline;

use super::rings::SharedRings;
use crate::clock::{Reading, VcpuClocks, host_tsc};

/// Between two looks of the thread.
const PERIOD: Duration = Duration::from_millis(250);

/// What the times in the records of some rings are taken from.
#[derive(Debug, Clone)]
pub enum RingClock {
    /// Nothing.
    None,
    /// The host's counter, through the clock page.
    Host,
    /// The counter of the vCPU with the ring's number.
    Vcpus(Arc<VcpuClocks>),
    /// That of any vCPU.
    AnyVcpu(Arc<VcpuClocks>),
}

impl RingClock {
    /// The same where `rings` rings are there for all vCPUs.
    #[must_use]
    pub fn in_rings(&self, rings: u16) -> Self {
        match self {
            Self::Vcpus(clocks) if usize::from(rings) < clocks.count() => {
                Self::AnyVcpu(Arc::clone(clocks))
            }
            other => other.clone(),
        }
    }

    /// The clock of a ring, now.
    #[must_use]
    pub fn read(&self, ring: u16) -> Reading {
        match self {
            Self::None | Self::Host => Reading::exact(host_tsc()),
            Self::Vcpus(clocks) => clocks.of(ring),
            Self::AnyVcpu(clocks) => clocks.of_any(),
        }
    }

    /// Whether there are times.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Some rings, and the looks at them that their reader has not taken over yet.
#[derive(Debug)]
pub struct Looks {
    rings: SharedRings,
    geometry: Geometry,
    clock: RingClock,
    fresh: Vec<Mutex<Timeline>>,
}

impl Looks {
    /// Of rings into which nothing has been written yet.
    #[must_use]
    pub fn new(rings: SharedRings, geometry: Geometry, clock: &RingClock) -> Self {
        let clock = clock.in_rings(rings.count());
        let begun = |ring| Mutex::new(Timeline::begun(clock.read(ring).moment));
        Self {
            fresh: (0..rings.count()).map(begun).collect(),
            rings,
            geometry,
            clock,
        }
    }

    /// What times the rings.
    #[must_use]
    pub const fn clock(&self) -> &RingClock {
        &self.clock
    }

    /// Looks at every ring.
    pub fn make(&self) {
        for (ring, fresh) in (0..).zip(&self.fresh) {
            let mut fresh = fresh.lock();
            let word = self.rings.load(ring, CellWord::Head);
            // A head that is none is for the reader to count.
            if let Some(head) = Position::of_word(word, ring) {
                let moment = self.clock.read(ring).moment;
                fresh.look(head, moment, oldest(head, self.geometry));
            }
        }
    }

    /// Adds the looks of one ring to what its reader knows.
    pub fn take(&self, ring: u16, timeline: &mut Timeline) {
        if let Some(fresh) = self.fresh.get(usize::from(ring)) {
            let fresh = fresh.lock().take();
            timeline.add(&fresh);
        }
    }
}

/// The oldest record that a ring can still hold.
pub(super) fn oldest(head: Position, geometry: Geometry) -> Position {
    Position(head.0.saturating_sub(geometry.slots()))
}

/// All rings of a session.
pub type AllLooks = Arc<Mutex<Vec<Arc<Looks>>>>;

/// The thread that looks.
#[derive(Debug)]
pub struct LookThread {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl LookThread {
    /// Starts looking.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(all: AllLooks) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("look".to_owned())
            .spawn(move || run(&all, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for LookThread {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!(
                "the thread that looks at rings has failed: late times are counted as doubtful"
            );
        }
    }
}

fn run(all: &Mutex<Vec<Arc<Looks>>>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let looks = all.lock().clone();
        looks.iter().for_each(|looks| looks.make());
    }
}
