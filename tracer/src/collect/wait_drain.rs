//! The waits of vCPUs for a reader: told in its trace, begun and ended with it. A reader that can never make room again
//! gives up: then full rings discard, as if that had been asked for, or the run ends.

use std::sync::Arc;

use trace::event::RecordKind;
use trace::stream::Origin;

use super::backlog::Batch;
use crate::clock::RunClock;
use crate::ring::reader::Progress;
use crate::ring::turnstile::Rings;
use crate::ring::wanted::Wanted;
use crate::waits::WaitingRoom;
use status::WaitStatus;
use status::WaitTime;
use terms::choice::choices;

choices! {
    /// What happens when what vCPUs wait for can never come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum OnFull {
        /// From then on full rings discard new records, and count them.
        #[default]
        Discard = "discard",
        /// The run ends.
        End = "end",
    }
}

/// How long vCPUs may come back to a ring that nothing is written to. The slot of a thread that does not come to write
/// it has been given up by then; so the guest has changed what decides whether there is room.
const STANDING_NS: u64 = 20_000_000_000;

/// A ring that has no news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QuietRing {
    at: Progress,
    wanted: Wanted,
}

/// The waiting room of one session, as its reader sees it.
#[derive(Debug)]
pub(super) struct WaitDrain {
    room: Arc<WaitingRoom>,
    on_full: OnFull,
    clock: RunClock,
    /// Records have the guest's time.
    is_timed: bool,
    is_attended: bool,
    read: u64,
    /// Of calls, then of events.
    standing: [Vec<Option<QuietRing>>; 2],
    given_up: Option<String>,
}

impl WaitDrain {
    /// Nobody has waited there yet.
    pub fn new(room: Arc<WaitingRoom>, on_full: OnFull, clock: RunClock, is_timed: bool) -> Self {
        Self {
            room,
            on_full,
            clock,
            is_timed,
            is_attended: true,
            read: 0,
            standing: [Vec::new(), Vec::new()],
            given_up: None,
        }
    }

    /// Where vCPUs wait.
    pub const fn room(&self) -> &Arc<WaitingRoom> {
        &self.room
    }

    /// Waits that have ended since the last time.
    pub fn read(&mut self, mut to: impl FnMut(Batch)) {
        let (waits, seen) = self.room.since(self.read);
        self.read = seen;
        for wait in waits {
            let length_ns = self.clock.duration_ns(wait.end.saturating_sub(wait.begin));
            let vcpu = wait.vcpu;
            let at = if self.is_timed { wait.at } else { wait.end };
            to(Batch::of(
                Origin::Clock,
                self.clock.nanoseconds(at),
                RecordKind::Wait { vcpu, length_ns },
            ));
        }
    }

    /// The reader has been at a ring and come so far, at `now`. When vCPUs have come back to it for so long without
    /// writing anything that nothing will end that, it gives up. Whether that is news.
    pub fn has_read(&mut self, rings: Rings, ring: u16, at: Progress, now: u64) -> bool {
        self.is_standing(rings, ring, at, now)
            && self.give_up(&format!(
                "vCPUs find ring {ring} full although it was read: the guest has changed it"
            ))
    }

    fn is_standing(&mut self, rings: Rings, ring: u16, at: Progress, now: u64) -> bool {
        let entered = self.room.entered(rings, ring);
        let [calls, events] = &mut self.standing;
        let of = match rings {
            Rings::Calls => calls,
            Rings::Events => events,
        };
        let index = usize::from(ring);
        let before = of.get(index).copied().flatten();
        if before.is_none_or(|before| before.at != at) {
            self.room.has_news(rings, ring);
        }
        self.room.read(rings, ring);
        if of.len() <= index {
            of.resize(index + 1, None);
        }
        let Some(place) = of.get_mut(index) else {
            return false;
        };
        let before = place.filter(|before| before.at == at);
        let standing = place.insert(before.unwrap_or(QuietRing {
            at,
            wanted: Wanted::since(now, entered),
        }));
        let patience = STANDING_NS / 1_000_000 * u64::from(self.clock.khz());
        standing.wanted.is_in_vain(now, entered, patience)
    }

    /// It was not the guest that kept rings full until now: the host held them, or lets them be written to anew.
    pub fn has_moved_limits(&mut self) {
        self.standing.iter_mut().for_each(Vec::clear);
        self.room.read_all();
    }

    /// Nobody is to be waited for any more, for this reason. Whether that is news.
    pub fn give_up(&mut self, why: &str) -> bool {
        if self.given_up.is_some() {
            return false;
        }
        match self.on_full {
            OnFull::Discard => {
                log::error!("no vCPU waits for the reader any more, full rings discard: {why}");
            }
            OnFull::End => self.room.end_run(why),
        }
        self.given_up = Some(why.to_owned());
        true
    }

    /// Who waits is to be waited for, or not any more. Whether that is news.
    pub fn attend(&mut self, is_attended: bool) -> bool {
        std::mem::replace(&mut self.is_attended, is_attended) != is_attended
    }

    /// Whether who waits is waited for.
    pub const fn is_attended(&self) -> bool {
        self.is_attended && self.given_up.is_none()
    }

    /// How many waits there were, and how long; how many vCPUs wait now.
    pub fn status(&self) -> WaitStatus {
        let counts = self.room.counts();
        let ns = |ticks| self.clock.duration_ns(ticks);
        let hides = self.room.hides();
        WaitStatus {
            count: counts.count,
            total_ns: ns(counts.ticks),
            longest_ns: ns(counts.longest),
            waiting: self.room.waiting() as u64,
            given_up: self.given_up.clone(),
            wait_time: match hides {
                true => WaitTime::Hidden,
                false => WaitTime::Visible,
            },
            hidden_ns: hides.then(|| ns(self.room.hidden())),
            not_set_back: hides.then(|| self.room.not_set_back()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{HostClock, VcpuClocks};
    use crate::waits::Waits;
    use crate::waits::tests::Woken;
    use terms::addr::Gpa;

    const HOST: HostClock = HostClock {
        counter: || 0,
        now: || Duration::ZERO,
        rest: |_| (),
    };
    const MS: u64 = 1_000_000;
    const LONG: u64 = STANDING_NS + MS;

    /// A reader at a clock of 1 GHz, and whose ring 0 vCPU 0 finds full.
    fn drain() -> (WaitDrain, impl Fn()) {
        drain_of(&Arc::new(VcpuClocks::new(1, HOST)), false)
    }

    /// The same, beside a vCPU whose clock is one of these.
    fn drain_of(clocks: &Arc<VcpuClocks>, hides: bool) -> (WaitDrain, impl Fn() + use<>) {
        let waits = Waits::new(Arc::clone(clocks), Arc::new(Woken::default()));
        let room = waits.open(Gpa(0), 0, 1, hides);
        let drain = WaitDrain::new(room, OnFull::Discard, RunClock::new(0, 1_000_000), true);
        (drain, move || drop(waits.enter(Gpa(0), 0)))
    }

    fn at(head: u64, delivered: u64) -> Progress {
        Progress::of(head, delivered)
    }

    #[test]
    fn a_ring_without_news_to_which_vcpus_come_back_is_given_up_after_long() {
        let (mut drain, enter) = drain();
        let mut is_over = |now| {
            enter();
            drain.has_read(Rings::Calls, 0, at(9, 9), now)
        };
        let looks = (0..1000).map(|look| look * 100 * MS);
        let mut over = looks.filter(|now| is_over(*now));
        assert_eq!(over.next(), Some(STANDING_NS));
        drop(over);
        assert!(!drain.is_attended());
        assert!(drain.status().given_up.is_some());
        assert!(!drain.has_read(Rings::Calls, 0, at(9, 9), LONG), "no news");
    }

    #[test]
    fn what_could_not_be_hidden_is_told_beside_what_was() {
        let clocks = Arc::new(VcpuClocks::new(1, HOST));
        let (drain, _) = drain_of(&clocks, true);
        let told = || (drain.status().hidden_ns, drain.status().not_set_back);
        assert_eq!(told(), (Some(0), Some(0)));
        clocks.cannot_be_set_back(0, 70);
        assert_eq!(told(), (Some(0), Some(1)));
        let (visible, _) = drain_of(&clocks, false);
        assert_eq!(visible.status().not_set_back, None);
    }

    /// Also one that comes back, and waits, when the guest is paused again; and a tracer that is stopped has seen nothing.
    #[test]
    fn who_waits_once_however_long_has_changed_nothing() {
        let (mut drain, enter) = drain();
        for round in 0..10 {
            enter();
            for look in 0..100 {
                let now = round * LONG + look * 100 * MS;
                assert!(!drain.has_read(Rings::Calls, 0, at(9, 9), now));
            }
        }
    }

    #[test]
    fn what_is_written_or_read_is_news_and_so_is_a_limit_of_the_hosts() {
        for (head, delivered, moves) in [(10, 9, false), (9, 10, false), (9, 9, true)] {
            let (mut drain, enter) = drain();
            for look in 0..100 {
                enter();
                assert!(!drain.has_read(Rings::Calls, 0, at(9, 9), look * 100 * MS));
            }
            if moves {
                drain.has_moved_limits();
            }
            for look in 0..190 {
                enter();
                let now = (100 + look) * 100 * MS;
                assert!(!drain.has_read(Rings::Calls, 0, at(head, delivered), now));
            }
            assert!(drain.is_attended());
        }
    }
}
