//! The lists of all threads: their tasks, and what these are called. A thread is in both, as a whole, or in none.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::layout::NAMES_FILE;
use crate::export::whole::{Cut, Whole};

/// A list that is open only while it is written: it may be another file the next time.
#[derive(Debug)]
pub(super) struct Listed(PathBuf);

impl Write for Listed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        OpenOptions::new().append(true).open(&self.0)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Cut for Listed {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        cut(&self.0, length)
    }
}

/// Makes a file so long.
pub(super) fn cut(path: &Path, length: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(length)
}

/// Both lists.
#[derive(Debug)]
pub(super) struct Lists<F> {
    pub tasks: Whole<F>,
    pub names: Whole<F>,
}

impl Lists<Listed> {
    /// Those of this directory, which are empty.
    pub fn of(directory: &Path) -> Self {
        let list = |name: &str| Whole::new(Listed(directory.join(name)));
        Self {
            tasks: list("task.txt"),
            names: list(NAMES_FILE),
        }
    }
}

impl<F: Write + Cut> Lists<F> {
    /// Adds what `add` does, or nothing: it is tried again then, and a thread that is listed twice would be read twice.
    pub fn all_or_nothing<E>(
        &mut self,
        add: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = (self.tasks.length(), self.names.length());
        let added = add(self);
        if added.is_err() {
            self.tasks.shorten(before.0);
            self.names.shorten(before.1);
        }
        added
    }

    /// Cuts off what was added in part.
    pub fn mend(&mut self) {
        let _ = self.tasks.mend();
        let _ = self.names.mend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::whole::tests::Disk;

    fn disk(room: usize, uncut: u32) -> Whole<Disk> {
        Whole::new(Disk {
            room,
            uncut,
            ..Disk::default()
        })
    }

    fn add(to: &mut Lists<Disk>, line: &str) -> io::Result<()> {
        to.all_or_nothing(|lists| {
            lists.tasks.add(format!("task {line}\n").as_bytes())?;
            lists.names.add(format!("name {line}\n").as_bytes())
        })
    }

    /// Half a line once stayed where it could not be cut off, and the next one went on in it.
    #[test]
    fn a_line_is_whole_also_where_a_part_of_the_one_before_could_not_be_cut_off() {
        for uncut in 0..4 {
            for (tasks, names) in [(10, 100), (100, 10)] {
                let mut lists = Lists {
                    tasks: disk(tasks, uncut),
                    names: disk(names, uncut),
                };
                add(&mut lists, "a").unwrap();
                add(&mut lists, "b").unwrap_err();
                for list in [&mut lists.tasks, &mut lists.names] {
                    list.file().room = 100;
                }
                // As often as it has to be.
                let tries = (0..5).find(|_| add(&mut lists, "b").is_ok());
                assert!(tries.is_some());
                assert_eq!(lists.tasks.file().bytes, b"task a\ntask b\n");
                assert_eq!(lists.names.file().bytes, b"name a\nname b\n");
            }
        }
    }

    #[test]
    fn a_list_that_was_replaced_goes_on_where_that_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("task.txt");
        let mut lists = Lists::of(folder.path());
        lists.tasks.add(b"none").unwrap_err();
        std::fs::write(&path, "other\n").unwrap();
        lists.tasks.replaced(6);
        lists.tasks.add(b"next\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"other\nnext\n");
    }
}
