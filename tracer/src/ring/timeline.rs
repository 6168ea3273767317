//! From the low bits of the clock in a record to the whole time.
//!
//! Each look at a ring's head is followed by a look at the clock. Every record before that head
//! was timed before that look, so with less than one round of the low bits between two looks the
//! missing high bits follow. [`Timeline`] keeps those looks: those of the reader, and those that others
//! make for it while it is busy ([`Timeline::add`]). A record is timed by the first look after it,
//! whenever it is read. Where two looks are a round apart, the records between them are in doubt.

use std::collections::VecDeque;

use super::geometry::Position;
use super::moment::{Moment, ROUND};
use trace::doubt::TimeDoubt;

/// One look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Where the head was: it times the records before that.
    pub head: Position,
    /// When that was.
    pub moment: Moment,
    /// Why these records' times are in doubt.
    pub doubt: Option<TimeDoubt>,
    /// They were made after this.
    since: u64,
}

/// Looks at the head of one ring, oldest first.
#[derive(Debug, Clone)]
pub struct Timeline {
    looks: VecDeque<Look>,
    begun: u64,
    last: Moment,
}

impl Timeline {
    /// Of a ring whose first record is made after `moment`.
    #[must_use]
    pub fn begun(moment: Moment) -> Self {
        Self {
            looks: VecDeque::new(),
            begun: moment.now,
            last: moment,
        }
    }

    /// A single look.
    #[must_use]
    pub fn of_one(head: Position, moment: Moment) -> Self {
        let mut timeline = Self::begun(moment);
        timeline.begun = 0;
        timeline.look(head, moment, Position(0));
        timeline
    }

    /// When it began.
    #[must_use]
    pub fn begin(&self) -> u64 {
        self.begun
    }

    /// The last look.
    #[must_use]
    pub fn last(&self) -> Moment {
        self.last
    }

    /// The head was at `head` and then the clock at `moment`; what lies before `keep_from` will not be
    /// asked for any more.
    pub fn look(&mut self, head: Position, moment: Moment, keep_from: Position) {
        let look = Look {
            head,
            moment,
            doubt: None,
            since: self.last.now,
        };
        self.push(look);
        self.last = moment;
        while self
            .looks
            .front()
            .is_some_and(|look| look.head <= keep_from)
        {
            self.looks.pop_front();
        }
    }

    /// Looks that others have made up to now.
    pub fn add(&mut self, others: &Self) {
        for look in &others.looks {
            self.push(*look);
        }
        if others.last.now > self.last.now {
            self.last = others.last;
        }
    }

    /// Takes all looks out.
    pub fn take(&mut self) -> Self {
        let empty = Self {
            looks: VecDeque::new(),
            ..*self
        };
        std::mem::replace(self, empty)
    }

    fn push(&mut self, mut look: Look) {
        let newest = self.looks.back().map(|newest| newest.head);
        // Nothing was written since: the earlier look says more about the records before it.
        if newest.is_some_and(|newest| newest >= look.head) || look.moment.now < self.last.now {
            return;
        }
        look.since = look.since.max(self.last.now);
        // Who made it may not have looked before it for long, where we have.
        let others = look.doubt.filter(|doubt| *doubt != TimeDoubt::Late);
        let is_late = look.moment.latest().saturating_sub(look.since) >= ROUND;
        look.doubt = others.or(is_late.then_some(TimeDoubt::Late));
        if self.is_close_to_last_but_one(&look)
            && let Some(replaced) = self.looks.pop_back()
        {
            look.since = replaced.since;
        }
        self.looks.push_back(look);
    }

    /// Whether the newest look can be dropped for this one: its records are then still timed
    /// within a fraction of a round.
    fn is_close_to_last_but_one(&self, look: &Look) -> bool {
        let at = |back| self.looks.len().checked_sub(back);
        let before = at(2).and_then(|index| self.looks.get(index));
        let newest = self.looks.back();
        let is_plain = newest.is_some_and(|newest| {
            newest.doubt == look.doubt
                && newest.doubt.is_none()
                && newest.moment.offset == look.moment.offset
        });
        is_plain
            && before
                .is_some_and(|before| look.moment.now.saturating_sub(before.moment.now) < ROUND / 8)
    }

    /// The times of records that were looked at after `time` are in doubt.
    pub fn doubt_after(&mut self, time: u64, doubt: TimeDoubt) {
        let looks = self.looks.iter_mut();
        for look in looks.filter(|look| look.moment.now > time) {
            look.doubt = Some(doubt);
        }
    }

    /// The look that times the record at `position`; `None` after the last one.
    #[must_use]
    pub fn of(&self, position: Position) -> Option<&Look> {
        let next = self.looks.partition_point(|look| look.head <= position);
        self.looks.get(next)
    }
}

/// The times of one ring's records, in the order in which they are delivered.
///
/// A record's slot is reserved after its time is read. So a record with an earlier time than the one before it
/// was interrupted in between, and the time of the one before it is as true for it as its own. But nobody
/// is interrupted for half a round, and nothing was recorded before the beginning: such a time is impossible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    last: u64,
    is_timed: bool,
}

impl Times {
    /// Of records that have times or not.
    pub const fn new(is_timed: bool) -> Self {
        Self { last: 0, is_timed }
    }

    /// Of records that were made after `begin`, or after one of that time.
    pub fn from(&mut self, begin: u64) {
        self.last = self.last.max(begin);
    }

    /// Whether they have times.
    pub const fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The time of the last one.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The time of the next one, whose low bits are `low`, and whether that is in doubt.
    #[inline]
    pub fn next(&mut self, look: Option<&Look>, low: u64) -> (u64, Option<TimeDoubt>) {
        let time = look.and_then(|look| look.moment.unfold(low));
        let is_possible = time.is_some_and(|time| time.saturating_add(ROUND / 2) > self.last);
        self.last = self.last.max(time.unwrap_or_default());
        let doubt = look.and_then(|look| look.doubt);
        let doubt = doubt.or((!is_possible).then_some(TimeDoubt::Impossible));
        (self.last, doubt.filter(|_| self.is_timed))
    }

    /// The same of one that others were delivered before which are later in its ring: it has its own time, if that is not before
    /// the beginning (`begin`).
    pub fn of_late(
        &mut self,
        begin: u64,
        look: Option<&Look>,
        low: u64,
    ) -> (u64, Option<TimeDoubt>) {
        let mut own = Self {
            last: begin,
            ..*self
        };
        let (time, doubt) = own.next(look, low);
        self.from(time);
        (time, doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: u64 = 5 * ROUND;

    fn timeline() -> Timeline {
        Timeline::begun(Moment::exact(BEGIN))
    }

    fn look(timeline: &mut Timeline, head: u64, after: u64) {
        timeline.look(Position(head), Moment::exact(BEGIN + after), Position(0));
    }

    fn time(timeline: &Timeline, position: u64, low: u64) -> Option<u64> {
        let at = timeline.of(Position(position))?.moment;
        at.unfold(low & (ROUND - 1)).map(|time| time - BEGIN)
    }

    fn doubt(timeline: &Timeline, position: u64) -> Option<TimeDoubt> {
        timeline.of(Position(position)).unwrap().doubt
    }

    #[test]
    fn takes_the_first_look_after_the_position() {
        let mut timeline = timeline();
        look(&mut timeline, 10, 1000);
        look(&mut timeline, 10, ROUND - 500);
        look(&mut timeline, 20, ROUND + 900);
        assert_eq!(time(&timeline, 9, 990), Some(990));
        assert_eq!(time(&timeline, 10, 800), Some(ROUND + 800));
        assert_eq!(time(&timeline, 20, 0), None);
        assert_eq!((doubt(&timeline, 9), doubt(&timeline, 10)), (None, None));
    }

    #[test]
    fn keeps_few_looks_however_often_it_looks() {
        let mut timeline = timeline();
        for step in 0..10_000 {
            look(&mut timeline, step + 1, step * (ROUND / 1000));
        }
        let count = timeline.looks.len();
        assert!(count < 200, "{count} looks kept");
        for step in 0..10_000 {
            let at = step * (ROUND / 1000);
            assert_eq!(time(&timeline, step, at), Some(at));
            assert_eq!(doubt(&timeline, step), None);
        }
    }

    #[test]
    fn keeps_no_look_that_nobody_will_ask_for() {
        let mut timeline = timeline();
        // Nothing is written for long.
        for step in 0..1000 {
            look(&mut timeline, 1, step * (ROUND / 2));
        }
        assert_eq!(timeline.looks.len(), 1);
        // And then much, which is read at once.
        for step in 1000..2000 {
            let moment = Moment::exact(BEGIN + step * (ROUND / 2));
            timeline.look(Position(step), moment, Position(step - 1));
        }
        assert_eq!(timeline.looks.len(), 1);
    }

    #[test]
    fn a_look_says_after_when_its_records_were_made_and_by_which_clock() {
        let mut timeline = timeline();
        for step in 1..=3 {
            look(&mut timeline, step, step * 100);
        }
        // It stands for the one between, too.
        assert_eq!(timeline.looks.len(), 2);
        assert_eq!(timeline.of(Position(1)).unwrap().since, BEGIN + 100);
        // The guest's clock was set: what was looked at before goes by what it was.
        let moment = Moment {
            offset: 7,
            ..Moment::exact(BEGIN + 400)
        };
        timeline.look(Position(4), moment, Position(0));
        let offsets = [2, 3].map(|at| timeline.of(Position(at)).unwrap().moment.offset);
        assert_eq!(offsets, [0, 7]);
    }

    #[test]
    fn what_others_doubt_stays_in_doubt() {
        let (mut reader, mut other) = (timeline(), timeline());
        look(&mut other, 1, 100);
        other.doubt_after(BEGIN, TimeDoubt::Moved);
        reader.add(&other.take());
        assert_eq!(doubt(&reader, 0), Some(TimeDoubt::Moved));
    }

    #[test]
    fn records_between_looks_that_are_a_round_apart_are_in_doubt() {
        let mut timeline = timeline();
        look(&mut timeline, 1, 0);
        look(&mut timeline, 2, ROUND);
        look(&mut timeline, 3, 2 * ROUND - 1);
        // Nobody looked for long, but nothing was recorded either.
        look(&mut timeline, 3, 4 * ROUND);
        look(&mut timeline, 4, 4 * ROUND + 1);
        let found = [0, 1, 2, 3].map(|position| doubt(&timeline, position));
        assert_eq!(found, [None, Some(TimeDoubt::Late), None, None]);
        // The bound is not lost time: what may have gone round is in doubt.
        let moment = Moment {
            bound: 10,
            ..Moment::exact(BEGIN + 5 * ROUND - 5)
        };
        timeline.look(Position(5), moment, Position(0));
        assert_eq!(doubt(&timeline, 4), Some(TimeDoubt::Late));
    }

    /// A reader that is kept busy for three rounds, while somebody else looks.
    #[test]
    fn looks_of_others_tell_what_a_late_reader_cannot() {
        let (mut reader, mut other) = (timeline(), timeline());
        for step in 1..=30 {
            look(&mut other, step, step * (ROUND / 10));
        }
        // Nothing is written for two rounds, and then something.
        for step in 31..50 {
            look(&mut other, 30, step * (ROUND / 10));
        }
        look(&mut other, 31, 5 * ROUND);
        let taken = other.take();
        assert!(other.looks.is_empty());
        reader.add(&taken);
        look(&mut reader, 32, 5 * ROUND + 7);
        for position in 0..30 {
            let at = position * (ROUND / 10) + 5;
            assert_eq!(time(&reader, position, at), Some(at));
            assert_eq!(doubt(&reader, position), None);
        }
        assert_eq!(time(&reader, 30, 5 * ROUND - 1), Some(5 * ROUND - 1));
        assert_eq!((doubt(&reader, 30), doubt(&reader, 31)), (None, None));
        // One that was made before the reader's last look says nothing new.
        look(&mut other, 40, 5 * ROUND + 6);
        reader.add(&other);
        assert!(reader.of(Position(32)).is_none());
    }

    /// The other looks too late as well, but the reader was there.
    #[test]
    fn one_look_in_time_is_enough() {
        let (mut reader, mut other) = (timeline(), timeline());
        look(&mut reader, 10, ROUND / 2);
        look(&mut other, 11, ROUND + 5);
        reader.add(&other.take());
        assert_eq!(doubt(&reader, 10), None);
        assert_eq!(time(&reader, 10, 3), Some(ROUND + 3));
    }

    #[test]
    fn what_was_looked_at_after_a_time_is_doubted_and_stays_so() {
        let mut timeline = timeline();
        for step in 1..=4 {
            look(&mut timeline, step, step * ROUND / 4);
        }
        timeline.doubt_after(BEGIN + ROUND / 2, TimeDoubt::Moved);
        // So close that it would replace the one before.
        look(&mut timeline, 5, ROUND + 1);
        let found = [0, 1, 2, 3, 4].map(|position| doubt(&timeline, position));
        let moved = Some(TimeDoubt::Moved);
        assert_eq!(found, [None, None, moved, moved, None]);
    }

    fn next(times: &mut Times, timeline: &Timeline, at: u64) -> (u64, Option<TimeDoubt>) {
        let (time, doubt) = times.next(timeline.of(Position(0)), at & (ROUND - 1));
        (time - BEGIN, doubt)
    }

    /// It was once: a record made a tick after the look was shown at the time of the one before, and nobody heard
    /// of it.
    #[test]
    fn a_record_after_the_look_is_right_within_the_bound_and_in_doubt_beyond() {
        let moment = Moment {
            bound: 100,
            ..Moment::exact(BEGIN + 5000)
        };
        let timeline = Timeline::of_one(Position(1), moment);
        let mut times = Times::new(true);
        times.from(BEGIN);
        assert_eq!(next(&mut times, &timeline, 4000), (4000, None));
        assert_eq!(next(&mut times, &timeline, 5100), (5100, None));
        let impossible = Some(TimeDoubt::Impossible);
        assert_eq!(next(&mut times, &timeline, 5101), (5100, impossible));
        // Interrupted between its time and its slot.
        assert_eq!(next(&mut times, &timeline, 4500), (5100, None));
    }

    #[test]
    fn nothing_was_recorded_before_the_beginning() {
        let timeline = Timeline::of_one(Position(1), Moment::exact(BEGIN + 5));
        let mut times = Times::new(true);
        times.from(BEGIN);
        let impossible = Some(TimeDoubt::Impossible);
        assert_eq!(next(&mut times, &timeline, ROUND - 9), (0, None));
        assert_eq!(next(&mut times, &timeline, ROUND / 2 - 9), (0, impossible));
        assert_eq!(Times::new(true).next(None, 7), (0, impossible));
        // Without a clock there is nothing to doubt.
        assert_eq!(Times::new(false).next(None, 7), (0, None));
    }
}
