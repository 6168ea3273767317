//! The file in which a part of another VMM's memory lies, where others can map it as well (memfd, a file in `/dev/shm`).
//!
//! Its VMM can make it shorter at any moment, and whoever touches what is gone is killed (SIGBUS). So it is mapped here **only
//! if it can never become shorter** (sealed, as QEMU seals a memfd: fcntl(2), `F_SEAL_SHRINK`) and lies in ordinary memory,
//! which there is as long as there is any; a huge page can be missing. All others are copied from the VMM, as memory without a
//! file is; and what the VMM is to be told of that others do ([`super::userfaults`]).

use std::fs::File;
use std::path::Path;

use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstatfs, seek};
use rustix::io::Errno;
use terms::addr::Gpa;
use terms::region::Region;
use vm_memory::GuestRegionMmap;

use super::error::ForeignError;
use super::memory::Range;
use super::process::Mapping;
use super::userfaults::Userfaults;
use crate::memory::map_file;

/// Files in ordinary memory (linux/magic.h).
const TMPFS: i64 = 0x0102_1994;

/// The file in which a range of the guest's RAM lies.
#[derive(Debug)]
pub(super) struct Backing {
    file: File,
    /// Where in it the range begins.
    offset: u64,
    range: Range,
}

impl Backing {
    /// That of a range of process `pid`, if others can map it as well, and it can be opened.
    pub fn of(pid: i32, range: Range, mappings: &[Mapping]) -> Option<Self> {
        let end = range.host.checked_add(range.guest.bytes)?;
        let holds = |mapping: &&Mapping| {
            mapping.start <= range.host && end <= mapping.start.saturating_add(mapping.bytes)
        };
        let mapping = mappings.iter().find(holds)?;
        if !mapping.is_shared {
            return None;
        }
        let file = open(pid, mapping).ok()?;
        let is_ordinary = fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS);
        let offset = mapping
            .offset
            .checked_add(range.host.checked_sub(mapping.start)?)?;
        is_ordinary.then_some(Self {
            file,
            offset,
            range,
        })
    }

    /// The range, mapped here; none if its file can become shorter.
    pub fn map(self) -> Option<GuestRegionMmap> {
        if !stays_as_long(&self.file) {
            return None;
        }
        let Region { start, bytes } = self.range.guest;
        match map_file(self.file, self.offset, start, bytes) {
            Ok(region) => Some(region),
            Err(error) => {
                log::debug!("RAM at {start} is copied, not mapped: {error}");
                None
            }
        }
    }

    /// The parts of it that hold anything: the rest is zero, and would become memory if it was read. All of it where that
    /// cannot be told.
    pub fn parts(&self) -> Vec<Region> {
        let end = self.offset.saturating_add(self.range.guest.bytes);
        let region = |from: u64, to: u64| Region {
            start: Gpa(self.range.guest.start.0 + (from - self.offset)),
            bytes: to - from,
        };
        let mut parts = Vec::new();
        let mut at = self.offset;
        while at < end {
            let data = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) if data < end => data.max(at),
                // There is none from here on.
                Ok(_) | Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let hole = seek(&self.file, SeekFrom::Hole(data)).unwrap_or(end);
            // A file that is made shorter meanwhile has its end anywhere.
            let hole = if hole > data { hole.min(end) } else { end };
            parts.push(region(data, hole));
            at = hole;
        }
        parts
    }
}

/// Whether a file can never become shorter.
pub(super) fn stays_as_long(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// What of these ranges of process `pid` can be mapped here.
pub(super) fn map_all(
    pid: i32,
    ranges: &[Range],
    mappings: &[Mapping],
    userfaults: &Userfaults,
) -> Vec<GuestRegionMmap> {
    let free = ranges.iter().filter(|range| !userfaults.is_told_of(range));
    let backings = free.filter_map(|range| Backing::of(pid, *range, mappings));
    backings.filter_map(Backing::map).collect()
}

/// The file of a mapping of process `pid`.
///
/// # Errors
/// [`ForeignError::MapFiles`], [`ForeignError::Proc`].
pub(super) fn open(pid: i32, mapping: &Mapping) -> Result<File, ForeignError> {
    let (start, end) = (mapping.start, mapping.start.saturating_add(mapping.bytes));
    let path = Path::new("/proc")
        .join(pid.to_string())
        .join("map_files")
        .join(format!("{start:x}-{end:x}"));
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|source| ForeignError::of_map_files(pid, source))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use vm_memory::mmap::MmapRegionBuilder;
    use vm_memory::{Bytes, FileOffset, GuestMemoryRegion, MemoryRegionAddress};

    use super::super::process::Process;
    use super::super::userfaults::tests::HalfServed;
    use super::*;

    const MIB: u64 = 1 << 20;
    /// A guest has 6 MiB of the file's 8, from 4 MiB on.
    const OFFSET: u64 = MIB;
    const RAM: Region = Region {
        start: Gpa(4 * MIB),
        bytes: 6 * MIB,
    };

    /// A file of 8 MiB, mapped by this process from [`OFFSET`] on, and what is asked about it.
    fn mapped(file: &File, flags: libc::c_int) -> (vm_memory::MmapRegion, Option<Backing>) {
        let length = usize::try_from(7 * MIB).unwrap();
        let mapping = MmapRegionBuilder::new(length)
            .with_file_offset(FileOffset::new(file.try_clone().unwrap(), OFFSET))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(flags)
            .build()
            .unwrap();
        let range = Range {
            guest: RAM,
            host: mapping.as_ptr() as u64 + MIB,
        };
        let pid = std::process::id().cast_signed();
        let mappings = Process::open(pid).unwrap().mappings().unwrap();
        (mapping, Backing::of(pid, range, &mappings))
    }

    fn memfd() -> File {
        let file = File::from(memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap());
        ftruncate(&file, 8 * MIB).unwrap();
        file
    }

    #[test]
    fn a_file_that_stays_as_long_as_it_is_is_mapped_and_no_other() {
        let file = memfd();
        file.write_all_at(&[7], 2 * MIB + 5).unwrap();
        let (_there, unsealed) = mapped(&file, libc::MAP_SHARED);
        assert!(unsealed.unwrap().map().is_none());
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let (_there, sealed) = mapped(&file, libc::MAP_SHARED);
        let region = sealed.unwrap().map().unwrap();
        assert_eq!(region.start_addr().0, RAM.start.0);
        let at = MemoryRegionAddress(5);
        assert_eq!(region.read_obj::<u8>(at).unwrap(), 7);
        region.write_obj(8u8, at).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 2 * MIB + 5).unwrap();
        assert_eq!(byte, [8]);
        // What is written to the VMM's own copy of a file is not in the file.
        let (_there, own) = mapped(&file, libc::MAP_PRIVATE);
        assert!(own.is_none());
    }

    /// A guest that is restored bit by bit once found zeros wherever its page tables were looked for.
    #[test]
    fn what_is_handed_out_when_it_is_touched_is_mapped_by_nobody_else() {
        let vmm = HalfServed::start(true);
        let process = vmm.process();
        let mappings = process.mappings().unwrap();
        let [served, other] = vmm.halves();
        let known = Userfaults::of(process.pid()).unwrap();
        let mapped = map_all(process.pid(), &[served, other], &mappings, &known);
        let starts: Vec<_> = mapped.iter().map(|one| one.start_addr().0).collect();
        assert_eq!(starts, [other.guest.start.0]);
    }

    /// With what lets it look at the process, and no more, a window could once be made that nobody could give back.
    #[test]
    fn whether_mapped_files_can_be_opened_is_known_before_any_has_to_be() {
        let mut other = std::process::Command::new("cat");
        let mut other = other.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = other.id().cast_signed();
        let has = capabilities(None).unwrap().effective;
        let is_enough = CapabilitySet::CHECKPOINT_RESTORE | CapabilitySet::SYS_ADMIN;
        let allowed = Process::open(pid).unwrap().check_mapped_files();
        // Who runs this may have none of them.
        assert_eq!(allowed.is_ok(), has.intersects(is_enough), "{allowed:?}");
        let mapping = |process: &Process| {
            let mut all = process.code().unwrap();
            all.retain(|mapping| mapping.file.is_some());
            all.remove(0)
        };
        let refused = std::thread::spawn(move || {
            let mut has = capabilities(None).unwrap();
            has.effective &= CapabilitySet::SYS_PTRACE;
            // Of this thread alone.
            set_capabilities(None, has).unwrap();
            let process = Process::open(pid).unwrap();
            let opened = open(pid, &mapping(&process)).map(drop);
            [process.check_mapped_files(), opened]
        });
        for refused in refused.join().unwrap() {
            let error = refused.unwrap_err();
            assert!(matches!(error, ForeignError::MapFiles { .. }), "{error}");
            assert!(
                error.to_string().contains("CAP_CHECKPOINT_RESTORE"),
                "{error}"
            );
        }
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn what_was_never_written_is_not_looked_at() {
        let file = memfd();
        let (_there, backing) = mapped(&file, libc::MAP_SHARED);
        let backing = backing.unwrap();
        assert_eq!(backing.parts(), []);
        // Before the range, in it twice, at its end, and after it.
        for at in [0, 2 * MIB, 4 * MIB + 4096, 8 * MIB - 1] {
            file.write_all_at(&[1], at).unwrap();
        }
        let part = |start: u64| Region {
            start: Gpa(start),
            bytes: 4096,
        };
        let expected = [part(4 * MIB), part(6 * MIB + 4096), part(10 * MIB - 4096)];
        assert_eq!(backing.parts(), expected);
    }

    #[test]
    fn a_file_that_was_made_shorter_has_an_end_all_the_same() {
        let file = memfd();
        file.write_all_at(&[1], 7 * MIB).unwrap();
        let (_there, backing) = mapped(&file, libc::MAP_SHARED);
        ftruncate(&file, 3 * MIB).unwrap();
        assert_eq!(backing.unwrap().parts(), []);
    }
}
