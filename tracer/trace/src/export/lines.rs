//! A file of lines that is written: lines wait for each other, and are in it whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::whole::{Cut, Whole};

/// Bytes that wait at most. A longer line waits for nothing.
const ROOM: usize = 8 << 10;

/// Such a file.
#[derive(Debug)]
pub(super) struct Lines<F> {
    file: Whole<F>,
    waiting: Vec<u8>,
    /// How often each thing is told.
    counts: BTreeMap<String, Count>,
}

/// In so many lines.
#[derive(Debug, Default)]
struct Count {
    written: u64,
    waiting: u64,
}

impl<F: Write + Cut> Lines<F> {
    /// Of a new file.
    pub const fn new(file: F) -> Self {
        Self {
            file: Whole::new(file),
            waiting: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Where they are written to.
    #[cfg(test)]
    pub const fn file(&mut self) -> &mut F {
        self.file.file()
    }

    /// Adds a line, in which a thing of this name is told, if that is to be counted.
    ///
    /// # Errors
    /// Why it is not added. What waits for the file still does.
    pub fn add(&mut self, line: &str, name: Option<&str>) -> io::Result<()> {
        if self.waiting.len().saturating_add(line.len()) > ROOM {
            self.flush()?;
        }
        let waits = line.len() <= ROOM;
        match waits {
            true => self.waiting.extend_from_slice(line.as_bytes()),
            false => self.file.add(line.as_bytes())?,
        }
        let Some(name) = name else { return Ok(()) };
        let count = match self.counts.get_mut(name) {
            Some(count) => count,
            None => self.counts.entry(name.to_owned()).or_default(),
        };
        match waits {
            true => count.waiting += 1,
            false => count.written += 1,
        }
        Ok(())
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// Why it waits still.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return self.file.mend();
        }
        self.file.add(&self.waiting)?;
        self.waiting.clear();
        for count in self.counts.values_mut() {
            count.written += std::mem::take(&mut count.waiting);
        }
        Ok(())
    }

    /// How often the file has each thing.
    pub fn written(&self) -> impl Iterator<Item = (&String, u64)> {
        let counts = self.counts.iter().map(|(name, of)| (name, of.written));
        counts.filter(|(_, count)| *count > 0)
    }

    /// How many things it may never have.
    pub fn waiting(&self) -> u64 {
        self.counts.values().map(|count| count.waiting).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::whole::tests::Disk;

    fn lines(room: usize) -> Lines<Disk> {
        Lines::new(Disk {
            room,
            ..Disk::default()
        })
    }

    #[test]
    fn what_waits_is_in_the_file_once_and_counted_when_it_is() {
        let mut lines = lines(10);
        for line in ["one\n", "two\n", "three\n"] {
            lines.add(line, Some(line.trim())).unwrap();
        }
        lines.add("nothing\n", None).unwrap();
        lines.flush().unwrap_err();
        assert_eq!((lines.written().count(), lines.waiting()), (0, 3));
        assert_eq!(lines.file().bytes, b"");
        lines.file().room = 100;
        lines.add("one\n", Some("one")).unwrap();
        lines.flush().unwrap();
        let written: Vec<_> = lines.written().map(|(name, of)| (&**name, of)).collect();
        assert_eq!(written, [("one", 2), ("three", 1), ("two", 1)]);
        assert_eq!(lines.waiting(), 0);
        assert_eq!(lines.file().bytes, b"one\ntwo\nthree\nnothing\none\n");
    }

    /// What waits longer has its place before it.
    #[test]
    fn a_long_line_comes_after_those_that_wait_and_a_part_of_it_is_cut_off() {
        for uncut in 0..2 {
            let mut lines = lines(1000);
            lines.file().uncut = uncut;
            lines.add("one\n", Some("short")).unwrap();
            let long = "x".repeat(ROOM) + "\n";
            lines.add(&long, Some("long")).unwrap_err();
            assert_eq!(
                lines.written().collect::<Vec<_>>(),
                [(&"short".to_owned(), 1)]
            );
            lines.file().room = 100_000;
            for line in ["two\n", &long] {
                lines.add(line, Some("more")).unwrap();
            }
            let expected = format!("one\ntwo\n{long}");
            assert!(lines.file().bytes == expected.as_bytes(), "{uncut}");
        }
    }
}
