//! Our window in a guest of another VMM: a file in memory that the VMM maps, and we, and that KVM shows the guest by a slot of
//! its own.

use std::fs::File;
use std::time::Instant;

use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
use terms::addr::Gpa;
use terms::region::Region;
use vm_memory::GuestRegionMmap;

use super::backing;
use super::error::ForeignError;
use super::label::{self, Label};
use super::lock::{Lock, NAME};
use super::memory::Range;
use super::parked::Parked;
use super::process::{Mapping, Process};
use super::slots::{Slots, TRIAL};
use crate::layout::{GIB, WINDOW_SIZE};
use crate::memory::{Ram, Window};

/// Places that are tried.
const PLACES: u64 = 16;

/// The window, as the VMM has it.
#[derive(Debug)]
pub(super) struct ForeignWindow {
    range: Range,
    slot: u32,
    /// Somebody has left it there.
    is_found: bool,
    _lock: Lock,
}

impl ForeignWindow {
    /// Makes it: at a place of `bits`-bit physical addresses above `ram_end`.
    ///
    /// # Errors
    /// [`ForeignError::Call`], [`ForeignError::NoPlace`], [`ForeignError::Window`], [`ForeignError::MapFiles`]; then nothing of
    /// it is left.
    pub fn open(
        process: &Process,
        slots: &mut Slots<'_>,
        bits: u32,
        ram_end: u64,
    ) -> Result<(Self, File), ForeignError> {
        // Whoever comes after a tracer that was killed has to find it.
        process.check_mapped_files()?;
        let deadline = slots.deadline;
        let (file, host) = map_there(process, slots.parked, deadline)?;
        let locked = lock(&file);
        let top = top_of(bits);
        let show = |number, range| slots.set(number, range);
        let placed = locked.and_then(|lock| Ok((lock, place(show, &file, host, top, ram_end)?)));
        match placed {
            Ok((lock, (range, slot))) => Ok((Self::of(range, slot, lock, false), file)),
            Err(error) => {
                unmap_there(slots.parked, host, deadline)?;
                Err(error)
            }
        }
    }

    /// One that somebody has left in a VMM; none when KVM does not show it yet: then only the VMM has it.
    ///
    /// # Errors
    /// [`ForeignError::Proc`], [`ForeignError::Window`], [`ForeignError::Traced`].
    pub fn found(
        process: &Process,
        mapping: &Mapping,
    ) -> Result<Option<(Self, File)>, ForeignError> {
        let file = backing::open(process.pid(), mapping)?;
        // Any process can call something so; what is made shorter once it is mapped here would be our end.
        if !backing::stays_as_long(&file) {
            return Err(ForeignError::Window {
                what: "what looks like tracing memory that was left there is none of ours: its file can be made shorter",
                source: std::io::ErrorKind::InvalidData.into(),
            });
        }
        let lock = lock(&file)?;
        let label = Label::read(&file).map_err(|source| ForeignError::Window {
            what: "what is said of the tracing memory that was left there cannot be read",
            source,
        })?;
        let Some(Label { start, slot }) = label else {
            return Ok(None);
        };
        let range = Range {
            guest: Region {
                start,
                bytes: WINDOW_SIZE,
            },
            host: mapping.start,
        };
        Ok(Some((Self::of(range, slot, lock, true), file)))
    }

    /// One that lies there, and is locked.
    pub const fn of(range: Range, slot: u32, lock: Lock, is_found: bool) -> Self {
        Self {
            range,
            slot,
            is_found,
            _lock: lock,
        }
    }

    /// It, which is all of `file`, mapped here, with what of the RAM is mapped here, too.
    ///
    /// # Errors
    /// [`ForeignError::Window`].
    pub fn map(&self, file: File, ram: Vec<GuestRegionMmap>) -> Result<Ram, ForeignError> {
        let Region { start, bytes } = self.range.guest;
        let mapped = Ram::in_files(file, Window { start, bytes }, ram);
        mapped.map_err(|error| ForeignError::Window {
            what: "the tracing memory cannot be mapped here",
            source: std::io::Error::other(error),
        })
    }

    /// Where the guest has it.
    pub const fn region(&self) -> Region {
        self.range.guest
    }

    /// Takes it away, unless it was found: then the guest's text may still lead there.
    ///
    /// # Errors
    /// As of [`Self::close`].
    pub fn undo(&self, slots: &mut Slots<'_>) -> Result<(), ForeignError> {
        match self.is_found {
            true => Ok(()),
            false => self.close(slots),
        }
    }

    /// Takes it away. No instruction of the guest leads to it any more.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn close(&self, slots: &mut Slots<'_>) -> Result<(), ForeignError> {
        slots.take_away_exactly(self.slot, self.range)?;
        unmap_there(slots.parked, self.range.host, slots.deadline)
    }
}

fn lock(file: &File) -> Result<Lock, ForeignError> {
    Lock::take(file).map_err(|source| ForeignError::Window {
        what: "the tracing memory cannot be locked",
        source,
    })
}

/// A file in memory of the window's size, mapped in the VMM; it has no descriptor of it. Ours is returned.
fn map_there(
    process: &Process,
    parked: &mut Parked,
    deadline: Instant,
) -> Result<(File, u64), ForeignError> {
    let mut name = [NAME.as_bytes(), &[0]].concat();
    let at = parked.scratch()?;
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let fd = parked.with_scratch(&mut name, |parked| {
        let arguments = [at, flags, 0, 0, 0, 0];
        parked.call("memfd_create", libc::SYS_memfd_create, arguments, deadline)
    })?;
    let mapped = i32::try_from(fd)
        .map_err(|_| ForeignError::NotVmm { pid: process.pid() })
        .and_then(|fd| process.descriptor(fd))
        .and_then(|ours| {
            let file = File::from(ours);
            let sized = ftruncate(&file, WINDOW_SIZE + label::BYTES)
                // What the VMM does with it cannot take it from under us.
                .and_then(|()| {
                    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
                });
            let what = "the tracing memory cannot be made";
            sized.map_err(|error| ForeignError::Window {
                what,
                source: error.into(),
            })?;
            let protection = u64::from((libc::PROT_READ | libc::PROT_WRITE).cast_unsigned());
            let how = u64::from((libc::MAP_SHARED | libc::MAP_NORESERVE).cast_unsigned());
            let arguments = [0, WINDOW_SIZE, protection, how, fd, 0];
            let host = parked.call("mmap", libc::SYS_mmap, arguments, deadline)?;
            Ok((file, host))
        });
    let closed = parked.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0], deadline);
    if let (Err(_), Ok((_, host))) = (&closed, &mapped) {
        // Nobody would know of it.
        let _ = unmap_there(parked, *host, deadline);
    }
    closed.and(mapped)
}

/// Takes a window out of the VMM that its guest has not, or not any more.
///
/// # Errors
/// [`ForeignError::Call`] and others.
pub(super) fn unmap_there(
    parked: &mut Parked,
    host: u64,
    deadline: Instant,
) -> Result<(), ForeignError> {
    let arguments = [host, WINDOW_SIZE, 0, 0, 0, 0];
    let unmapped = parked.call("munmap", libc::SYS_munmap, arguments, deadline);
    unmapped.map(|_| ())
}

/// Bits of guest-physical addresses that second-level tables of four levels reach.
const REACHED: u32 = 48;

/// The highest place for a window that a processor with so many bits of physical addresses can have, and those bits.
///
/// KVM refuses a place only where the guest has memory; a device that is emulated has none, and would be heard no more. From 7/8 of
/// what is addressed on firmware gives addresses to devices (OVMF: `PlatformDynamicMmioWindow`; SeaBIOS since 1.17). A VMM may do
/// so from the end of the RAM upward, or from the top of equal parts downward. So it is below 7/8, and no simple fraction.
fn top_of(bits: u32) -> (u32, u64) {
    let bits = bits.min(REACHED);
    let all = 1u64 << bits.max(32);
    (bits, all / 128 * 101 / GIB * GIB)
}

/// Has KVM `show` it to the guest, by the number of a slot, at the first place that is free: far above its RAM, where no device of
/// it is looked for ([`top_of`]), and below what its processors can address.
fn place(
    mut show: impl FnMut(u32, Range) -> Result<(), ForeignError>,
    file: &File,
    host: u64,
    (bits, top): (u32, u64),
    ram_end: u64,
) -> Result<(Range, u32), ForeignError> {
    let mut last = std::io::Error::from_raw_os_error(libc::ENOSPC);
    let mut refused = 0;
    for below in 0..PLACES {
        let start = top.saturating_sub(below * GIB);
        if start < ram_end {
            break;
        }
        let guest = Region {
            start: Gpa(start),
            bytes: WINDOW_SIZE,
        };
        let number = TRIAL - 1 - u32::try_from(below).unwrap_or_default();
        // Before KVM is asked: we can be killed at any moment.
        let label = Label {
            start: guest.start,
            slot: number,
        };
        let labelled = label.write(file);
        labelled.map_err(|source| ForeignError::Window {
            what: "the tracing memory cannot be labelled",
            source,
        })?;
        match show(number, Range { guest, host }) {
            Ok(()) => return Ok((Range { guest, host }, number)),
            Err(ForeignError::Call { source, .. }) => last = source,
            Err(error) => return Err(error),
        }
        refused += 1;
    }
    Err(ForeignError::NoPlace {
        bits,
        tried: refused,
        source: last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM_END: u64 = 8 * GIB;

    /// Where it is put by a KVM that refuses the first `refused` places, and how often that was asked.
    fn placed(bits: u32, ram_end: u64, refused: usize) -> (Result<u64, ForeignError>, usize) {
        let file = tempfile::tempfile().unwrap();
        let mut asked = Vec::new();
        let show = |number, range: Range| {
            // Whoever finds it after our death is told, whatever KVM has done by then.
            let label = Label::read(&file).unwrap().unwrap();
            assert_eq!((label.start, label.slot), (range.guest.start, number));
            asked.push(number);
            match asked.len() > refused {
                true => Ok(()),
                false => Err(ForeignError::Call {
                    call: "KVM_SET_USER_MEMORY_REGION",
                    source: std::io::Error::from_raw_os_error(libc::EEXIST),
                }),
            }
        };
        let found = place(show, &file, 0x7000_0000, top_of(bits), ram_end);
        let all = asked.len();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), all, "a slot was asked for twice");
        (found.map(|(range, _)| range.guest.start.0), all)
    }

    #[test]
    fn a_place_that_is_taken_is_followed_by_the_next_one_down() {
        let (first, asked) = placed(39, RAM_END, 0);
        let first = first.unwrap();
        assert_eq!((first % GIB, asked), (0, 1));
        assert!(first >= RAM_END && first + WINDOW_SIZE <= 1 << 39);
        for bits in [36, 39, 40, 46, 47, 48, 52] {
            // Not where firmware puts devices, also where it takes the address space to be narrower than it is.
            let (place, _) = placed(bits, RAM_END, 0);
            let place = place.unwrap();
            assert!(place + WINDOW_SIZE <= 1 << bits.min(48), "{bits}");
            for taken in [bits, 46, 47, 48].map(|bits| 1u64 << bits) {
                let devices = taken / 8 * 7..taken;
                assert!(
                    !devices.contains(&place) && !devices.contains(&(place + WINDOW_SIZE - 1)),
                    "{bits}"
                );
            }
        }
        let (third, asked) = placed(39, RAM_END, 2);
        assert_eq!((third.unwrap(), asked), (first - 2 * GIB, 3));
    }

    #[test]
    fn a_kvm_that_refuses_every_place_is_told_of_with_how_many_were_tried() {
        let says = |(refused, asked): (Result<u64, ForeignError>, usize)| {
            let error = refused.unwrap_err().to_string();
            let tried = format!("{asked} were refused, the last one with: ");
            assert!(error.contains(&tried), "{error}");
            (asked, error)
        };
        let (all, error) = says(placed(39, RAM_END, usize::MAX));
        assert_eq!(all as u64, PLACES);
        assert!(error.contains("39-bit"), "{error}");
        // Above RAM that ends just below the first place, there is that and no more; and nothing above more RAM than that.
        let (_, top) = top_of(39);
        assert_eq!(says(placed(39, top, usize::MAX)).0, 1);
        assert_eq!(says(placed(39, top + 1, usize::MAX)).0, 0);
    }
}
