//! Durations and sizes as people write them: `10us`, `1.5s`, `512M`, or a number alone. One parser, so that
//! every option and every parameter takes the same units. Exact: what is no whole number of the smallest
//! unit is refused, not rounded. And numbers as people read them.

/// Names of units, each with how many of the smallest it is.
type Units = &'static [(&'static str, u64)];

const DURATIONS: Units = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

const SIZES: Units = &[
    ("B", 1),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
];

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    /// No duration.
    #[error(
        "'{text}' is no duration: write a number and a unit, as 10us or 1.5s (ns, us, ms, s, min, h); a number alone is in {alone}"
    )]
    Duration {
        /// As given.
        text: String,
        /// What a number alone is in.
        alone: &'static str,
    },
    /// No size.
    #[error(
        "'{text}' is no size: write a number and a unit, as 64K or 1.5G (B, K, M, G); a number alone is in {alone}"
    )]
    Size {
        /// As given.
        text: String,
        /// What a number alone is in.
        alone: &'static str,
    },
    /// Finer than can be.
    #[error("'{text}' is not a whole number of {unit}")]
    Fraction {
        /// As given.
        text: String,
        /// The smallest unit.
        unit: &'static str,
    },
}

/// A duration in nanoseconds; a number alone is in `alone`, which is the name of a unit.
///
/// # Errors
/// [`BadQuantity`] for what is none, or does not fit.
pub fn nanoseconds(text: &str, alone: &'static str) -> Result<u64, BadQuantity> {
    let bad = || BadQuantity::Duration {
        text: text.to_owned(),
        alone,
    };
    let (whole, rest) = scaled(text, DURATIONS, alone).ok_or_else(bad)?;
    match rest {
        true => Err(fraction(text, "nanoseconds")),
        false => Ok(whole),
    }
}

/// A size in bytes; a number alone is in `alone`, which is the name of a unit.
///
/// # Errors
/// [`BadQuantity`] for what is none, or does not fit.
pub fn bytes(text: &str, alone: &'static str) -> Result<u64, BadQuantity> {
    let bad = || BadQuantity::Size {
        text: text.to_owned(),
        alone,
    };
    let (whole, rest) = scaled(text, SIZES, alone).ok_or_else(bad)?;
    match rest {
        true => Err(fraction(text, "bytes")),
        false => Ok(whole),
    }
}

/// A size in units of so many bytes.
///
/// # Errors
/// [`BadQuantity`], also for what is no whole number of them.
pub fn sized_in(text: &str, unit: &'static str) -> Result<u64, BadQuantity> {
    // However large: whoever asks for it knows better what is too much.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(number) = text.parse().ok().filter(|_| is_number) {
        return Ok(number);
    }
    let bytes = bytes(text, unit)?;
    let scale = scale(SIZES, unit).unwrap_or(1);
    match bytes.is_multiple_of(scale) {
        true => Ok(bytes / scale),
        false => Err(fraction(text, unit)),
    }
}

fn fraction(text: &str, unit: &'static str) -> BadQuantity {
    let text = text.to_owned();
    BadQuantity::Fraction { text, unit }
}

fn scale(units: Units, name: &str) -> Option<u64> {
    let unit = units
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(name));
    unit.map(|(_, scale)| *scale)
}

/// A number times its unit, and whether something is left over. None for what is no number with a unit, or
/// too large.
fn scaled(text: &str, units: Units, alone: &str) -> Option<(u64, bool)> {
    let is_number = |char: char| char.is_ascii_digit() || char == '.';
    let end = text.find(|char| !is_number(char)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = if unit.is_empty() { alone } else { unit };
    let scale = u128::from(scale(units, unit)?);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u64>().ok()?;
    let digits = u32::try_from(part.len())
        .ok()
        .filter(|digits| *digits < 16)?;
    let part = u128::from(part.parse::<u64>().ok()?).checked_mul(scale)?;
    let ten = 10u128.pow(digits);
    let sum = u128::from(whole)
        .checked_mul(scale)?
        .checked_add(part / ten)?;
    Some((u64::try_from(sum).ok()?, part % ten != 0))
}

/// A number with its thousands apart, and what is counted: `1 call`, `1,019 calls`.
#[must_use]
pub fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// The same without thousands apart, for lines that programs read: `1 call`, `1019 calls`.
#[must_use]
pub fn plain(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A part of a whole in percent, as `99.7 %`: never *0.0* of what there is.
#[must_use]
pub fn percent(part: u64, whole: u128) -> String {
    let tenths = (u128::from(part) * 1000 / whole.max(1)).clamp(1, 1000);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Nanoseconds as seconds, to the nanosecond: `1.000000002`.
#[must_use]
pub fn in_seconds(nanoseconds: u64) -> String {
    let (whole, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    format!("{whole}.{rest:09}")
}

/// Nanoseconds as microseconds, to the nanosecond: `46.080`.
#[must_use]
pub fn in_microseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

/// A number with its thousands apart.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_in_the_one_that_is_usual() {
        for (text, expected) in [
            ("10us", 10_000),
            ("10µs", 10_000),
            ("1.5", 1_500_000_000),
            ("0.25ms", 250_000),
            ("3", 3_000_000_000),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(nanoseconds(text, "s"), Ok(expected), "{text}");
        }
        assert_eq!(nanoseconds("100", "ns"), Ok(100));
    }

    #[test]
    fn sizes_have_units_or_are_in_the_one_that_is_usual() {
        for (text, expected) in [
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("1g", 1 << 30),
            ("64KiB", 64 << 10),
            ("64kib", 64 << 10),
            ("512", 512 << 20),
            ("4096B", 4096),
        ] {
            assert_eq!(bytes(text, "MiB"), Ok(expected), "{text}");
        }
        assert_eq!(sized_in("1M", "KiB"), Ok(1024));
        assert_eq!(sized_in("4096", "KiB"), Ok(4096));
        assert_eq!(sized_in(&u64::MAX.to_string(), "KiB"), Ok(u64::MAX));
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(counted(1, "call"), "1 call");
        assert_eq!(counted(0, "call"), "0 calls");
        assert_eq!(counted(375_952, "call"), "375,952 calls");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn times_are_shown_to_the_nanosecond() {
        assert_eq!(in_seconds(1_000_000_002), "1.000000002");
        assert_eq!(in_microseconds(46_080), "46.080");
        assert_eq!(in_microseconds(7), "0.007");
    }

    #[test]
    fn what_is_none_is_told_with_what_would_be() {
        let huge = u64::MAX.to_string();
        for text in [
            "",
            "x",
            "-1",
            "1.2.3",
            "1.",
            ".5",
            "10 us",
            "10m",
            "1e3",
            "us",
            "10usus",
            &huge,
            "1.00000000000000000000001",
            "+1",
            "1K",
            "٣s",
        ] {
            let error = nanoseconds(text, "s").unwrap_err().to_string();
            assert!(error.contains("a number alone is in s"), "{error}");
        }
        let error = bytes("1s", "MiB").unwrap_err().to_string();
        assert!(
            error.contains("'1s' is no size") && error.contains("in MiB"),
            "{error}"
        );
        for (error, whole) in [
            (nanoseconds("0.5ns", "s"), "nanoseconds"),
            (bytes("0.3K", "KiB"), "bytes"),
            (sized_in("1000B", "KiB"), "KiB"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("not a whole number of {whole}")),
                "{error}"
            );
        }
    }
}
