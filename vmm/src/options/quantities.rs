//! Sizes and durations as options of the command line and as parameters of the control socket: the same
//! parser, the same units. A number alone is in what it was always in.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use terms::quantity::{self, BadQuantity};

/// The longest time limit.
const LIMIT_MAX: Duration = Duration::from_secs(1 << 32);

/// MiB.
///
/// # Errors
/// What is no size.
pub fn mib(text: &str) -> Result<u64, BadQuantity> {
    quantity::sized_in(text, "MiB")
}

/// KiB.
///
/// # Errors
/// What is no size.
pub fn kib(text: &str) -> Result<u64, BadQuantity> {
    quantity::sized_in(text, "KiB")
}

/// Bytes.
///
/// # Errors
/// What is no size.
pub fn in_bytes(text: &str) -> Result<u64, BadQuantity> {
    quantity::bytes(text, "B")
}

/// Nanoseconds.
///
/// # Errors
/// What is no duration.
pub fn ns(text: &str) -> Result<u64, BadQuantity> {
    quantity::nanoseconds(text, "ns")
}

/// A duration, of which a number alone is in milliseconds.
///
/// # Errors
/// What is no duration.
pub fn milliseconds(text: &str) -> Result<Duration, BadQuantity> {
    quantity::nanoseconds(text, "ms").map(Duration::from_nanos)
}

/// A time limit, of which a number alone is in seconds.
///
/// # Errors
/// What is no duration, or passes at once, or never.
pub fn limit(text: &str) -> Result<Duration, String> {
    let limit = quantity::nanoseconds(text, "s").map_err(|error| error.to_string())?;
    let limit = Duration::from_nanos(limit);
    match limit {
        Duration::ZERO => Err("a limit of 0 has passed already: give more".to_owned()),
        limit if limit > LIMIT_MAX => {
            Err(format!("at most {} s are possible", LIMIT_MAX.as_secs()))
        }
        limit => Ok(limit),
    }
}

/// As JSON has it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or a text with a unit")]
enum Written {
    Number(u64),
    Text(String),
}

impl Written {
    fn read<E: serde::de::Error>(
        self,
        parse: fn(&str) -> Result<u64, BadQuantity>,
    ) -> Result<u64, E> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Text(text) => parse(&text).map_err(E::custom),
        }
    }
}

/// Nanoseconds in JSON.
///
/// # Errors
/// What is neither a number nor a duration.
pub fn ns_in<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Written::deserialize(from)?.read(ns)
}

/// Nanoseconds in JSON, if any.
///
/// # Errors
/// What is neither a number nor a duration.
pub fn some_ns_in<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let written = Option::<Written>::deserialize(from)?;
    written.map(|written| written.read(ns)).transpose()
}

/// KiB in JSON.
///
/// # Errors
/// What is neither a number nor a size.
pub fn kib_in<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Written::deserialize(from)?.read(kib)
}

/// KiB in JSON, if any.
///
/// # Errors
/// What is neither a number nor a size.
pub fn some_kib_in<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let written = Option::<Written>::deserialize(from)?;
    written.map(|written| written.read(kib)).transpose()
}

/// Bytes in JSON, if any.
///
/// # Errors
/// What is neither a number nor a size.
pub fn some_bytes_in<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let written = Option::<Written>::deserialize(from)?;
    written.map(|written| written.read(in_bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::session::SessionOptions;

    #[test]
    fn a_time_limit_passes_some_day() {
        assert_eq!(limit("1.5").unwrap(), Duration::from_millis(1500));
        assert_eq!(limit("250ms").unwrap(), Duration::from_millis(250));
        for bad in ["0", "0ns", "2000000h", "x"] {
            assert!(!limit(bad).unwrap_err().is_empty(), "{bad}");
        }
    }

    #[test]
    fn parameters_are_numbers_or_texts_with_units() {
        let parse = serde_json::from_str::<SessionOptions>;
        let numbers =
            r#"{"ring_size":1024,"clock_period":1000,"stack_size":16,"record_bytes":4096}"#;
        let texts =
            r#"{"ring_size":"1M","clock_period":"1us","stack_size":"16K","record_bytes":"4K"}"#;
        assert_eq!(parse(numbers).unwrap(), parse(texts).unwrap());
        for (wrong, word) in [
            (r#"{"ring_size":"1X"}"#, "is no size"),
            (r#"{"ring_size":-1}"#, "a number, or a text with a unit"),
            (r#"{"clock_period":"1K"}"#, "is no duration"),
            (
                r#"{"record_bytes":true}"#,
                "a number, or a text with a unit",
            ),
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
