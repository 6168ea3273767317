//! A file that is whole at each moment: what cannot be added to it as a whole is cut off again, and nothing is added after a part.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// What can be cut.
pub(super) trait Cut {
    /// Makes it so long, and continues writing there.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Cut for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        // In this order: where the second fails, what is there is still as long as it was.
        self.seek(SeekFrom::Start(length))?;
        self.set_len(length)
    }
}

/// Such a file.
#[derive(Debug)]
pub(super) struct Whole<F> {
    file: F,
    /// Bytes of what was added as a whole.
    length: u64,
    /// More may follow these, and could not be cut off yet.
    is_torn: bool,
}

impl<F: Write + Cut> Whole<F> {
    /// Of a new file.
    pub const fn new(file: F) -> Self {
        Self {
            file,
            length: 0,
            is_torn: false,
        }
    }

    /// Where it is written to.
    #[cfg(test)]
    pub const fn file(&mut self) -> &mut F {
        &mut self.file
    }

    /// Bytes that it has.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Adds all of these, or nothing.
    ///
    /// # Errors
    /// Why not; also where what was left of an earlier write cannot be cut off.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mend()?;
        if let Err(error) = self.file.write_all(bytes) {
            self.is_torn = true;
            // It is tried again before the next write. Until then readers meet a part at the end, which they do not show.
            let _ = self.mend();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Makes it so long again.
    ///
    /// # Errors
    /// Why it stays as it was.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        if let Err(error) = self.file.cut(length) {
            // Where it goes on is not certain.
            self.is_torn = true;
            return Err(error);
        }
        (self.length, self.is_torn) = (length, false);
        Ok(())
    }

    /// What was added after these bytes counts no more: it is cut off, at once or before the next write.
    pub fn shorten(&mut self, length: u64) {
        if length < self.length {
            (self.length, self.is_torn) = (length, true);
        }
        let _ = self.mend();
    }

    /// Another file is in its place, which is so long.
    pub const fn replaced(&mut self, length: u64) {
        (self.length, self.is_torn) = (length, false);
    }

    /// Cuts off what was not added as a whole.
    pub fn mend(&mut self) -> io::Result<()> {
        match self.is_torn {
            true => self.cut(self.length),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A disk with room for so many bytes, which takes what fits of each write.
    #[derive(Debug, Default)]
    pub struct Disk {
        pub bytes: Vec<u8>,
        pub room: usize,
        /// So often it cannot be cut.
        pub uncut: u32,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.room.saturating_sub(self.bytes.len());
            if left == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let (taken, _) = bytes.split_at(left.min(bytes.len()));
            self.bytes.extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Cut for Disk {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            if let Some(left) = self.uncut.checked_sub(1) {
                self.uncut = left;
                return Err(io::ErrorKind::Other.into());
            }
            self.bytes.truncate(usize::try_from(length).unwrap());
            Ok(())
        }
    }

    #[test]
    fn nothing_is_added_after_a_part_that_cannot_be_cut_off() {
        let disk = Disk {
            room: 7,
            uncut: 2,
            ..Disk::default()
        };
        let mut whole = Whole::new(disk);
        whole.add(b"four").unwrap();
        let error = whole.add(b"more").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        whole.file().room = 100;
        let error = whole.add(b"again").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
        assert_eq!(whole.file().bytes, b"fourmor");
        whole.add(b"last").unwrap();
        assert_eq!(whole.file().bytes, b"fourlast");
        assert_eq!(whole.length(), 8);
    }

    #[test]
    fn a_file_goes_on_where_it_was_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut whole = Whole::new(file.reopen().unwrap());
        whole.add(b"one two").unwrap();
        whole.cut(4).unwrap();
        whole.add(b"three").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"one three");
    }
}
