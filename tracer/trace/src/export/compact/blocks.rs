//! The blocks of a compact trace: written whole or not at all, and read back as far as they are whole.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::error::CompactError;
use super::json;
use super::{MARK, VERSION};
use crate::as_found::{self, AsFound};
use crate::export::budget::Budget;
use crate::export::whole::{Cut, Whole};

/// Bytes before the blocks.
const START: usize = 16;
/// Bytes before what a block holds.
pub(super) const FRAME: usize = 12;
/// The most that a block holds: a kernel's functions are some megabytes.
const BLOCK_MAX: u32 = 64 << 20;
/// The most that one does which says how a trace was recorded: a command line and some thousand pauses and triggers.
const OF_ITSELF_MAX: u32 = 8 << 20;
/// The most that one of records does: who writes begins another after a quarter of it. In memory it can be 220 times as much, for 64
/// calls of one function at one time are 7 bytes.
const RECORDS_MAX: u32 = 1 << 20;

/// Values of JSON that one has: what it says of a trace, some thousand pauses and triggers, the init calls of a kernel, globs,
const OF_ITSELF_VALUES_MAX: usize = 1 << 17;
/// events with their fields and enumerators, probes, threads of a round,
const DESCRIBED_VALUES_MAX: usize = 1 << 20;
/// functions, as many as records can name, and what is captured of some of them.
const OF_FUNCTIONS_VALUES_MAX: usize = 1 << 22;

/// What a block holds. The number is the one in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Begin = 1,
    Functions = 2,
    Metadata = 3,
    Points = 4,
    Probes = 5,
    Values = 6,
    Threads = 7,
    Records = 8,
    Looks = 9,
    Round = 10,
    End = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Begin,
        Self::Functions,
        Self::Metadata,
        Self::Points,
        Self::Probes,
        Self::Values,
        Self::Threads,
        Self::Records,
        Self::Looks,
        Self::Round,
        Self::End,
    ];

    /// Whether the guest makes more and more of them, as it runs. What else there is describes those.
    const fn grows(self) -> bool {
        matches!(
            self,
            Self::Threads | Self::Records | Self::Looks | Self::Round
        )
    }

    /// The most bytes that one holds.
    const fn most(self) -> u32 {
        match self {
            Self::Records | Self::Looks | Self::Round => RECORDS_MAX,
            Self::Begin | Self::Metadata | Self::End => OF_ITSELF_MAX,
            Self::Functions | Self::Points | Self::Probes | Self::Values | Self::Threads => {
                BLOCK_MAX
            }
        }
    }

    /// The most values of JSON that one has: each can take a hundred bytes in memory for some in the file.
    pub(super) const fn most_values(self) -> usize {
        match self {
            Self::Begin | Self::Metadata | Self::End => OF_ITSELF_VALUES_MAX,
            Self::Points | Self::Probes | Self::Threads => DESCRIBED_VALUES_MAX,
            Self::Functions | Self::Values => OF_FUNCTIONS_VALUES_MAX,
            // They are no JSON.
            Self::Records | Self::Looks | Self::Round => usize::MAX,
        }
    }

    fn of(number: u8) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// Fills in what stands before the contents of a block: `block` begins with room for it.
pub(super) fn seal(kind: Kind, block: &mut [u8]) -> io::Result<()> {
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "a block of too many bytes");
    let length = u32::try_from(block.len().saturating_sub(FRAME)).ok();
    let length = length.filter(|length| *length <= kind.most());
    let length = length.ok_or_else(too_large)?;
    if json::has_more_than(kind.most_values(), block.get(FRAME..).unwrap_or_default()) {
        return Err(too_large());
    }
    if let Some((frame, contents)) = block.split_first_chunk_mut::<FRAME>() {
        let [a, b, c, d] = length.to_le_bytes();
        let head = [a, b, c, d, kind as u8, 0, 0, 0];
        let [e, f, g, h] = checksum(head, contents).to_le_bytes();
        *frame = [a, b, c, d, kind as u8, 0, 0, 0, e, f, g, h];
    }
    Ok(())
}

fn checksum(head: [u8; 8], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head);
    hasher.update(contents);
    hasher.finalize()
}

/// A file that is written.
#[derive(Debug)]
pub(super) struct BlockFile<F = File> {
    /// Of whole blocks.
    file: Whole<F>,
    budget: Budget,
}

impl<F: Write + Cut> BlockFile<F> {
    /// Of a new file.
    pub fn begin(file: F) -> io::Result<Self> {
        let mut start = MARK.to_vec();
        start.extend(VERSION.to_le_bytes());
        start.resize(START, 0);
        let mut file = Whole::new(file);
        file.add(&start)?;
        Ok(Self {
            file,
            budget: Budget::default(),
        })
    }

    /// From now on what the guest makes more and more of takes from this budget.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// What comes now has to be written in any case.
    pub fn has_no_budget(&mut self) {
        self.budget = self.budget.without_end();
    }

    /// Where blocks are written.
    #[cfg(test)]
    pub const fn file(&mut self) -> &mut F {
        self.file.file()
    }

    /// Bytes that it has.
    pub const fn length(&self) -> u64 {
        self.file.length()
    }

    /// Adds a block of which the contents follow [`FRAME`] bytes, or nothing of it: readers end where a block is not whole, and
    /// would not find what comes after that.
    pub fn add(&mut self, kind: Kind, block: &mut [u8]) -> io::Result<()> {
        seal(kind, block)?;
        // Without what describes them records cannot be read.
        let taken = if kind.grows() { block.len() as u64 } else { 0 };
        self.budget.take(taken)?;
        let added = self.file.add(block);
        added.inspect_err(|_| self.budget.give_back(taken))
    }

    /// Makes it so long again.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
    }
}

/// A block that was read.
#[derive(Debug)]
pub(super) struct Block {
    pub kind: Kind,
    pub contents: Vec<u8>,
}

/// Why there is no other block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The file ends here.
    End,
    /// It ends in the middle of a block.
    Cut { at: u64, bytes: u64 },
    /// What is there is not what was written.
    Damaged { at: u64, bytes: u64 },
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => Ok(()),
            Self::Cut { at, bytes } => write!(
                f,
                "it ends in the middle of a block: the last {bytes} bytes, from {at} on, are not shown"
            ),
            Self::Damaged { at, bytes } => write!(
                f,
                "the block at {at} is damaged: that and what follows it, {bytes} bytes, are not shown"
            ),
        }
    }
}

/// A file that is read.
#[derive(Debug)]
pub(super) struct Blocks<R> {
    from: R,
    at: u64,
    length: u64,
}

impl Blocks<AsFound> {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, CompactError> {
        let file = as_found::open(path).map_err(CompactError::io(path))?;
        let length = file.get_ref().limit();
        Self::of(file, length, path)
    }
}

impl<R: Read> Blocks<R> {
    /// Of a file of so many bytes, which is called so.
    pub fn of(mut from: R, length: u64, path: &Path) -> Result<Self, CompactError> {
        let not_one = |problem| CompactError::NotOne {
            path: path.to_owned(),
            problem,
        };
        let mut start = [0; START];
        match from.read_exact(&mut start) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(not_one("shorter than its header"));
            }
            Err(error) => return Err(CompactError::io(path)(error)),
        }
        let [mark @ .., v0, v1, v2, v3, _, _, _, _] = start;
        if mark != MARK {
            return Err(not_one("not the header of a compact trace"));
        }
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if found != VERSION {
            let path = path.to_owned();
            return Err(CompactError::Version { path, found });
        }
        Ok(Self {
            from,
            at: START as u64,
            length,
        })
    }

    /// The next block, or why there is none.
    pub fn next(&mut self) -> io::Result<Result<Block, Stop>> {
        let at = self.at;
        let rest = self.length.saturating_sub(at);
        let mut frame = Vec::with_capacity(FRAME);
        self.read(FRAME as u64, &mut frame)?;
        let Some(&[l0, l1, l2, l3, kind, z0, z1, z2, c0, c1, c2, c3]) =
            frame.first_chunk::<FRAME>()
        else {
            return Ok(Err(match frame.len() as u64 {
                0 => Stop::End,
                bytes => Stop::Cut { at, bytes },
            }));
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let damaged = Stop::Damaged { at, bytes: rest };
        let Some(known) = Kind::of(kind).filter(|kind| length <= kind.most()) else {
            return Ok(Err(damaged));
        };
        let mut contents = Vec::new();
        self.read(length.into(), &mut contents)?;
        if contents.len() as u64 != u64::from(length) {
            let bytes = (FRAME + contents.len()) as u64;
            return Ok(Err(Stop::Cut { at, bytes }));
        }
        let head = [l0, l1, l2, l3, kind, z0, z1, z2];
        if checksum(head, &contents) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Ok(Err(damaged));
        }
        Ok(Ok(Block {
            kind: known,
            contents,
        }))
    }

    /// That the last block is no good, of which the checksum is right.
    pub const fn damaged(&self, block: &Block) -> Stop {
        let bytes = (FRAME + block.contents.len()) as u64;
        let at = self.at.saturating_sub(bytes);
        Stop::Damaged {
            at,
            bytes: self.length.saturating_sub(at),
        }
    }

    fn read(&mut self, count: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let read = self.from.by_ref().take(count).read_to_end(into)?;
        self.at += read as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of records takes far more memory than they do: a block of them is refused before any of it is read.
    #[test]
    fn a_block_of_records_is_not_as_large_as_one_of_functions_can_be() {
        let path = Path::new("store");
        let large = RECORDS_MAX as usize + 1;
        let stop = |kind: Kind| {
            let mut file = MARK.to_vec();
            file.extend(VERSION.to_le_bytes());
            file.extend([0; 4]);
            file.extend(u32::try_from(large).unwrap().to_le_bytes());
            file.extend([kind as u8, 0, 0, 0, 0, 0, 0, 0]);
            let length = file.len() as u64;
            let mut blocks = Blocks::of(file.as_slice(), length, path).unwrap();
            blocks.next().unwrap().unwrap_err()
        };
        assert_eq!(stop(Kind::Records), Stop::Damaged { at: 16, bytes: 12 });
        assert_eq!(stop(Kind::Functions), Stop::Cut { at: 16, bytes: 12 });
        let mut block = vec![0; FRAME + large];
        seal(Kind::Functions, &mut block).unwrap();
        seal(Kind::Records, &mut block).unwrap_err();
        block.pop();
        seal(Kind::Records, &mut block).unwrap();
    }

    /// It would be refused when it is read, and all that comes after it with it.
    #[test]
    fn a_block_of_more_values_than_are_read_is_not_written() {
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        let sealed = |kind: Kind, count| {
            let mut block = vec![0; FRAME];
            block.extend(list(count).into_bytes());
            seal(kind, &mut block).is_ok()
        };
        for kind in [Kind::Begin, Kind::Points, Kind::Functions] {
            let most = kind.most_values();
            assert!(sealed(kind, most) && !sealed(kind, most + 1), "{kind:?}");
        }
        assert!(sealed(Kind::Records, Kind::Begin.most_values() + 1));
    }
}
