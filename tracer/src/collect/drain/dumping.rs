//! Copying what the rings of a session hold into a trace of its own, while nothing is taken out of them.

use std::sync::MutexGuard;

use trace::crew::Alone;
use trace::doubt::TimeDoubt;
use trace::export::uftrace::ExportError;
use trace::stream::Origin;

use super::copied::{CopiedRing, CopiedRings, HeldRecords};
use super::refused::Refused;
use super::{Drain, say_gap};
use crate::collect::backlog::Batch;
use crate::collect::call_ring::CallRing;
use crate::collect::event_drain::EventDrain;
use crate::collect::output::{Output, Written};
use crate::ring::reader::discarded;
use crate::ring::snapshot::{PIECE, Snapshot};
use status::Dumped;

/// How many calls and events each ring had lost: when it was held, if it was.
#[derive(Debug)]
pub struct LostWhenHeld {
    calls: Vec<u64>,
    events: Option<Vec<u64>>,
}

/// Copies of the rings of a session.
#[derive(Debug)]
pub struct Dumping<'a> {
    pub(super) drain: &'a mut Drain,
}

/// What the rings of a session held, on its way to an output. The session is not needed for it any more: it is recorded, read and asked meanwhile.
#[derive(Debug)]
pub struct Dump {
    copied: CopiedRings,
    output: Output,
    from_ns: u64,
    until_ns: u64,
    held: Option<LostWhenHeld>,
    /// Stalls of the clock page of its time that are not kept any more.
    forgotten_stalls: u64,
}

impl Dump {
    /// Writes it, or says why not all could be written. `meanwhile` is called now and then: that may take long. Returns, too, what the
    /// rings had lost when they were held, if they were.
    pub fn write(
        self,
        mut meanwhile: impl FnMut(),
    ) -> (Result<Dumped, ExportError>, Option<LostWhenHeld>) {
        let Self {
            mut copied,
            mut output,
            from_ns,
            until_ns,
            held,
            forgotten_stalls,
        } = self;
        while let Some(batch) = copied.next(from_ns) {
            output.append(batch);
            output.end_round(&Alone);
            meanwhile();
        }
        let (records, lost) = copied.counted();
        let mut doubts = copied.doubts();
        doubts.add(TimeDoubt::Stalled, forgotten_stalls);
        let written = output.finish(&doubts, until_ns);
        let dir = |one: Written| one.directory.display().to_string();
        let dumped = written.map(|written| Dumped {
            dir: written.map_or_else(String::new, dir),
            records,
            lost,
            ..Dumped::default()
        });
        (dumped, held)
    }
}

impl Dumping<'_> {
    /// Has calls and events counted as lost instead of recorded, so that what the rings hold stays what it is.
    fn hold(&mut self) -> LostWhenHeld {
        let rings = &self.drain.rings;
        let calls = self.drain.calls.each();
        let hold = |mut calls: MutexGuard<'_, CallRing>| calls.source.reader.hold(rings);
        LostWhenHeld {
            calls: calls.map(hold).collect(),
            events: self.drain.points.as_mut().map(EventDrain::hold),
        }
    }

    /// The same counts where recording goes on.
    fn lost(&self) -> LostWhenHeld {
        let calls = self.drain.calls.each();
        let lost =
            |calls: MutexGuard<'_, CallRing>| discarded(&calls.source.reader, &self.drain.rings);
        LostWhenHeld {
            calls: calls.map(lost).collect(),
            events: self.drain.points.as_ref().map(EventDrain::lost),
        }
    }

    /// Has calls and events recorded again, if they were before.
    fn release(&mut self) {
        if self.drain.is_on {
            say_gap(self.drain);
        }
        // What is recorded from now on is after what was refused until now.
        let by = self.drain.time.rings.least();
        for mut calls in self.drain.calls.each() {
            calls.source.reader.release(&self.drain.rings);
        }
        if let Some(points) = &mut self.drain.points {
            points.release();
        }
        self.drain.set_awaited();
        // A later dump is not to take it for its own.
        let lost = self.lost();
        self.note(&lost, by);
    }

    /// So many were lost by then: later dumps tell when.
    fn note(&mut self, lost: &LostWhenHeld, by: u64) {
        let events = lost.events.as_deref().unwrap_or_default();
        self.drain.refused.note(&lost.calls, events, by);
    }

    /// How many calls and events were lost since the rings were `held`. A vCPU that was in a stub when they were
    /// released can count itself later: this is to be asked when all have left.
    #[must_use]
    pub fn lost_since(&mut self, held: &LostWhenHeld) -> u64 {
        let now = self.lost();
        self.note(&now, self.drain.time.rings.counter());
        let events = now.events.iter().zip(&held.events);
        let events = events.flat_map(|(now, before)| now.iter().zip(before));
        let each = now.calls.iter().zip(&held.calls).chain(events);
        let since = each.map(|(now, before)| now.saturating_sub(*before));
        since.fold(0, u64::saturating_add)
    }

    /// Copies what the rings hold now, to be written to `output`, of what was recorded from a time on, which `from` says when it is told
    /// what time it is; nothing is taken out of them. They are copied as they are: that takes as much memory as they hold, and no disk's time. Unless `is_live`, nothing is recorded meanwhile, so
    /// nothing is written over before it is copied. What is lost is not known yet ([`Self::lost_since`]).
    pub fn begin(
        &mut self,
        mut output: Output,
        is_live: bool,
        from: impl FnOnce(u64) -> u64,
    ) -> Dump {
        self.drain.refresh();
        output.name_threads(self.drain.rings.memory(), self.drain.time.clone());
        let until_ns = self.drain.recorded_until_ns();
        // After readers have had what waits for them, which takes its time; and not once the rings are held: on a busy host that can be a
        // while ago, in which nothing was recorded.
        let from_ns = from(self.drain.time.least_ns());
        // What is lost from then on is the dump's doing.
        let before = if is_live { self.lost() } else { self.hold() };
        let end_ns = self.drain.time.least_ns();
        self.drain.look();
        if let Some(points) = &self.drain.points {
            output.know_points(points.formats());
        }
        self.note(&before, self.drain.time.rings.counter());
        let copied = CopiedRings::new(self.copy(), self.drain.time.run, end_ns);
        let forgotten = self.drain.off_times.forgotten();
        let forgotten_ns = forgotten.map_or(0, |until| self.drain.time.run.nanoseconds(until));
        let from_ns = from_ns.max(forgotten_ns);
        let forgotten_stalls = self.say_others((from_ns, end_ns), &mut output);
        let held = (!is_live).then_some(before);
        if held.is_some() {
            self.release();
        }
        if !self.drain.probes.is_empty() {
            output.describe_probes(&self.drain.probes);
        }
        Dump {
            copied,
            output,
            from_ns,
            until_ns,
            held,
            forgotten_stalls,
        }
    }

    /// Copies all that the rings hold, with what each is known to have refused.
    fn copy(&mut self) -> Vec<CopiedRing> {
        let drain = &mut *self.drain;
        // The first ring tells of all of them: what others have done meanwhile lies between.
        let mut off_times = Some(drain.off_times.known());
        let mut rings = Vec::new();
        for (calls, refused) in drain.calls.each().zip(&drain.refused.calls) {
            let source = &calls.source;
            let reader = &source.reader;
            let snapshot = Snapshot {
                ring: reader.ring(),
                geometry: drain.geometry,
                first: reader.first(),
                head: reader.head(),
                functions: drain.functions,
                format: drain.format,
                is_timed: drain.time.rings.is_timed(),
                timeline: &source.timeline,
            };
            let off_times = off_times.take().unwrap_or_default();
            let copied = snapshot.copy(&drain.rings, PIECE);
            let held = HeldRecords::Calls(copied, off_times, calls.copying());
            let origin = Origin::Calls(reader.ring());
            rings.push(CopiedRing::new(origin, held, refused.known()));
        }
        let Some(points) = &mut drain.points else {
            return rings;
        };
        let refused = drain.refused.events.iter().map(Refused::known);
        let copied = points.copy().into_iter().zip(refused);
        rings.extend(copied.map(|(copied, refused)| {
            let origin = Origin::Points(copied.ring());
            CopiedRing::new(origin, HeldRecords::Points(copied), refused)
        }));
        rings
    }

    /// What is no ring of the guest's: of each there is as much as is kept at all, which is little. How many stalls of the clock page are
    /// not kept any more.
    fn say_others(&self, (from_ns, end_ns): (u64, u64), output: &mut Output) -> u64 {
        let drain = &*self.drain;
        let mut say = |batch: Batch| {
            let mut rows = batch.records.into_rows(Vec::new());
            rows.retain(|record| record.time_ns >= from_ns);
            output.append(Batch {
                looked_ns: Some(end_ns),
                ..Batch::held(batch.origin, rows)
            });
        };
        let stalls = drain.stalls.as_ref();
        let forgotten = stalls.map_or(0, |one| one.copy(&drain.time.run, from_ns, &mut say));
        if let Some(host) = &drain.host {
            host.copy(&drain.time.run, &mut say);
        }
        if drain.points.is_none() {
            // Who waits for what they bring need not.
            let rings = 0..drain.rings.count();
            rings.for_each(|ring| say(Batch::held(Origin::Points(ring), Vec::new())));
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::{BEGUN, NOW, TICKING, TICKS, call_on, paged, reader_in};
    use crate::record::Format;
    use trace::event::RecordKind;

    /// Once all events of all rings were there at the same time.
    #[test]
    fn a_part_of_a_ring_comes_at_a_time_of_the_one_that_has_come_the_least_far() {
        const PARTS: u64 = 2;
        let bytes = PARTS * PIECE * 8;
        TICKS.set(BEGUN);
        let (guest, place, polled) = reader_in(Format::Calls, None, paged(TICKING), 2, bytes);
        TICKS.set(NOW);
        for vcpu in [0, 1] {
            call_on(vcpu, &guest, &place, 0..PARTS * PIECE + 100);
        }
        let mut drain = polled.lock();
        let mut dumping = drain.dumping();
        let held = dumping.hold();
        dumping.note(&held, NOW);
        dumping.drain.look();
        let end_ns = dumping.drain.time.least_ns();
        let clock = dumping.drain.time.run;
        let mut copied = CopiedRings::new(dumping.copy(), clock, end_ns);
        let mut came = Vec::new();
        while let Some(batch) = copied.next(0) {
            if batch.looked_ns.is_none() {
                // That nothing was recorded before.
                continue;
            }
            let rows = batch.records.into_rows(Vec::new());
            // What was lost before comes beside it.
            assert!(rows.len() as u64 <= PIECE + 2);
            came.push(batch.origin);
        }
        let each = [Origin::Calls(0), Origin::Calls(1)];
        assert_eq!(came.len() as u64, 2 * PARTS + 2, "{came:?}");
        for two in came.chunks(2) {
            assert!(each.iter().all(|origin| two.contains(origin)), "{came:?}");
        }
        assert_eq!(copied.counted(), (2 * PARTS * PIECE, 200));
    }

    /// It once told of the losses of all dumps before it, at its own end.
    #[test]
    fn what_a_dump_has_refused_is_told_by_later_ones_where_it_was() {
        const HELD: u64 = NOW - 2_000_000;
        TICKS.set(BEGUN);
        let (guest, place, polled) = reader_in(Format::Calls, None, paged(TICKING), 1, 4096);
        TICKS.set(HELD);
        let mut drain = polled.lock();
        let mut dumping = drain.dumping();
        let held = dumping.hold();
        for _ in 0..5 {
            assert!(
                !guest
                    .call(&place, 0, terms::function::FunctionId(0), HELD)
                    .unwrap()
            );
        }
        dumping.release();
        TICKS.set(NOW);
        assert_eq!(dumping.lost_since(&held), 5);
        call_on(0, &guest, &place, 0..10);
        let clock = dumping.drain.time.run;
        let held_ns = clock.nanoseconds(HELD);
        for (from_ns, lost) in [(0, 5), (held_ns, 5), (held_ns + 1, 0)] {
            let held = dumping.hold();
            dumping.note(&held, NOW);
            dumping.drain.look();
            let end_ns = dumping.drain.time.least_ns();
            let mut copied = CopiedRings::new(dumping.copy(), clock, end_ns);
            let mut losses = Vec::new();
            while let Some(batch) = copied.next(from_ns) {
                let rows = batch.records.into_rows(Vec::new());
                let rows = rows.into_iter();
                losses.extend(rows.filter(|row| matches!(row.kind, RecordKind::Lost(1..))));
            }
            assert_eq!(copied.counted(), (10, lost), "{from_ns}");
            assert!(
                losses.iter().all(|row| row.time_ns == held_ns),
                "{losses:?}"
            );
            dumping.release();
        }
    }

    /// Hours of them once came before the first record.
    #[test]
    fn of_off_times_before_all_records_there_is_the_last_alone() {
        for has_records in [true, false] {
            TICKS.set(BEGUN);
            let (guest, place, polled) = reader_in(Format::Calls, None, paged(TICKING), 2, 4096);
            let gap = |until| {
                TICKS.set(until - 100);
                polled.lock().switch(false);
                TICKS.set(until);
                polled.lock().switch(true);
            };
            (1..=5).for_each(|one| gap(BEGUN + one * 1000));
            if has_records {
                call_on(1, &guest, &place, 0..1);
            }
            gap(NOW);
            gap(NOW + 1000);
            let mut drain = polled.lock();
            let mut dumping = drain.dumping();
            let held = dumping.hold();
            dumping.note(&held, NOW);
            dumping.drain.look();
            let clock = dumping.drain.time.run;
            let mut copied = CopiedRings::new(dumping.copy(), clock, NOW + 2000);
            let mut off = Vec::new();
            while let Some(batch) = copied.next(0) {
                let rows = batch.records.into_rows(Vec::new());
                let rows = rows.iter().filter(|row| row.kind == RecordKind::Lost(0));
                off.extend(rows.map(|row| (row.time_ns, batch.until_ns)));
            }
            let each = [BEGUN + 5000, NOW, NOW + 1000].map(|until| (until, until));
            let expected = if has_records { &each[..] } else { &each[2..] };
            assert_eq!(off, expected);
        }
    }
}
