//! Copying what the rings of a session hold into a trace of its own, while nothing is taken out of them.

use std::sync::MutexGuard;

use trace::doubt::TimeDoubts;
use trace::event::Record;
use trace::export::uftrace::ExportError;
use trace::stream::Origin;

use super::{Drain, say_gap};
use crate::collect::backlog::{Batch, count, since};
use crate::collect::call_ring::CallRing;
use crate::collect::event_drain::EventDrain;
use crate::collect::output::Output;
use crate::ring::reader::{Sink, discarded};
use crate::ring::snapshot::Snapshot;
use status::Dumped;

/// How many calls and events each ring had lost: when it was held, if it was.
#[derive(Debug)]
pub struct Held {
    calls: Vec<u64>,
    events: Option<Vec<u64>>,
}

/// Copies of the rings of a session.
#[derive(Debug)]
pub struct Dumping<'a> {
    pub(super) drain: &'a mut Drain,
}

impl Dumping<'_> {
    /// Has calls and events counted as lost instead of recorded, so that what the rings hold stays what it is.
    fn hold(&mut self) -> Held {
        let rings = &self.drain.rings;
        let calls = self.drain.calls.each();
        let hold = |mut calls: MutexGuard<'_, CallRing>| calls.source.reader.hold(rings);
        Held {
            calls: calls.map(hold).collect(),
            events: self.drain.points.as_mut().map(EventDrain::hold),
        }
    }

    /// The same counts where recording goes on.
    fn lost(&self) -> Held {
        let calls = self.drain.calls.each();
        let lost =
            |calls: MutexGuard<'_, CallRing>| discarded(&calls.source.reader, &self.drain.rings);
        Held {
            calls: calls.map(lost).collect(),
            events: self.drain.points.as_ref().map(EventDrain::lost),
        }
    }

    /// Has calls and events recorded again, if they were before.
    fn release(&mut self) {
        if self.drain.is_on {
            say_gap(self.drain);
        }
        for mut calls in self.drain.calls.each() {
            calls.source.reader.release(&self.drain.rings);
        }
        if let Some(points) = &mut self.drain.points {
            points.release();
        }
        self.drain.set_awaited();
    }

    /// How many calls and events were lost since the rings were `held`. A vCPU that was in a stub when they were
    /// released can count itself later: this is to be asked when all have left.
    #[must_use]
    pub fn lost_since(&self, held: &Held) -> u64 {
        let now = self.lost();
        let events = now.events.iter().zip(&held.events);
        let events = events.flat_map(|(now, before)| now.iter().zip(before));
        let each = now.calls.iter().zip(&held.calls).chain(events);
        let since = each.map(|(now, before)| now.saturating_sub(*before));
        since.fold(0, u64::saturating_add)
    }

    /// What a ring holds, and last what it has refused, `discarded` records: that has no place among its slots.
    fn copy_of(
        &mut self,
        index: usize,
        discarded: u64,
        doubts: &mut TimeDoubts,
    ) -> Option<(u16, Vec<Record>)> {
        let mut calls = self.drain.calls.ring(index)?;
        let mut records = Vec::new();
        let (source, mut sink) = calls.copying(&mut records);
        let reader = &source.reader;
        let snapshot = Snapshot {
            ring: reader.ring(),
            geometry: self.drain.geometry,
            first: reader.first(),
            head: reader.head(),
            functions: self.drain.functions,
            format: self.drain.format,
            is_timed: self.drain.time.rings.is_timed(),
            timeline: &source.timeline,
        };
        doubts.add_all(&snapshot.deliver(&self.drain.rings, &mut sink));
        if discarded > 0 {
            sink.lost(self.drain.time.rings.counter(), discarded);
        }
        Some((reader.ring(), records))
    }

    /// Writes what the rings hold now to `output`, of what was recorded from a time on; nothing is taken out of them. Unless
    /// `is_live`, nothing is recorded meanwhile, so nothing is written over before it is copied. What is lost by that is not
    /// known yet ([`Self::lost_since`]).
    ///
    /// # Errors
    /// [`ExportError`] when not all could be written.
    pub fn dump(
        &mut self,
        mut output: Output,
        is_live: bool,
        from_ns: u64,
    ) -> Result<(Dumped, Option<Held>), ExportError> {
        self.drain.refresh();
        output.name_threads(self.drain.rings.memory(), self.drain.time.clone());
        // What is lost from then on is the dump's doing.
        let before = if is_live { self.lost() } else { self.hold() };
        self.drain.look();
        if let Some(points) = &self.drain.points {
            output.know_points(points.formats());
        }
        let mut doubts = TimeDoubts::default();
        let (mut records, mut lost) = (0, 0u64);
        self.copy(&before, &mut doubts, |batch| {
            let origin = batch.origin;
            let rows = since(origin, batch.records.into_rows(Vec::new()), from_ns);
            if matches!(origin, Origin::Calls(_) | Origin::Points(_)) {
                let (held, gone) = count(&rows);
                (records, lost) = (records + held, lost.saturating_add(gone));
            }
            output.append(Batch::held(origin, rows));
        });
        let held = (!is_live).then_some(before);
        if held.is_some() {
            self.release();
        }
        if !self.drain.probes.is_empty() {
            output.describe_probes(&self.drain.probes);
        }
        let written = output.finish(&doubts)?;
        let dir = written.map_or_else(String::new, |one| one.directory.display().to_string());
        let dumped = Dumped {
            dir,
            records,
            lost,
            ..Dumped::default()
        };
        Ok((dumped, held))
    }

    /// Copies all that there is, ring by ring; each has `lost` so many.
    fn copy(&mut self, lost: &Held, doubts: &mut TimeDoubts, mut to: impl FnMut(Batch)) {
        for (index, discarded) in lost.calls.iter().enumerate() {
            if let Some((ring, rows)) = self.copy_of(index, *discarded, doubts) {
                to(Batch::held(Origin::Calls(ring), rows));
            }
        }
        if let Some(stalls) = &self.drain.stalls {
            stalls.copy(&self.drain.time.run, &mut to);
        }
        if let Some(host) = &self.drain.host {
            host.copy(&self.drain.time.run, &mut to);
        }
        if let Some(points) = &mut self.drain.points {
            let lost = lost.events.as_deref().unwrap_or_default();
            points.copy(&self.drain.time.run, lost, doubts, &mut to);
        }
    }
}
