//! When calls and events happened, on each vCPU and in each thread: a line for each, a column for each part of the time.
//!
//! How long the trace is is known at its end. So the columns begin narrow, and whenever there is no room for one more,
//! each two become one: what is kept does not grow with the trace. Nor does it with the threads: where there are very many,
//! all of them have fewer columns.

use std::collections::BTreeMap;

use terms::printable::masked;
use terms::quantity::in_microseconds;

use super::directory::TraceDirectory;
use super::table::{Bar, Cell, Column, Table, Unit};
use crate::event::{Event, EventKind};
use crate::export::events::EventLine;
use crate::graph::excerpt::nameless;

/// At most so many columns has a terminal; at least half of them are used.
pub(super) const COLUMNS: usize = 64;
/// And a page that can be zoomed.
pub(super) const COLUMNS_OF_PAGE: usize = 8192;
/// Columns of all lines together. Of more, those of each become fewer.
const CELLS_MAX: usize = 1 << 20;

/// What has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Vcpu(u16),
    Thread(u32),
}

/// A line.
#[derive(Debug)]
struct Line {
    happened: u64,
    lost: u64,
    at: Bar,
}

impl Line {
    fn new(columns: usize) -> Self {
        Self {
            happened: 0,
            lost: 0,
            at: Bar {
                happened: vec![0; columns],
                lost: vec![0; columns],
            },
        }
    }
}

/// All lines.
#[derive(Debug)]
pub(super) struct Timeline {
    columns: usize,
    start_ns: Option<u64>,
    /// Of a column; a power of two.
    width_ns: u64,
    /// Columns that are used.
    used: usize,
    lines: BTreeMap<Track, Line>,
    has_threads: bool,
}

impl Timeline {
    /// Of a trace that tells threads apart, or does not, in at most so many columns.
    pub const fn new(has_threads: bool, columns: usize) -> Self {
        Self {
            columns,
            start_ns: None,
            width_ns: 1,
            used: 0,
            lines: BTreeMap::new(),
            has_threads,
        }
    }

    /// The next step of a thread; of the functions that are wanted calls are counted.
    pub fn step(&mut self, step: &Event, is_wanted: bool) {
        let (happened, lost) = match step.kind {
            EventKind::Entry(_) if is_wanted => (1, 0),
            EventKind::Lost(count) => (0, count),
            _ => return,
        };
        self.add(Track::Vcpu(step.vcpu), step.time_ns, happened, lost);
        if self.has_threads {
            self.add(Track::Thread(step.thread), step.time_ns, happened, lost);
        }
    }

    /// An event of a vCPU, or a loss of some.
    pub fn point(&mut self, event: &EventLine) {
        let happened = u64::from(event.event.is_some());
        self.add(Track::Vcpu(event.vcpu), event.time_ns, happened, event.lost);
    }

    fn add(&mut self, track: Track, time_ns: u64, happened: u64, lost: u64) {
        let start_ns = *self.start_ns.get_or_insert(time_ns);
        let since_ns = time_ns.saturating_sub(start_ns);
        while since_ns / self.width_ns >= self.columns as u64 {
            self.widen();
        }
        if !self.lines.contains_key(&track) {
            self.make_room();
        }
        let column = usize::try_from(since_ns / self.width_ns).unwrap_or(self.columns);
        self.used = self.used.max(column + 1);
        let line = self
            .lines
            .entry(track)
            .or_insert_with(|| Line::new(self.columns));
        let add = |cell: Option<&mut u64>, sum: &mut u64, count: u64| {
            *sum = sum.saturating_add(count);
            if let Some(cell) = cell {
                *cell = cell.saturating_add(count);
            }
        };
        add(
            line.at.happened.get_mut(column),
            &mut line.happened,
            happened,
        );
        add(line.at.lost.get_mut(column), &mut line.lost, lost);
    }

    /// One more line comes: if all had too many columns together, each has half as many.
    fn make_room(&mut self) {
        let columns = (self.lines.len() + 1).saturating_mul(self.columns);
        if columns <= CELLS_MAX || self.columns <= COLUMNS {
            return;
        }
        self.columns /= 2;
        if self.used > self.columns {
            self.widen();
        }
        for line in self.lines.values_mut() {
            for cells in [&mut line.at.happened, &mut line.at.lost] {
                cells.truncate(self.columns);
                cells.shrink_to_fit();
            }
        }
    }

    /// Each two columns become one.
    fn widen(&mut self) {
        // At 2^58 ns even the fewest columns hold all that a time can be.
        self.width_ns = self.width_ns.saturating_mul(2);
        self.used = self.used.div_ceil(2);
        for line in self.lines.values_mut() {
            for cells in [&mut line.at.happened, &mut line.at.lost] {
                let pairs = cells.chunks(2);
                let sums = pairs.map(|pair| pair.iter().copied().fold(0, u64::saturating_add));
                *cells = sums.collect();
                cells.resize(self.columns, 0);
            }
        }
    }

    /// How long a column is, for people and programs.
    pub const fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// When the first of them begins.
    pub const fn start_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// The table of vCPUs.
    pub fn vcpus(&self) -> Table {
        let is_vcpu = |track: Track| match track {
            Track::Vcpu(vcpu) => Some(format!("vCPU {vcpu}")),
            Track::Thread(_) => None,
        };
        let mut table = self.table("vcpus", is_vcpu);
        let width = in_microseconds(self.width_ns);
        table.remarks.push(format!("a column is {width} us"));
        table
    }

    /// The table of threads, where they are told apart: those first in which most happened.
    pub fn threads(&self, trace: &TraceDirectory) -> Option<Table> {
        let known = trace.side.as_ref().map(|side| &side.threads);
        let name = |track: Track| match track {
            Track::Vcpu(_) => None,
            Track::Thread(thread) => {
                let name = known.and_then(|known| known.get(&thread));
                // What is in a file may be anything.
                let name = name.map(|name| masked(name).into_owned());
                Some(name.unwrap_or_else(|| nameless(thread)))
            }
        };
        let mut table = self.has_threads.then(|| self.table("threads", name))?;
        table.sort("calls");
        Some(table)
    }

    fn table(&self, of: &'static str, name: impl Fn(Track) -> Option<String>) -> Table {
        let shown = |line: &Line| {
            let cut = |cells: &Vec<u64>| cells.iter().take(self.used).copied().collect();
            Bar {
                happened: cut(&line.at.happened),
                lost: cut(&line.at.lost),
            }
        };
        let row = |(track, line): (&Track, &Line)| {
            Some(vec![
                line.happened.into(),
                line.lost.into(),
                Cell::Bar(shown(line)),
                Cell::name(name(*track)?),
            ])
        };
        Table {
            name: of,
            columns: vec![
                Column::new("calls", "CALLS", Unit::Number(10)),
                Column::new("lost", "LOST", Unit::Number(8)),
                Column::new("at", "WHEN", Unit::Bar(self.used.max(4))),
                Column::new("name", "WHERE", Unit::Name("")),
            ],
            rows: self.lines.iter().filter_map(row).collect(),
            remarks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, event};
    use proptest::prelude::*;

    const ENTRY: EventKind = entry(0);

    fn bars(timeline: &Timeline) -> Vec<(Track, Bar)> {
        let lines = timeline.lines.iter();
        lines
            .map(|(track, line)| (*track, line.at.clone()))
            .collect()
    }

    proptest! {
        #[test]
        fn columns_have_what_happened_in_them(
            start in 0..u64::MAX / 2,
            mut times in prop::collection::vec((0..1u64 << 40, 0..2u16, 0..2u64), 1..200),
            shift in 0..40u32,
        ) {
            times.sort_unstable();
            let times: Vec<_> = times.into_iter().map(|(at, vcpu, lost)| (at >> shift, vcpu, lost)).collect();
            let mut timeline = Timeline::new(false, COLUMNS);
            for (at, vcpu, lost) in &times {
                let kind = if *lost == 0 { ENTRY } else { EventKind::Lost(*lost) };
                timeline.step(&event(start + at, *vcpu, 0, 0, kind), true);
            }
            let first = times[0].0;
            let last = times.last().unwrap().0 - first;
            // The narrowest columns that have room for all.
            prop_assert!(last / timeline.width_ns < COLUMNS as u64);
            prop_assert!(timeline.width_ns == 1 || last / (timeline.width_ns / 2) >= COLUMNS as u64);
            prop_assert_eq!(timeline.used as u64, last / timeline.width_ns + 1);
            for (track, bar) in bars(&timeline) {
                for column in 0..COLUMNS {
                    let is_in = |(at, vcpu, _): &&(u64, u16, u64)| {
                        Track::Vcpu(*vcpu) == track && (at - first) / timeline.width_ns == column as u64
                    };
                    let here: Vec<_> = times.iter().filter(is_in).collect();
                    let lost: u64 = here.iter().map(|(_, _, lost)| lost).sum();
                    let calls = here.iter().filter(|(_, _, lost)| *lost == 0).count();
                    prop_assert_eq!((bar.happened[column], bar.lost[column]), (calls as u64, lost));
                }
            }
        }
    }

    #[test]
    fn many_threads_have_fewer_columns_and_nothing_is_missing() {
        let mut timeline = Timeline::new(true, COLUMNS_OF_PAGE);
        let threads = 4 * CELLS_MAX / COLUMNS_OF_PAGE;
        let end = COLUMNS_OF_PAGE as u64 - 1;
        for thread in 0..u32::try_from(threads).unwrap() {
            let time_ns = if thread % 2 == 0 { 0 } else { end };
            timeline.step(&event(time_ns, 0, thread, 0, ENTRY), true);
        }
        let columns = COLUMNS_OF_PAGE / 8;
        assert_eq!((timeline.columns, timeline.width_ns), (columns, 8));
        let bars = bars(&timeline);
        assert_eq!(bars.len(), threads + 1);
        for (track, bar) in bars {
            assert_eq!((bar.happened.len(), bar.lost.len()), (columns, columns));
            let [first, last] = [bar.happened[0], bar.happened[columns - 1]];
            let expected = match track {
                Track::Vcpu(_) => [threads as u64 / 2; 2],
                Track::Thread(thread) if thread % 2 == 0 => [1, 0],
                Track::Thread(_) => [0, 1],
            };
            assert_eq!([first, last], expected);
        }
    }

    #[test]
    fn the_ends_of_time_have_a_column() {
        let mut timeline = Timeline::new(true, COLUMNS);
        for time_ns in [0, u64::MAX, 5] {
            timeline.step(&event(time_ns, 0, 7, 0, ENTRY), true);
        }
        timeline.step(&event(1, 0, 7, 0, ENTRY), false);
        assert_eq!((timeline.width_ns, timeline.used), (1 << 58, 64));
        let bars = bars(&timeline);
        assert_eq!(bars.len(), 2);
        for (_, bar) in bars {
            assert_eq!((bar.happened[0], bar.happened[63]), (2, 1));
        }
    }
}
