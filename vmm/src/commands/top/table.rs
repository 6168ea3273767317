//! Functions as a table of plain text.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::io;

use serde_json::{Value, json};
use terms::printable::{self, masked};
use terms::quantity::plain;
use trace::export::resolution::shorter;

use super::counted::{Counted, Row, Since};

/// Rows of a table that is one of many.
pub const ROWS: usize = 20;

/// The functions of most self time first; with what was before, also calls a second.
#[must_use]
pub fn table(counted: &Counted, before: Option<&Counted>, rows: usize) -> String {
    let mut functions: Vec<&Row> = counted.rows.iter().collect();
    functions.sort_by(|one, other| heaviest_first(one, other));
    let since = before.map(|before| Since::new(before, counted));
    let mut text = format!(
        "{:>12} {:>10} {:>12} {:>12} {:>10}  FUNCTION\n",
        "HITS", "HITS/S", "SELF", "TOTAL", "AVG"
    );
    let dash = || "-".to_owned();
    for one in functions.iter().take(rows) {
        let rate = since
            .as_ref()
            .map(|since| since.hits_per_second(one).to_string());
        let has_times = one.timed.is_some();
        let total = has_times.then(|| time(one.total_ns));
        let _ = writeln!(
            text,
            "{:>12} {:>10} {:>12} {:>12} {:>10}  {}",
            one.hits,
            rate.unwrap_or_else(dash),
            one.self_ns.map_or_else(dash, time),
            total.unwrap_or_else(dash),
            average(one, counted.period_ns).unwrap_or_else(dash),
            masked(&one.name)
        );
    }
    let _ = writeln!(text, "# session {}: {}", counted.session, counted.summary());
    if let Some(clamped) = counted.clamped_said() {
        let _ = writeln!(text, "# {clamped}");
    }
    if counted.unread > 0 {
        let unread = plain(counted.unread, "event");
        let _ = writeln!(
            text,
            "# {unread} came faster than they were taken: not counted"
        );
    }
    text
}

/// The same for programs, in a line: all functions, each figure by the name that [`status::Profile`] has for it; those that
/// are not known are absent, as there.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn json_line(counted: &Counted) -> io::Result<String> {
    let mut functions: Vec<&Row> = counted.rows.iter().collect();
    functions.sort_by(|one, other| heaviest_first(one, other));
    let function = |one: &&Row| {
        let total_ns = one.timed.map(|_| one.total_ns);
        known([
            ("address", json!((one.key != one.name).then_some(&one.key))),
            ("name", json!(one.name)),
            ("hits", json!(one.hits)),
            ("timed", json!(one.timed)),
            ("total_ns", json!(total_ns)),
            ("self_ns", json!(one.self_ns)),
            ("clamped", json!(one.clamped)),
        ])
    };
    let functions: Vec<Value> = functions.iter().map(function).collect();
    let said = known([
        ("session", json!(counted.session)),
        ("clock_period_ns", json!(counted.period_ns)),
        ("functions", json!(functions)),
        ("unread", json!(counted.unread)),
    ]);
    Ok(printable::json(&said)? + "\n")
}

/// An object of what is not null.
fn known<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    let known = pairs.into_iter().filter(|(_, value)| !value.is_null());
    known.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The order of a table: most self time first, then most calls.
#[must_use]
pub fn heaviest_first(one: &Row, other: &Row) -> Ordering {
    let by_weight = other.weight().cmp(&one.weight());
    by_weight.then_with(|| one.name.cmp(&other.name))
}

/// What a call took on the average. Shorter times than the clock can tell are said as such.
#[must_use]
pub fn average(one: &Row, period_ns: Option<u64>) -> Option<String> {
    let average = one.average_ns()?;
    Some(match shorter(average, period_ns) {
        Some(period) => format!("<{}", time(period)),
        None => time(average),
    })
}

/// Three digits and a unit.
#[must_use]
pub fn time(ns: u64) -> String {
    for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= scale {
            return format!("{}.{:03} {unit}", ns / scale, ns % scale * 1000 / scale);
        }
    }
    format!("{ns} ns")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use status::{Profile, ProfiledFunction};

    use super::*;

    fn function(name: &str, hits: u64, total_ns: u64, self_ns: Option<u64>) -> Row {
        Row {
            key: format!("0x{name}"),
            name: name.to_owned(),
            hits,
            timed: self_ns.map(|_| hits),
            total_ns,
            self_ns,
            clamped: None,
        }
    }

    fn counted(at: Instant, hits: u64, unread: u64) -> Counted {
        Counted {
            at,
            session: "p".to_owned(),
            period_ns: Some(100),
            unread,
            rows: vec![
                function("leaf", hits, 900, Some(900)),
                function("root", 10, 2_500_000, Some(1_000_000)),
            ],
        }
    }

    #[test]
    fn programs_are_told_what_is_known_of_each_function() {
        let mut heard = counted(Instant::now(), 3, 2);
        heard.period_ns = None;
        heard.rows.truncate(1);
        heard.rows.push(Row {
            key: "open".to_owned(),
            name: "open".to_owned(),
            hits: 1,
            ..Row::default()
        });
        let said: Value = serde_json::from_str(&json_line(&heard).unwrap()).unwrap();
        let leaf = json!({
            "address": "0xleaf", "name": "leaf", "hits": 3, "timed": 3, "total_ns": 900, "self_ns": 900,
        });
        let open = json!({"name": "open", "hits": 1});
        let expected = json!({"session": "p", "functions": [leaf, open], "unread": 2});
        assert_eq!(said, expected);
    }

    /// They were once zeros as any other.
    #[test]
    fn times_below_zero_are_counted_and_said() {
        let of = |name: &str, clamped| ProfiledFunction {
            address: format!("0x{name}"),
            name: name.to_owned(),
            hits: 3,
            clamped,
            ..ProfiledFunction::default()
        };
        let mut profile = Profile {
            functions: vec![of("leaf", 2), of("root", 5)],
            ..Profile::default()
        };
        let counted = Counted::of(&profile);
        let text = table(&counted, None, 1);
        let said = "\n# 7 times below zero, counted as zero: ";
        assert!(text.contains(said), "{text}");
        let told: Value = serde_json::from_str(&json_line(&counted).unwrap()).unwrap();
        assert_eq!(told["functions"][0]["clamped"], 2);
        profile.functions = vec![of("leaf", 0)];
        let text = table(&Counted::of(&profile), None, 1);
        assert!(!text.contains("below zero"), "{text}");
    }

    #[test]
    fn most_self_time_comes_first_and_what_is_shorter_than_the_period_is_said() {
        let at = Instant::now();
        let now = counted(at + Duration::from_secs(2), 30, 0);
        let text = table(&now, Some(&counted(at, 10, 0)), 20);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[1].last(), Some(&"root"));
        assert_eq!(
            rows[2],
            ["30", "10", "900", "ns", "900", "ns", "<100", "ns", "leaf"]
        );
        assert!(
            text.contains("1.000 ms") && text.contains("2.500 ms"),
            "{text}"
        );
        assert!(text.ends_with("# session p: 40 hits of 2 functions\n"));
        let first = table(&now, None, 1);
        assert!(first.contains(" - ") && !first.contains("leaf"), "{first}");
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_what_was_not_counted_is_said() {
        let mut now = counted(Instant::now(), 30, 5);
        now.rows = vec![function("bad\u{1b}name", 3, 0, None)];
        let text = table(&now, None, 20);
        assert!(text.contains("# session p: 3 hits (0 timed) of 1 function\n"));
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["3", "-", "-", "-", "-", "bad?name"]);
        assert!(text.ends_with("# 5 events came faster than they were taken: not counted\n"));
    }
}
