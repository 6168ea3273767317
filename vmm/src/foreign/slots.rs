//! Which of the VMM's memory is the guest's RAM, found without asking the VMM: what lies where is guessed, and **KVM proves
//! it**.
//!
//! `KVM_SET_USER_MEMORY_REGION` (Documentation/virt/kvm/api.rst, 4.35) with exactly the values of a slot that there is returns
//! 0 and changes nothing; with another size or another address of the VMM's it is refused (EINVAL); with a number that is
//! not in use, for guest addresses that have a slot, as well (EEXIST). So where RAM ends is found by asking for slots of
//! one page at addresses of which no other is known: one that is granted is taken back at once, while no vCPU runs. Never is
//! a number that is in use named with another guest address: that would move the slot.
//!
//! One of a slot's values is whether KVM notes which of its pages are written, for a migration or for snapshots by difference. Named
//! without that flag, a slot would be noted of no more, and what was noted be forgotten: so that is asked before.
//!
//! **Between the question and the naming nobody changes a slot.** The threads that execute vCPUs are held, but a VMM switches that flag by
//! another one (QEMU by its main thread, as a migration begins); and afterwards nobody can tell that it did, for a slot that was named
//! with the other flag looks as it was named. So while slots are named **all threads of the VMM are held** ([`Slots::alone`]), those
//! that it makes meanwhile too. A call that one of them was in is over when it stands; one that does not come to a stop (it waits for a
//! disk) is in a call that changes no slot and makes no thread, which can be seen, and stops when that returns, before it can make
//! another. Not for longer: who is held may be who fetches the guest's memory when we read it (userfaultfd), so no slot is named while
//! that is read, and one that has not stopped is waited for and let go before. Another process that has the machine's descriptor
//! could still change a slot; no VMM is known that does.

use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_userspace_memory_region};
use terms::addr::Gpa;
use terms::region::Region;
use vm_memory::ByteValued;

use super::backends::{self, HIGH};
use super::error::ForeignError;
use super::memory::{Range, RemoteRam};
use super::others::Others;
use super::park::AllParked;
use super::parked::Parked;
use super::process::{Mapping, Process};
use super::requests;
use super::shapes::{ClearLog, Slot};
use crate::layout::MIB;
use crate::vcpu::FullRegisters;

/// Time that the threads of a VMM have to stand that execute no vCPU. The guest stands still meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// A page.
const PAGE: u64 = 4096;
/// The number for slots that are only asked for: no VMM counts so far.
pub const TRIAL: u32 = 32_700;
/// Numbers of slots in which RAM is looked for.
const NUMBERS: u32 = 64;
/// More RAM than any guest of ours has; the search for its end goes no further.
const MOST: u64 = 1 << 46;
/// RAM begins at a multiple of this from one end of a mapping.
const STEP: u64 = 2 * MIB;
/// No piece of a guest's RAM is smaller.
const PIECE_MIN: u64 = 16 * MIB;
/// No slot has so many pages (`KVM_MEM_MAX_NR_PAGES`); a multiple of 64.
const NO_PAGE: u64 = 1 << 52;
/// Places of one mapping that are looked at.
const STEPS_MAX: u64 = 1 << 16;

/// KVM's slots, as seen by a thread of the VMM that is held.
pub(super) struct Slots<'p> {
    /// The thread.
    pub parked: &'p mut Parked,
    /// All others of the VMM, those that execute vCPUs left out.
    others: Others<'p>,
    /// The virtual machine's descriptor.
    pub vm: i32,
    /// Until when.
    pub deadline: Instant,
    /// Whether KVM was seen to note which pages of the guest are written.
    pub are_logged: bool,
}

impl<'p> Slots<'p> {
    /// Those of this virtual machine, whose vCPUs are parked.
    ///
    /// # Errors
    /// [`ForeignError::NotHeld`].
    pub fn of(
        all: &'p mut AllParked,
        process: &'p Process,
        vm: i32,
        deadline: Instant,
    ) -> Result<Self, ForeignError> {
        let (parked, others) = all.caller_and_others(process)?;
        Ok(Self {
            parked,
            others,
            vm,
            deadline,
            are_logged: false,
        })
    }
}

impl Slots<'_> {
    /// Does `what` while no thread of the VMM runs that could change a slot.
    fn alone<T>(
        &mut self,
        what: impl FnOnce(&mut Self) -> Result<T, ForeignError>,
    ) -> Result<T, ForeignError> {
        let until = |slots: &Self| slots.deadline.min(Instant::now() + PATIENCE);
        let deadline = until(self);
        let done = self.others.hold(deadline).and_then(|()| what(self));
        // Who is late is not waited for where nothing goes on.
        let deadline = done
            .as_ref()
            .map_or_else(|_| Instant::now(), |_| until(self));
        let let_go = self.others.let_go(deadline);
        let done = done?;
        let_go?;
        Ok(done)
    }

    /// The virtual machine's descriptor, which is one still: what came to have that number since is asked nothing.
    fn vm(&self) -> Result<i32, ForeignError> {
        match self.others.process().is_vm(self.vm) {
            true => Ok(self.vm),
            false => Err(ForeignError::NotVmm {
                pid: self.others.process().pid(),
            }),
        }
    }

    /// What is looked through in between makes no call, which would look at the time.
    fn check_deadline(&self) -> Result<(), ForeignError> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(ForeignError::Late {
                thread: self.parked.thread(),
                what: "the guest's memory was looked for",
            }),
        }
    }

    /// Sets a slot; of size 0, takes it away.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn set(&mut self, number: u32, range: Range) -> Result<(), ForeignError> {
        self.set_with(number, 0, range)
    }

    fn set_with(&mut self, number: u32, flags: u32, range: Range) -> Result<(), ForeignError> {
        let mut slot = Slot(kvm_userspace_memory_region {
            slot: number,
            flags,
            guest_phys_addr: range.guest.start.0,
            memory_size: range.guest.bytes,
            userspace_addr: range.host,
        });
        let (at, vm, deadline) = (self.parked.scratch()?, self.vm()?, self.deadline);
        let call = "KVM_SET_USER_MEMORY_REGION";
        let set = self.parked.with_scratch(slot.as_mut_slice(), |parked| {
            parked.ioctl(call, vm, requests::SET_MEMORY, at, deadline)
        });
        set.map(|_| ())
    }

    /// Takes a slot away, if there is one with exactly these values: its number may be somebody else's by now.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn take_away_exactly(&mut self, number: u32, range: Range) -> Result<(), ForeignError> {
        // Refused where it is another's; nothing changes where it is this one; one that nobody has is made, and goes at once.
        match self.try_set(number, range)? {
            true => self.take_away(number, range),
            false => Ok(()),
        }
    }

    /// Takes a slot away, if there is one of this number.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    fn take_away(&mut self, number: u32, range: Range) -> Result<(), ForeignError> {
        let guest = Region {
            bytes: 0,
            ..range.guest
        };
        self.try_set(number, Range { guest, ..range }).map(|_| ())
    }

    /// The same as [`Self::set`]; false where KVM refuses.
    fn try_set(&mut self, number: u32, range: Range) -> Result<bool, ForeignError> {
        is_granted(self.set(number, range))
    }

    /// Whether a slot is of this number and has exactly these values, all of whose pages have some slot. To be asked
    /// [alone](Self::alone).
    fn names(&mut self, number: u32, range: Range) -> Result<bool, ForeignError> {
        let is_logged = self.is_logged(number)?;
        let flags = if is_logged {
            KVM_MEM_LOG_DIRTY_PAGES
        } else {
            0
        };
        let granted = is_granted(self.set_with(number, flags, range))?;
        self.are_logged |= is_logged && granted;
        Ok(granted)
    }

    /// Whether KVM notes which pages of this slot are written. It is asked to forget that of pages that no slot has: it refuses that
    /// (EINVAL) where there is anything to forget, and says where there is not (ENOENT; `kvm_clear_dirty_log_protect`,
    /// virt/kvm/kvm_main.c, since Linux 5.0).
    ///
    /// # Errors
    /// [`ForeignError::Logs`] where it cannot be told, [`ForeignError::Call`] and others.
    fn is_logged(&mut self, number: u32) -> Result<bool, ForeignError> {
        let mut log = ClearLog {
            slot: number,
            pages: 64,
            first_page: NO_PAGE,
            bitmap: 0,
        };
        let (at, vm, deadline) = (self.parked.scratch()?, self.vm()?, self.deadline);
        let asked = self.parked.with_scratch(log.as_mut_slice(), |parked| {
            parked.ioctl("KVM_CLEAR_DIRTY_LOG", vm, requests::CLEAR_LOG, at, deadline)
        });
        is_noted(asked)
    }

    /// Takes away what was only asked for, by a tracer that was killed before it could.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn forget_trial(&mut self) -> Result<(), ForeignError> {
        let guest = Region {
            start: Gpa(0),
            bytes: 0,
        };
        self.take_away(TRIAL, Range { guest, host: 0 })
    }

    /// Whether a page of the guest's has a slot. `host` is some page of the VMM's.
    fn is_covered(&mut self, at: u64, host: u64) -> Result<bool, ForeignError> {
        let guest = Region {
            start: Gpa(at),
            bytes: PAGE,
        };
        let granted = self.try_set(TRIAL, Range { guest, host })?;
        if granted {
            let guest = Region { bytes: 0, ..guest };
            self.set(TRIAL, Range { guest, host })?;
        }
        Ok(!granted)
    }

    /// Where the run of pages ends that have a slot and begin with `start`, which has one; at `limit` in any case.
    fn end_of(&mut self, start: u64, limit: u64, host: u64) -> Result<u64, ForeignError> {
        let mut step = PAGE;
        while start + step < limit && self.is_covered(start + step, host)? {
            step *= 2;
        }
        // The last page that is known to have one, and the first that is known to have none.
        let (mut has, mut has_none) = (start + step / 2, limit.min(start + step));
        while has_none - has > PAGE {
            let middle = has + (has_none - has) / 2 / PAGE * PAGE;
            match self.is_covered(middle, host)? {
                true => has = middle,
                false => has_none = middle,
            }
        }
        Ok(has_none)
    }

    /// Whether KVM has a slot exactly so. That it has one at all there is known.
    fn is_slot(&mut self, range: Range) -> Result<bool, ForeignError> {
        for number in 0..NUMBERS {
            if self.names(number, range)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl backends::Named for Slots<'_> {
    fn is_covered(&mut self, at: Gpa) -> Result<bool, ForeignError> {
        // Any page of the VMM's does.
        let host = self.parked.scratch()? & !(PAGE - 1);
        Slots::is_covered(self, at.0, host)
    }

    /// The numbers that are in use: a page of guest memory that has a slot is refused to all, and to those for another
    /// reason. What is named as its memory, a page of a stack, is no slot's.
    ///
    /// # Errors
    /// Those of calls.
    fn used_numbers(&mut self, covered: Gpa) -> Result<Vec<u32>, ForeignError> {
        let guest = Region {
            start: covered,
            bytes: PAGE,
        };
        let host = self.parked.scratch()? & !(PAGE - 1);
        let mut used = Vec::new();
        for number in 0..NUMBERS {
            match self.set(number, Range { guest, host }) {
                Err(ForeignError::Call { source, .. })
                    if source.raw_os_error() == Some(libc::EINVAL) =>
                {
                    used.push(number);
                }
                Err(ForeignError::Call { .. }) => {}
                // What is there already is granted, and stays.
                Ok(()) => used.push(number),
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }

    /// Whether KVM has a slot exactly so, if its number is one of these.
    ///
    /// # Errors
    /// Those of calls.
    fn is_one_of(&mut self, numbers: &[u32], range: Range) -> Result<bool, ForeignError> {
        for number in numbers {
            if self.names(*number, range)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether there is anything to forget, by what KVM says to who asks it to forget what no slot has. With a ring of dirty pages it notes
/// them elsewhere, and says ENXIO; before Linux 5.0 it does not know the request.
fn is_noted(asked: Result<u64, ForeignError>) -> Result<bool, ForeignError> {
    match asked {
        Ok(_) => Err(ForeignError::Logs(None)),
        Err(ForeignError::Call { source, call }) => match source.raw_os_error() {
            Some(libc::EINVAL) => Ok(true),
            Some(libc::ENOENT) => Ok(false),
            Some(libc::ENXIO | libc::ENOTTY) => Err(ForeignError::Logs(Some(source))),
            _ => Err(ForeignError::Call { source, call }),
        },
        Err(error) => Err(error),
    }
}

/// Whether KVM has done it; false where it refuses what was named.
fn is_granted(set: Result<(), ForeignError>) -> Result<bool, ForeignError> {
    match set {
        Ok(()) => Ok(true),
        Err(ForeignError::Call { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EEXIST)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The RAM of the guest, of which a vCPU has these registers.
///
/// # Errors
/// [`ForeignError::NoMemory`], and those of calls.
pub(super) fn find(
    process: &Process,
    slots: &mut Slots<'_>,
    vcpus: &[FullRegisters],
) -> Result<RemoteRam, ForeignError> {
    let mut mappings = process.mappings()?;
    let pid = process.pid();
    let not_found = |at, tried| ForeignError::NoMemory {
        pid,
        tried,
        at,
        is_ours: process.is_this_program(),
    };
    let some = mappings.first().ok_or_else(|| not_found(Gpa(0), 0))?.start;
    if !slots.is_covered(MIB, some)? {
        return Err(not_found(Gpa(MIB), 0));
    }
    let end = slots.end_of(MIB, HIGH, some)?;
    let proof = Proof::of(pid, vcpus)?;
    let is_all = |mapping: &&Mapping| mapping.bytes >= end - MIB;
    for mapping in mappings.iter().filter(is_all) {
        for base in bases(mapping, end) {
            slots.check_deadline()?;
            if !proof.fits(base, end) {
                continue;
            }
            let ranges = slots.alone(|slots| proven(slots, base, end, some))?;
            if !ranges.is_empty() {
                return Ok(RemoteRam::new(pid, ranges));
            }
        }
    }
    mappings.retain(|mapping| mapping.bytes >= PIECE_MIN);
    let tried = mappings.len();
    let found = slots.alone(|slots| {
        let (low, high_end) = covered(slots, end, some)?;
        backends::find(slots, &mappings, low, high_end)
    });
    match found? {
        Ok(ranges) if proof.is_of(&ranges) => Ok(RemoteRam::new(pid, ranges)),
        Ok(_) => Err(not_found(Gpa(MIB), tried)),
        // With a part of it nobody could say that nothing leads to us any more.
        Err(at) => Err(not_found(at, tried)),
    }
}

/// The guest memory that has slots: below the hole for devices, where it ends at `end`, and where above that it does; what
/// was added may come after that, and there may be a gap before.
fn covered(slots: &mut Slots<'_>, end: u64, some: u64) -> Result<(Region, u64), ForeignError> {
    let low = if slots.is_covered(0, some)? { 0 } else { MIB };
    let high_end = match slots.is_covered(HIGH, some)? {
        true => slots.end_of(HIGH, MOST, some)?,
        false => HIGH,
    };
    let low = Region {
        start: Gpa(low),
        bytes: end - low,
    };
    Ok((low, high_end))
}

/// Where the guest has memory beside `ranges`, if it has any: it was added since those were found.
///
/// # Errors
/// Those of calls.
pub(super) fn added(slots: &mut Slots<'_>, ranges: &[Range]) -> Result<Option<Gpa>, ForeignError> {
    let ends = ranges.iter().map(|range| range.guest.end());
    let end = ends.max().unwrap_or_default().max(HIGH);
    Ok(backends::added_after(slots, end)?.map(Gpa))
}

/// What KVM says is the guest's, if its RAM lies at `base` of the VMM.
fn proven(
    slots: &mut Slots<'_>,
    base: u64,
    end: u64,
    some: u64,
) -> Result<Vec<Range>, ForeignError> {
    let range = |start: u64, end: u64, host| Range {
        guest: Region {
            start: Gpa(start),
            bytes: end - start,
        },
        host,
    };
    let mut found = Vec::new();
    let low = [(0, end), (MIB, end)].map(|(start, end)| range(start, end, base + start));
    for candidate in low {
        if slots.is_slot(candidate)? {
            found.push(candidate);
            break;
        }
    }
    let Some(first) = found.first().copied() else {
        return Ok(found);
    };
    if first.guest.start.0 > 0 {
        for below in backends::CONVENTIONAL {
            let candidate = range(0, below, base);
            if slots.is_covered(0, some)? && slots.is_slot(candidate)? {
                found.insert(0, candidate);
                break;
            }
        }
    }
    if slots.is_covered(HIGH, some)? {
        let high_end = slots.end_of(HIGH, MOST, some)?;
        let candidate = range(HIGH, high_end, base + end);
        match slots.is_slot(candidate)? {
            true => found.push(candidate),
            // What is there is another piece.
            false => found.clear(),
        }
    }
    // So is what was added.
    if added(slots, &found)?.is_some() {
        found.clear();
    }
    Ok(found)
}

/// Where RAM that ends at `end` can begin in a mapping, the likeliest first: at its beginning or its end, or a multiple of
/// [`STEP`] from there, since the kernel merges mappings that lie side by side.
fn bases(mapping: &Mapping, end: u64) -> impl Iterator<Item = u64> + use<> {
    let (start, room) = (mapping.start, mapping.bytes.saturating_sub(end));
    let steps = (room / STEP).min(STEPS_MAX);
    let fits = mapping.bytes >= end;
    let offsets = (0..=steps).flat_map(move |step| {
        let offset = step * STEP;
        [offset, room - offset.min(room)]
    });
    offsets
        .filter(move |_| fits)
        .map(move |offset| start + offset)
}

/// A look at the guest's memory that only its RAM stands: page tables that lead to what a vCPU executes.
struct Proof {
    pid: i32,
    running: Vec<tracer::target::VcpuRegisters>,
}

impl Proof {
    fn of(pid: i32, vcpus: &[FullRegisters]) -> Result<Self, ForeignError> {
        let vcpus = vcpus.iter().filter(|vcpu| vcpu.is_online());
        let running: Vec<_> = vcpus.map(Into::into).collect();
        match running.is_empty() {
            true => Err(ForeignError::Not64Bit),
            false => Ok(Self { pid, running }),
        }
    }

    /// Whether the page tables of a vCPU lead to its next instruction, if the guest's RAM lies at `base`.
    fn fits(&self, base: u64, end: u64) -> bool {
        let guest = Region {
            start: Gpa(0),
            bytes: end,
        };
        self.is_of(&[Range { guest, host: base }])
    }

    /// The same, if this is its RAM.
    fn is_of(&self, ranges: &[Range]) -> bool {
        let ram = RemoteRam::new(self.pid, ranges);
        self.running.iter().any(|vcpu| {
            let Ok(root) = tracer::PageTableRoot::of(vcpu) else {
                return false;
            };
            tracer::translate(&ram, root, terms::addr::Gva(vcpu.rip)).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn where_it_cannot_be_told_whether_pages_are_noted_nobody_attaches() {
        let said = |number: i32| {
            is_noted(Err(ForeignError::Call {
                call: "KVM_CLEAR_DIRTY_LOG",
                source: io::Error::from_raw_os_error(number),
            }))
        };
        assert!(said(libc::EINVAL).unwrap());
        assert!(!said(libc::ENOENT).unwrap());
        for unknown in [libc::ENXIO, libc::ENOTTY] {
            let error = said(unknown).unwrap_err();
            assert!(matches!(error, ForeignError::Logs(Some(_))), "{error}");
            assert!(error.to_string().contains("dirty-ring-size"), "{error}");
        }
        let error = is_noted(Ok(0)).unwrap_err();
        assert!(matches!(error, ForeignError::Logs(None)), "{error}");
        let error = said(libc::EBADF).unwrap_err();
        assert!(matches!(error, ForeignError::Call { .. }), "{error}");
    }
}
