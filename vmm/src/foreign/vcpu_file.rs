//! The file of a vCPU, and by which descriptor its VMM has it, as long as it has one: who calls KVM_RUN names that.

use std::cell::Cell;
use std::os::fd::RawFd;

use super::process::{Process, VcpuDescriptor};
use super::same_file::{Descriptor, are_same};

/// A vCPU's file, of a process.
#[derive(Debug)]
pub(super) struct VcpuFile {
    number: u16,
    pid: i32,
    /// The descriptor by which we have it, which is open for as long as this is used.
    ours: RawFd,
    theirs: Cell<i32>,
    access: Cell<Access>,
}

/// Whether its VMM has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// By a descriptor.
    Open,
    /// Not any more. Who was in KVM_RUN with it then is in it until the vCPU leaves the guest; nobody comes there after that.
    Closed,
    /// Nor is anybody in it.
    Over,
}

impl VcpuFile {
    /// This one of a process, which we have by `ours`.
    pub const fn of(pid: i32, theirs: VcpuDescriptor, ours: RawFd) -> Self {
        Self {
            number: theirs.vcpu,
            pid,
            ours,
            theirs: Cell::new(theirs.fd),
            access: Cell::new(Access::Open),
        }
    }

    /// The vCPU's number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Its VMM's process.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Its number in the VMM; none once that is closed, which may be something else by now.
    pub fn descriptor(&self) -> Option<i32> {
        (!self.is_closed()).then(|| self.theirs.get())
    }

    /// Whether its VMM was seen to have closed it.
    pub fn is_closed(&self) -> bool {
        self.access.get() != Access::Open
    }

    /// Whether nobody executes it any more, nor can.
    pub fn is_over(&self) -> bool {
        self.access.get() == Access::Over
    }

    /// Its VMM has closed it, and nobody is in it.
    pub fn is_executed_by_nobody(&self) {
        self.access.set(Access::Over);
    }

    /// Sees by which of these descriptors its VMM has it now: the one that is known, or a duplicate. Where there is none it was closed,
    /// unless the VMM ends just now. One that was closed is back if somebody who had it has given it to the VMM again: that is said by
    /// true.
    pub fn look_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) -> bool {
        let (number, was_closed) = (self.number, self.is_closed());
        match self.found_among(process, descriptors) {
            Some(fd) => {
                self.theirs.set(fd);
                self.access.set(Access::Open);
                if was_closed {
                    log::warn!("the VMM has vCPU {number} again, which it had closed");
                }
                was_closed
            }
            None if was_closed || process.is_ending() => false,
            None => {
                self.access.set(Access::Closed);
                log::warn!(
                    "the VMM has closed vCPU {number}, which nobody can enter any more: nothing more of it is recorded"
                );
                false
            }
        }
    }

    /// The one of these descriptors that is its own, if there is one: the one that is known before others.
    pub fn found_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) -> Option<i32> {
        let known = self.theirs.get();
        let own = descriptors.iter().filter(|one| one.vcpu == self.number);
        let mut own: Vec<_> = own.copied().collect();
        own.sort_by_key(|one| one.fd != known);
        let found = own.into_iter().find(|one| self.is(process, *one));
        found.map(|one| one.fd)
    }

    /// Whether the VMM still has it by the descriptor that is known.
    pub fn is_known_one(&self, process: &Process) -> bool {
        let (vcpu, fd) = (self.number, self.theirs.get());
        self.is(process, VcpuDescriptor { vcpu, fd })
    }

    /// Whether this descriptor of its VMM is its own. Where the system does not compare files, its name says so.
    fn is(&self, process: &Process, of: VcpuDescriptor) -> bool {
        let is_same = self.is_descriptor_of(self.pid, of.fd);
        is_same.unwrap_or_else(|| process.is_vcpu(of))
    }

    /// Whether this descriptor of a thread is its own; none where the system does not say.
    pub fn is_descriptor_of(&self, thread: i32, fd: i32) -> Option<bool> {
        let ours = Descriptor {
            pid: std::process::id().cast_signed(),
            fd: self.ours,
        };
        are_same(ours, Descriptor { pid: thread, fd }).ok()
    }
}
