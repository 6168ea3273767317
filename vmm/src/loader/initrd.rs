//! The initial RAM disk: a file that is put into RAM as it is, where the kernel leaves it alone until
//! it has unpacked it.

use std::path::Path;

use terms::addr::Gpa;

use super::{ElfLayout, LoadError, read_file};
use crate::layout;
use crate::memory::Ram;

const PAGE: u64 = 4096;

/// An initial RAM disk, read once.
#[derive(Debug, Clone)]
pub struct Initrd {
    bytes: Vec<u8>,
}

impl Initrd {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing, unreadable, no regular file, empty or absurdly large.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = read_file("initrd", path)?;
        if bytes.is_empty() {
            let path = path.to_path_buf();
            return Err(LoadError::EmptyInitrd { path });
        }
        Ok(Self { bytes })
    }

    /// Puts it at the end of the RAM that a kernel can use for it; returns where, and its size.
    pub(super) fn place(&self, ram: &Ram, kernel: &ElfLayout) -> Result<(Gpa, u64), LoadError> {
        let bytes = self.bytes.len() as u64;
        let top = ram.memory().ram_bytes().min(layout::INITRD_END.0);
        let kernel_end = kernel.end();
        let start = top.checked_sub(bytes).map(|start| start & !(PAGE - 1));
        let start = start.filter(|start| *start >= kernel_end.0);
        let start = Gpa(start.ok_or(LoadError::InitrdTooLarge {
            bytes,
            room: top.saturating_sub(kernel_end.0),
        })?);
        let refused = |_| LoadError::NoRoom {
            what: "the initrd",
            at: start,
        };
        ram.write(start, &self.bytes).map_err(refused)?;
        Ok((start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use terms::addr::Gva;

    use super::*;
    use crate::layout::MIB;
    use crate::loader::Segment;

    fn kernel(end: u64) -> ElfLayout {
        ElfLayout {
            entry: Gpa(MIB),
            segments: vec![Segment {
                physical: Gpa(MIB),
                address: Gva(0),
                bytes: end - MIB,
            }],
        }
    }

    #[test]
    fn it_lies_at_the_end_of_ram_and_never_over_the_kernel() {
        let ram = Ram::create(16, MIB).unwrap();
        let initrd = Initrd {
            bytes: vec![7; 5000],
        };
        let (at, bytes) = initrd.place(&ram, &kernel(8 * MIB)).unwrap();
        assert_eq!((at.0 % PAGE, bytes), (0, 5000));
        assert!(at.0 + bytes <= 16 * MIB && at.0 + bytes + PAGE > 16 * MIB);
        let mut last = [0];
        ram.read(at.wrapping_add(4999), &mut last).unwrap();
        assert_eq!(last, [7]);
        let error = initrd.place(&ram, &kernel(16 * MIB - PAGE));
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("5000 bytes") && text.contains("--memory"),
            "{text}"
        );
        let huge = Initrd {
            bytes: vec![0; 17 << 20],
        };
        assert!(matches!(
            huge.place(&ram, &kernel(8 * MIB)),
            Err(LoadError::InitrdTooLarge { .. })
        ));
    }
}
