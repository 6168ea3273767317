//! `vmm ctl profile` and `vmm ctl top`: what a profile session has counted, once or again and again.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use terms::quantity::plain;
use trace::export::resolution::shorter;

use super::stdout;
use crate::control::client;
use crate::control::methods::sessions::OfSession;
use crate::control::methods::tracing::ShowProfile;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, TopOptions};
use tracer::tracing::status::{Profile, ProfiledFunction};

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[J";
/// Rows of a table that is refreshed.
pub const ROWS: usize = 20;

/// Prints tables until there were enough of them, nobody reads them any more, or it is interrupted. Where the output is no
/// terminal they follow each other as plain text; one of them, if nothing else is asked for.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn top(options: &CtlOptions, top: &TopOptions) -> Result<ExitStatus, Failure> {
    let session = top.session.clone();
    let method = ShowProfile(OfSession { session });
    let is_terminal = std::io::stdout().is_terminal();
    let count = top.count.unwrap_or(if is_terminal { u64::MAX } else { 1 });
    let mut before: Option<(Profile, Instant)> = None;
    for number in 0..count {
        if number > 0 {
            std::thread::sleep(top.interval);
        }
        let profile = client::call(&options.control, &method).map_err(Failure::bad_input)?;
        let now = Instant::now();
        let rate = before
            .as_ref()
            .map(|(profile, then)| (profile, now.duration_since(*then)));
        let text = table(&profile, rate, ROWS);
        let clear = if is_terminal { CLEAR } else { "" };
        if !stdout::offer(format!("{clear}{text}"))? {
            break;
        }
        before = Some((profile, now));
    }
    Ok(ExitStatus::Success)
}

/// The functions of most self time first; with what was before, also calls a second.
pub fn table(profile: &Profile, before: Option<(&Profile, Duration)>, rows: usize) -> String {
    let mut functions: Vec<&ProfiledFunction> = profile.functions.iter().collect();
    let key = |one: &ProfiledFunction| (one.self_ns.unwrap_or(one.total_ns), one.hits);
    functions.sort_by(|one, other| {
        key(other)
            .cmp(&key(one))
            .then_with(|| one.name.cmp(&other.name))
    });
    let mut text = format!(
        "{:>12} {:>10} {:>12} {:>12} {:>10}  FUNCTION\n",
        "HITS", "HITS/S", "SELF", "TOTAL", "AVG"
    );
    for one in functions.iter().take(rows) {
        let rate = before.and_then(|(before, passed)| {
            let was = before.functions.iter().find(|f| f.address == one.address);
            let more = one.hits.saturating_sub(was.map_or(0, |was| was.hits));
            let milliseconds = u64::try_from(passed.as_millis()).ok()?.max(1);
            Some((more.saturating_mul(1000) / milliseconds).to_string())
        });
        let dash = || "-".to_owned();
        let _ = writeln!(
            text,
            "{:>12} {:>10} {:>12} {:>12} {:>10}  {}",
            one.hits,
            rate.unwrap_or_else(dash),
            one.self_ns.map_or_else(dash, time),
            time(one.total_ns),
            average(one, profile.clock_period_ns),
            one.name
        );
    }
    let hits = profile.functions.iter().map(|one| one.hits);
    let _ = writeln!(
        text,
        "# session {}: {} of {}",
        profile.session,
        plain(hits.fold(0, u64::saturating_add), "hit"),
        plain(profile.functions.len() as u64, "function")
    );
    text
}

/// Shorter times than the clock can tell are said as such.
fn average(one: &ProfiledFunction, period_ns: Option<u64>) -> String {
    let average = one.total_ns / one.hits.max(1);
    match shorter(average, period_ns) {
        Some(period) => format!("<{}", time(period)),
        None => time(average),
    }
}

/// Three digits and a unit.
fn time(ns: u64) -> String {
    for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= scale {
            return format!("{}.{:03} {unit}", ns / scale, ns % scale * 1000 / scale);
        }
    }
    format!("{ns} ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, hits: u64, total_ns: u64, self_ns: Option<u64>) -> ProfiledFunction {
        ProfiledFunction {
            address: format!("0x{name}"),
            name: name.to_owned(),
            hits,
            total_ns,
            self_ns,
        }
    }

    fn profile(hits: u64) -> Profile {
        Profile {
            session: "p".to_owned(),
            clock_period_ns: Some(100),
            functions: vec![
                function("leaf", hits, 900, Some(900)),
                function("root", 10, 2_500_000, Some(1_000_000)),
            ],
        }
    }

    #[test]
    fn most_self_time_comes_first_and_what_is_shorter_than_the_period_is_said() {
        let text = table(
            &profile(30),
            Some((&profile(10), Duration::from_secs(2))),
            20,
        );
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
        assert!(table(&profile(1), None, 1).contains(" - "));
        assert!(!table(&profile(1), None, 1).contains("leaf"));
    }
}
