//! What is known of a session's functions at one time, and what came since an earlier one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use status::Profile;
use terms::quantity::{grouped, plain};

/// A function, or somebody who called it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// What tells it from others of its name.
    pub key: String,
    /// Its name, as the VMM told it.
    pub name: String,
    /// Calls.
    pub hits: u64,
    /// Those of which the times are; none where no end was seen.
    pub timed: Option<u64>,
    /// Time from entries to exits.
    pub total_ns: u64,
    /// Time without that of traced calls inside, where it is known.
    pub self_ns: Option<u64>,
    /// Times that were below zero and count as zero, where somebody counts them: a profile does.
    pub clamped: Option<u64>,
}

impl Row {
    /// What a call took on the average, where that is known.
    #[must_use]
    pub fn average_ns(&self) -> Option<u64> {
        Some(self.total_ns / self.timed?.max(1))
    }

    /// What it is ordered by where nothing else is asked for: most self time, else most calls.
    #[must_use]
    pub fn weight(&self) -> (u64, u64) {
        (self.self_ns.unwrap_or(self.total_ns), self.hits)
    }
}

/// All of them at one time.
#[derive(Debug, Clone)]
pub struct Counted {
    /// When it was looked at.
    pub at: Instant,
    /// The session's name.
    pub session: String,
    /// The period of the clock page, where times come from it.
    pub period_ns: Option<u64>,
    /// Each, in no order.
    pub rows: Vec<Row>,
    /// Calls that were recorded and are not in it: they came faster than they were taken.
    pub unread: u64,
}

impl Counted {
    /// What a profile has counted.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        let row = |one: &status::ProfiledFunction| Row {
            key: one.address.clone(),
            name: one.name.clone(),
            hits: one.hits,
            timed: Some(one.hits),
            total_ns: one.total_ns,
            self_ns: one.self_ns,
            clamped: Some(one.clamped),
        };
        Self {
            at: Instant::now(),
            session: profile.session.clone(),
            period_ns: profile.clock_period_ns,
            rows: profile.functions.iter().map(row).collect(),
            unread: 0,
        }
    }

    /// Calls of all.
    #[must_use]
    pub fn hits(&self) -> u64 {
        let hits = self.rows.iter().map(|row| row.hits);
        hits.fold(0, u64::saturating_add)
    }

    /// What is to be said of times that are not what the clock said, if there were any.
    #[must_use]
    pub fn clamped_said(&self) -> Option<String> {
        let each = self.rows.iter().filter_map(|row| row.clamped);
        match each.fold(0, u64::saturating_add) {
            0 => None,
            all => Some(format!(
                "{} below zero, counted as zero: the clock went back, or calls of others came between",
                plain(all, "time")
            )),
        }
    }

    /// Calls of all in words; times are said to be of fewer where they are.
    #[must_use]
    pub fn summary(&self) -> String {
        let hits = self.hits();
        let timed = self.rows.iter().map(|row| row.timed.unwrap_or(0));
        let fewer = match timed.fold(0, u64::saturating_add) {
            timed if timed == hits => String::new(),
            timed => format!(" ({} timed)", grouped(timed)),
        };
        let functions = plain(self.rows.len() as u64, "function");
        format!("{}{fewer} of {functions}", plain(hits, "hit"))
    }
}

/// What came between two looks.
#[derive(Debug)]
pub struct Since<'a> {
    before: HashMap<&'a str, &'a Row>,
    passed: Duration,
}

impl<'a> Since<'a> {
    /// From `before` to `now`.
    #[must_use]
    pub fn new(before: &'a Counted, now: &Counted) -> Self {
        Self {
            before: before
                .rows
                .iter()
                .map(|row| (row.key.as_str(), row))
                .collect(),
            passed: now.at.saturating_duration_since(before.at),
        }
    }

    /// Calls a second.
    #[must_use]
    pub fn hits_per_second(&self, row: &Row) -> u64 {
        let before = self.before.get(row.key.as_str());
        self.per_second(row.hits, before.map_or(0, |row| row.hits))
    }

    /// Nanoseconds of self time a second, where it is known.
    #[must_use]
    pub fn self_ns_per_second(&self, row: &Row) -> Option<u64> {
        let before = self.before.get(row.key.as_str());
        let before = before.and_then(|row| row.self_ns).unwrap_or(0);
        Some(self.per_second(row.self_ns?, before))
    }

    /// Less than before is none: counting began anew.
    fn per_second(&self, now: u64, before: u64) -> u64 {
        let more = u128::from(now.saturating_sub(before));
        let rate = more * 1_000_000 / self.passed.as_micros().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_came_since_and_never_negative() {
        let row = |hits, self_ns| Row {
            key: "a".to_owned(),
            hits,
            self_ns,
            ..Row::default()
        };
        let at = Instant::now();
        let counted = |at, row| Counted {
            at,
            session: "s".to_owned(),
            period_ns: None,
            rows: vec![row],
            unread: 0,
        };
        let before = counted(at, row(10, Some(1000)));
        let now = counted(at + Duration::from_millis(500), row(30, Some(1500)));
        let since = Since::new(&before, &now);
        assert_eq!(since.hits_per_second(&row(30, None)), 40);
        assert_eq!(since.self_ns_per_second(&row(30, Some(1500))), Some(1000));
        assert_eq!(since.self_ns_per_second(&row(30, None)), None);
        assert_eq!(since.hits_per_second(&row(3, None)), 0);
        let fresh = Row {
            key: "b".to_owned(),
            ..row(7, None)
        };
        assert_eq!(since.hits_per_second(&fresh), 14);
        let same = Since::new(&now, &now);
        assert_eq!(same.hits_per_second(&row(31, None)), 1_000_000);
    }
}
