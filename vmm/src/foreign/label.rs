//! The label of a window: in its file, after what KVM shows the guest, where KVM shows it. Who finds the file of a tracer that
//! was killed can take it out of the guest. The guest cannot write here: what is done to the VMM depends on it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use terms::addr::Gpa;

use crate::layout::WINDOW_SIZE;

/// Bytes that a file has for its label.
pub(super) const BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"EXOLABEL";

/// Where KVM has been asked to show a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    /// Where the guest has it.
    pub start: Gpa,
    /// The number of its slot.
    pub slot: u32,
}

impl Label {
    /// To be written before KVM is asked.
    ///
    /// # Errors
    /// What the system said.
    pub fn write(self, to: &File) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.start.0.to_le_bytes());
        bytes.extend(self.slot.to_le_bytes());
        to.write_all_at(&bytes, WINDOW_SIZE)
    }

    /// That of a window that somebody has left; none when KVM was not asked yet.
    ///
    /// # Errors
    /// What the system said; `InvalidData` when it is none of ours.
    pub fn read(from: &File) -> io::Result<Option<Self>> {
        let (mut magic, mut start, mut slot) = ([0; 8], [0; 8], [0; 4]);
        let mut at = WINDOW_SIZE;
        for part in [&mut magic[..], &mut start, &mut slot] {
            from.read_exact_at(part, at)?;
            at += part.len() as u64;
        }
        match magic {
            MAGIC => Ok(Some(Self {
                start: Gpa(u64::from_le_bytes(start)),
                slot: u32::from_le_bytes(slot),
            })),
            [0, 0, 0, 0, 0, 0, 0, 0] => Ok(None),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let file = tempfile::tempfile().unwrap();
        Label::read(&file).unwrap_err();
        file.set_len(WINDOW_SIZE + BYTES).unwrap();
        assert_eq!(Label::read(&file).unwrap(), None);
        let label = Label {
            start: Gpa(0x70_0000_0000),
            slot: 32_699,
        };
        label.write(&file).unwrap();
        assert_eq!(Label::read(&file).unwrap(), Some(label));
        file.write_all_at(b"somebody", WINDOW_SIZE).unwrap();
        Label::read(&file).unwrap_err();
    }
}
