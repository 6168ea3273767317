//! What must not have happened from one trace to the next, for whoever watches for it.

use std::str::FromStr;

use terms::quantity::{self, BadQuantity, in_microseconds};

use super::spread::Spread;
use super::summary::Row;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    Calls,
    Total,
    Own,
    Average,
}

/// How much more is too much.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    /// Of what it was.
    Percent(f64),
    /// Calls or nanoseconds.
    Much(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Appeared,
    Vanished,
    Grew(Measure, Bound),
}

/// `appeared`, `vanished`, or `calls`, `total`, `self` or `avg`, `>`, and a share as `10%`, a number of calls or a duration
/// as `5us`.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    text: String,
    what: What,
}

/// Why a text is no condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCondition {
    /// Not of any form.
    #[error(
        "'{0}' is no condition: write appeared, vanished, or calls, total, self or avg, then > and how much more, as 'total > 10%'"
    )]
    Form(String),
    /// Nothing can grow by so much.
    #[error("'{0}' is no share: write a number, as 10%")]
    Share(String),
    /// No number.
    #[error("'{0}' is no number of calls")]
    Calls(String),
    /// No duration.
    #[error(transparent)]
    Duration(#[from] BadQuantity),
}

impl FromStr for Condition {
    type Err = BadCondition;

    fn from_str(text: &str) -> Result<Self, BadCondition> {
        let bad = || BadCondition::Form(text.to_owned());
        let what = match text.trim() {
            "appeared" => What::Appeared,
            "vanished" => What::Vanished,
            other => {
                let (measure, bound) = other.split_once('>').ok_or_else(bad)?;
                let measure = match measure.trim() {
                    "calls" => Measure::Calls,
                    "total" => Measure::Total,
                    "self" => Measure::Own,
                    "avg" => Measure::Average,
                    _ => return Err(bad()),
                };
                What::Grew(measure, Bound::parse(measure, bound.trim())?)
            }
        };
        let text = text.trim().to_owned();
        Ok(Self { text, what })
    }
}

impl Bound {
    fn parse(measure: Measure, text: &str) -> Result<Self, BadCondition> {
        if let Some(share) = text.strip_suffix('%') {
            let percent = share.trim().parse::<f64>().ok();
            let percent = percent.filter(|percent| percent.is_finite() && *percent >= 0.0);
            let percent = percent.ok_or_else(|| BadCondition::Share(text.to_owned()))?;
            return Ok(Self::Percent(percent));
        }
        Ok(Self::Much(match measure {
            Measure::Calls => {
                let calls = text.parse().ok();
                calls.ok_or_else(|| BadCondition::Calls(text.to_owned()))?
            }
            Measure::Total | Measure::Own | Measure::Average => quantity::nanoseconds(text, "us")?,
        }))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a bound is compared with an estimate"
    )]
    fn is_passed(self, before: f64, after: f64) -> bool {
        let more = after - before;
        match self {
            Self::Percent(percent) => more * 100.0 > percent * before,
            Self::Much(much) => more > much as f64,
        }
    }
}

impl Condition {
    /// Whether it is about times.
    pub(super) const fn is_of_times(&self) -> bool {
        matches!(
            self.what,
            What::Grew(Measure::Total | Measure::Own | Measure::Average, _)
        )
    }

    /// Whether it holds for a function. What may be chance does not count, nor does what has no other trace to be compared
    /// with, but where that is asked for.
    fn holds(&self, before: &Row, after: &Row) -> bool {
        let (was, is) = (before.calls > 0, after.calls > 0);
        let (measure, bound) = match self.what {
            What::Appeared => return is && !was,
            What::Vanished => return was && !is,
            What::Grew(measure, bound) => (measure, bound),
        };
        let values = match measure {
            Measure::Calls => Some(counted(before.calls, after.calls)),
            Measure::Total => sums(before.total, after.total),
            Measure::Own => sums(before.own, after.own),
            Measure::Average => means(before.each, after.each),
        };
        let is_passed = |(before, after)| bound.is_passed(before, after);
        was && is && values.is_some_and(is_passed)
    }

    /// What is to be said if it holds for the function of this name.
    pub(super) fn check(&self, name: &str, before: &Row, after: &Row) -> Option<String> {
        let text = &self.text;
        self.holds(before, after).then(|| match self.what {
            What::Appeared | What::Vanished => format!("{text}: {name}"),
            What::Grew(measure, _) => {
                let [before, after] = [before, after].map(|row| measure.shown(row));
                format!("{text}: {name}: {before} before, {after} after")
            }
        })
    }
}

impl Measure {
    fn shown(self, row: &Row) -> String {
        let time = |ns: u64| format!("{} us", in_microseconds(ns));
        match self {
            Self::Calls => row.calls.to_string(),
            Self::Total => time(row.total.sum),
            Self::Own => time(row.own.sum),
            Self::Average => time(row.each.sum.checked_div(row.each.count).unwrap_or_default()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 calls")]
fn counted(before: u64, after: u64) -> (f64, f64) {
    (before as f64, after as f64)
}

/// Both sums, if they differ by more than chance.
fn sums(before: Spread, after: Spread) -> Option<(f64, f64)> {
    let (was, is) = counted(before.sum, after.sum);
    let error = before.sum_error(after)?;
    ((is - was).abs() > error).then_some((was, is))
}

/// The same of means.
fn means(before: Spread, after: Spread) -> Option<(f64, f64)> {
    let (was, is) = (before.mean()?, after.mean()?);
    let error = before.mean_error(after)?;
    ((is - was).abs() > error).then_some((was, is))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that took about so long each.
    fn row(calls: u64, each_ns: u64, spread_ns: u64) -> Row {
        let mut row = Row {
            calls,
            ..Row::default()
        };
        for call in 0..calls {
            let time = each_ns + call % 2 * spread_ns;
            row.total.add(time);
            row.own.add(time / 2);
            row.each.add(time);
        }
        row
    }

    fn holds(text: &str, before: &Row, after: &Row) -> bool {
        text.parse::<Condition>().unwrap().holds(before, after)
    }

    #[test]
    fn what_grew_by_more_than_a_bound_and_not_by_chance_is_told() {
        let (a, b) = (row(100, 1000, 10), row(100, 1200, 10));
        for text in [
            "total > 10%",
            "self>19 %",
            "avg > 19.9%",
            "avg > 190ns",
            "total > 19.9us",
        ] {
            assert!(holds(text, &a, &b), "{text}");
            assert!(!holds(text, &b, &a), "{text}");
        }
        for text in ["total > 20%", "self > 20.1%", "avg > 200ns", "calls > 0%"] {
            assert!(!holds(text, &a, &b), "{text}");
        }
        // The same means, of calls that differ more than these.
        let (a, b) = (row(100, 0, 2000), row(100, 200, 2000));
        for text in ["total > 10%", "self > 10%", "avg > 10%"] {
            assert!(!holds(text, &a, &b), "{text}");
        }
    }

    #[test]
    fn the_time_of_a_function_itself_is_not_that_of_what_it_calls() {
        let (a, mut b) = (row(100, 1000, 10), row(100, 1000, 10));
        b.own = row(100, 4000, 10).own;
        assert!(holds("self > 10%", &a, &b));
        assert!(!holds("total > 0%", &a, &b));
        assert!(!holds("avg > 0%", &a, &b));
    }

    #[test]
    fn calls_are_exact() {
        let (a, b) = (row(100, 0, 0), row(111, 0, 0));
        assert!(holds("calls > 10%", &a, &b));
        assert!(holds("calls > 10", &a, &b));
        assert!(!holds("calls > 11%", &a, &b));
        assert!(!holds("calls > 11", &a, &b));
        let said = "calls > 10"
            .parse::<Condition>()
            .unwrap()
            .check("f", &a, &b);
        assert_eq!(
            said.as_deref(),
            Some("calls > 10: f: 100 before, 111 after")
        );
    }

    #[test]
    fn what_appeared_or_vanished_is_told_only_where_that_is_asked_for() {
        let (none, some) = (Row::default(), row(100, 1000, 10));
        for text in ["calls > 0", "total > 0%", "avg > 0us", "vanished"] {
            assert!(!holds(text, &none, &some), "{text}");
        }
        assert!(holds("appeared", &none, &some));
        assert!(holds("vanished", &some, &none));
        assert!(!holds("appeared", &some, &some));
        assert!(!holds("vanished", &none, &none));
    }

    #[test]
    fn what_is_no_condition_is_said_to_be_none() {
        for text in ["", "total", "total < 10%", "length > 10%", "> 10%"] {
            let refused = text.parse::<Condition>();
            assert!(matches!(refused, Err(BadCondition::Form(_))), "{text}");
        }
        for text in ["total > %", "total > -1%", "total > inf%", "calls > NaN%"] {
            let refused = text.parse::<Condition>();
            assert!(matches!(refused, Err(BadCondition::Share(_))), "{text}");
        }
        let calls = "calls > 1us".parse::<Condition>();
        assert!(matches!(calls, Err(BadCondition::Calls(_))));
        let time = "self > 1 day".parse::<Condition>();
        assert!(matches!(time, Err(BadCondition::Duration(_))));
    }
}
