//! The list of changes: `tests/mutants.txt`.
//!
//! ```text
//! file tracer/trace/src/graph/selection.rs    all that follow are in this file
//! tests trace graph::                    a suite, and which of its tests
//! mutant threshold-strict                 a name
//! was elapsed >= threshold                what is to be found; spaces and line ends do not matter
//! nth 2                                   when it is there several times
//! now elapsed > threshold                 what stands there instead; nothing, of a statement
//! survives WHY                            no test can notice
//! ```
//!
//! A change in two places is two entries, the second with the name of the first and `+2`.
//! Both texts are an expression, or statements that end in `;`.

use super::Failed;

/// One change.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    pub name: String,
    pub file: String,
    /// `trace`, `tracer` or `vmm`: the crate's own tests; else a test of the `tests` crate.
    pub suite: String,
    /// What the names of its tests contain.
    pub filters: Vec<String>,
    pub was: String,
    pub now: String,
    /// Which of the places.
    pub nth: Option<usize>,
    /// Why no test notices.
    pub survives: Option<String>,
}

impl Entry {
    /// [`Self::filters`], as arguments.
    pub fn filters(&self) -> Vec<&str> {
        self.filters.iter().map(String::as_str).collect()
    }

    /// Whether it goes with another one.
    pub fn is_part(&self) -> bool {
        self.name.contains('+')
    }
}

/// Reads it.
///
/// # Errors
/// The line that is none.
pub fn read(text: &str) -> Result<Vec<Entry>, Failed> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut next = Entry::default();
    for (number, line) in (1..).zip(text.lines()) {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        let last = entries.last_mut().ok_or("nothing is changed yet");
        match key {
            "" | "#" => {}
            "file" => rest.clone_into(&mut next.file),
            "tests" => {
                let mut words = rest.split(' ').map(str::to_owned);
                next.suite = words.next().unwrap_or_default();
                next.filters = words.collect();
            }
            "mutant" => {
                let name = rest.to_owned();
                entries.push(Entry {
                    name,
                    ..next.clone()
                });
            }
            "was" => rest.clone_into(&mut last?.was),
            "now" => rest.clone_into(&mut last?.now),
            "nth" => last?.nth = Some(rest.parse()?),
            "survives" => last?.survives = Some(rest.to_owned()),
            _ => return Err(format!("tests/mutants.txt, line {number}: {line:?}").into()),
        }
    }
    for (index, entry) in entries.iter().enumerate() {
        let is_twice = entries
            .iter()
            .take(index)
            .any(|other| other.name == entry.name);
        if is_twice || entry.was.is_empty() {
            return Err(format!("{}: there twice, or without 'was'", entry.name).into());
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without what does not matter.
    fn tight(text: &str) -> String {
        text.split_whitespace().collect()
    }

    #[test]
    fn what_is_to_be_changed_is_there() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let entries = read(include_str!("../../../mutants.txt")).unwrap();
        let is_there = |entry: &Entry| {
            let source = std::fs::read_to_string(format!("{root}/{}", entry.file));
            let places = tight(&source.unwrap()).matches(&tight(&entry.was)).count();
            // A short text can be a part of a longer word: that it is there once is for who weaves it in.
            places >= entry.nth.unwrap_or(1)
        };
        let stale = entries.iter().filter(|entry| !is_there(entry));
        let stale: Vec<_> = stale.map(|entry| (&entry.file, &entry.name)).collect();
        assert!(stale.is_empty(), "the code has changed: {stale:?}");
    }

    #[test]
    fn an_entry_has_what_stands_before_it() {
        let text = "# a\nfile f.rs\ntests vmm a:: b\nmutant one\nwas a < b\nnow a <= b\nmutant two\nwas x();\nnth 2\nsurvives so\n";
        let entries = read(text).unwrap();
        let [one, two] = &entries[..] else {
            panic!("{entries:?}")
        };
        assert_eq!(
            (&*one.file, &*one.suite, &one.filters[..]),
            ("f.rs", "vmm", &["a::".to_owned(), "b".to_owned()][..])
        );
        assert_eq!((&*one.was, &*one.now, one.nth), ("a < b", "a <= b", None));
        assert_eq!(
            (&*two.was, &*two.now, two.nth, two.survives.as_deref()),
            ("x();", "", Some(2), Some("so"))
        );
        assert!(read("mutant one\nmutant one\n").is_err() && read("what\n").is_err());
    }
}
