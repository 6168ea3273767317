//! How tracing has ended, as one line for each session that traced: what there is, what is missing, what to do.

use std::fmt;

use terms::quantity::{counted, grouped, in_microseconds, percent};
use trace::export::compact::Kept;
use trace::export::uftrace::Tally;
use tracer::tracing::closing::Closing;

/// A session's last line.
#[derive(Debug, Clone, Copy)]
pub struct ClosingLine<'a>(pub &'a Closing);

impl fmt::Display for ClosingLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Closing::Written {
                directory,
                tally,
                held,
            } => {
                let at = directory.display();
                write!(f, "{at}: ")?;
                written(f, tally, *held)?;
                write!(f, "; vmm report {at}")
            }
            Closing::Recorded {
                directory,
                kept,
                held,
            } => {
                let at = directory.display();
                write!(f, "{at}: ")?;
                recorded(f, kept, *held)?;
                write!(f, "; vmm report {at}")
            }
            Closing::Unkept { session, records } => write!(
                f,
                "session {session}: {} made, none kept: --output DIR writes them",
                counted(*records, "record")
            ),
            Closing::Unasked(profile) => write!(f, "session {}: a profile", profile.session),
        }
    }
}

fn written(f: &mut fmt::Formatter<'_>, tally: &Tally, held: u64) -> fmt::Result {
    let Tally {
        calls,
        functions,
        events,
        records,
        lost,
        anomalies,
        waits,
        waited_ns,
    } = *tally;
    write!(
        f,
        "{} of {}",
        counted(calls, "call"),
        counted(functions, "function")
    )?;
    if events > 0 {
        write!(f, ", {}", counted(events, "event"))?;
    }
    let all = u128::from(records) + u128::from(lost);
    missing(f, (lost, all), held, waits)?;
    waited(f, waits, waited_ns)?;
    doubtful(f, anomalies)
}

/// What its rings brought, put together by who reads it.
fn recorded(f: &mut fmt::Formatter<'_>, kept: &Kept, held: u64) -> fmt::Result {
    let Kept {
        records,
        lost,
        doubts,
        waits,
        waited_ns,
        bytes,
    } = *kept;
    let (records_text, bytes) = (counted(records, "record"), counted(bytes, "byte"));
    write!(f, "{records_text} in {bytes}")?;
    let all = u128::from(records) + u128::from(lost);
    missing(f, (lost, all), held, waits)?;
    waited(f, waits, waited_ns)?;
    doubtful(f, doubts)
}

/// How many are lost of all, and how not to lose as many. Rings that vCPUs wait at are large enough; and what was lost while
/// dumps `held` the rings is more with larger ones.
fn missing(
    f: &mut fmt::Formatter<'_>,
    (lost, all): (u64, u128),
    held: u64,
    waits: u64,
) -> fmt::Result {
    write!(f, ", {} lost", grouped(lost))?;
    if lost > 0 {
        write!(f, " ({})", percent(lost, all))?;
    }
    let held = held.min(lost);
    if held > 0 {
        let of_them = match held == lost {
            true => String::new(),
            false => format!(", {} of them", grouped(held)),
        };
        write!(
            f,
            "{of_them} while a dump copied the rings (with --mode lossless the guest waits for that)"
        )?;
    }
    if lost > held && waits == 0 {
        f.write_str(": raise --ring-size or narrow --filter")?;
    }
    Ok(())
}

/// What it has cost that nothing is lost.
fn waited(f: &mut fmt::Formatter<'_>, waits: u64, waited_ns: u64) -> fmt::Result {
    match waits {
        0 => Ok(()),
        _ => {
            let (waits, us) = (counted(waits, "wait"), in_microseconds(waited_ns));
            write!(f, ", {waits} of vCPUs for the reader ({us} us)")
        }
    }
}

/// A report says which and why.
fn doubtful(f: &mut fmt::Formatter<'_>, cases: u64) -> fmt::Result {
    match cases {
        0 => Ok(()),
        _ => write!(f, ", {} of doubt", counted(cases, "case")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn line(tally: Tally) -> String {
        line_of(tally, 0)
    }

    fn line_of(tally: Tally, held: u64) -> String {
        let directory = PathBuf::from("trace");
        let closing = Closing::Written {
            directory,
            tally,
            held,
        };
        ClosingLine(&closing).to_string()
    }

    /// Larger rings take longer to copy.
    #[test]
    fn of_what_was_lost_for_a_dump_another_way_is_said() {
        let tally = Tally {
            records: 1,
            lost: 2,
            ..Tally::default()
        };
        let held = "while a dump copied the rings (with --mode lossless the guest waits for that)";
        for (times, said) in [
            (
                0,
                "2 lost (66.6 %): raise --ring-size or narrow --filter; vmm".to_owned(),
            ),
            (
                1,
                format!(
                    "2 lost (66.6 %), 1 of them {held}: raise --ring-size or narrow --filter; vmm"
                ),
            ),
            (2, format!("2 lost (66.6 %) {held}; vmm")),
            (3, format!("2 lost (66.6 %) {held}; vmm")),
        ] {
            let line = line_of(tally, times);
            assert!(line.contains(&said), "{line}");
        }
    }

    #[test]
    fn what_is_there_and_what_is_missing_is_one_line() {
        let tally = Tally {
            calls: 1019,
            records: 2038,
            functions: 6,
            lost: 375_952,
            ..Tally::default()
        };
        assert_eq!(
            line(tally),
            "trace: 1,019 calls of 6 functions, 375,952 lost (99.4 %): raise --ring-size or narrow --filter; vmm report trace"
        );
        let whole = Tally {
            calls: 1,
            functions: 1,
            events: 3,
            anomalies: 2,
            waits: 5,
            waited_ns: 1_234_567,
            ..Tally::default()
        };
        assert_eq!(
            line(whole),
            "trace: 1 call of 1 function, 3 events, 0 lost, 5 waits of vCPUs for the reader (1234.567 us), 2 cases of doubt; vmm report trace"
        );
    }

    #[test]
    fn a_loss_is_never_none_and_never_more_than_all() {
        let lost = |records, lost| {
            line(Tally {
                records,
                lost,
                ..Tally::default()
            })
        };
        assert!(lost(10_000_000, 1).contains("(0.1 %)"));
        assert!(lost(0, u64::MAX).contains("(100.0 %)"));
        assert!(lost(1, 1_000_000).contains("(99.9 %)"));
        assert!(lost(u64::MAX, u64::MAX).contains("(50.0 %)"));
    }

    #[test]
    fn of_a_compact_trace_records_are_counted_and_bytes() {
        let kept = Kept {
            records: 2038,
            lost: 2,
            doubts: 1,
            waits: 1,
            waited_ns: 5_000,
            bytes: 4096,
        };
        let directory = PathBuf::from("trace");
        let line = |kept| {
            let directory = directory.clone();
            let closing = Closing::Recorded {
                directory,
                kept,
                held: 0,
            };
            ClosingLine(&closing).to_string()
        };
        let expected = "trace: 2,038 records in 4,096 bytes, 2 lost (0.1 %), 1 wait of vCPUs for the reader (5.000 us), 1 case of doubt; vmm report trace";
        assert_eq!(
            line(kept),
            expected,
            "larger rings mend nothing where vCPUs wait"
        );
        let full = Kept { waits: 0, ..kept };
        let expected = "trace: 2,038 records in 4,096 bytes, 2 lost (0.1 %): raise --ring-size or narrow --filter, 1 case of doubt; vmm report trace";
        assert_eq!(line(full), expected);
    }

    #[test]
    fn records_that_nobody_has_are_said() {
        let unkept = Closing::Unkept {
            session: "default".to_owned(),
            records: 1,
        };
        assert!(unkept.is_warning());
        assert_eq!(
            ClosingLine(&unkept).to_string(),
            "session default: 1 record made, none kept: --output DIR writes them"
        );
    }
}
