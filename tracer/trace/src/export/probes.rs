//! The table of the probes of a trace: the file `probes.json` beside the events, an array with an object for each
//! probe that the session has recorded, in the order in which they were added. The events of a probe go by its
//! name and have its values as their fields.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use terms::printable;

/// The file's name.
pub const PROBES_FILE: &str = "probes.json";

/// What a trace says of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeNote {
    /// Its number.
    pub id: u32,
    /// What its events are called.
    pub name: String,
    /// As the user wrote it.
    pub probe: String,
    /// The instruction before which it is hit.
    pub address: String,
    /// The same as function and offset.
    pub place: String,
    /// Whether it is hit when the function returns, and not at that address; traces of before 2026-11-26 do not say.
    #[serde(default)]
    pub is_return: Option<bool>,
    /// How it was put into the text.
    pub tactic: String,
    /// What it captures, in order.
    pub values: Vec<ValueNote>,
}

/// What a trace says of a captured value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueNote {
    /// What it is called.
    pub name: String,
    /// Its type, such as `u32`.
    pub r#type: String,
}

/// Writes the table of the trace in `directory`: a reader finds the old one or the new one.
///
/// # Errors
/// The file and what the system says of it.
pub fn write(directory: &Path, probes: &[ProbeNote]) -> Result<(), (PathBuf, io::Error)> {
    let path = directory.join(PROBES_FILE);
    let fresh = directory.join(format!("{PROBES_FILE}.new"));
    let text = printable::json_pretty(probes).map_err(io::Error::from);
    text.and_then(|text| fs::write(&fresh, text))
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(|error| (path, error))
}

/// Whether a file has the name of this one.
#[must_use]
pub fn is_probes_file(name: &str) -> bool {
    name.strip_suffix(".new").unwrap_or(name) == PROBES_FILE
}
