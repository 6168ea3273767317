//! Initial RAM disks with another file in them: a kernel unpacks all archives that it finds in one.

use std::fs;
use std::path::{Path, PathBuf};

use crate::place::linux;

/// Regular file, mode 0644.
const MODE: u32 = 0o100_644;

/// Writes the usual initial RAM disk, with a file `name` of this content, into `folder`.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn with_file(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let mut archive = fs::read(linux().1).expect("the initrd is read");
    pad(&mut archive);
    append(&mut archive, name, MODE, content);
    append(&mut archive, "TRAILER!!!", 0, &[]);
    let path = folder.join("initrd");
    fs::write(&path, archive).expect("an initrd is written");
    path
}

/// One member in the `newc` format (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
fn append(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let size = |bytes: usize| u32::try_from(bytes).expect("less than 4 GiB");
    archive.extend(b"070701");
    // Inode, mode, uid, gid, links, time, size, four device numbers, length of the name, checksum.
    let (length, name_length) = (size(content.len()), size(name.len() + 1));
    for field in [0, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0] {
        archive.extend(format!("{field:08x}").into_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
