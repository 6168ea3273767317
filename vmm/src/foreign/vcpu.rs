//! A vCPU of another VMM: its descriptor, its page, and the thread that executes it.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::error::ForeignError;
use super::process::{Process, VcpuDescriptor, is_vcpu};
use super::requests;
use super::run_page::RunPage;
use super::vcpu_file::VcpuFile;
use super::way_back::WayBack;

/// A vCPU.
#[derive(Debug)]
pub struct ForeignVcpu {
    file: VcpuFile,
    thread: Cell<Option<Executor>>,
    page: RunPage,
    /// How calls are made in the name of its VMM.
    way: WayBack,
}

/// The thread that executes a vCPU.
#[derive(Debug, Clone, Copy)]
pub struct Executor {
    /// Its number.
    pub thread: i32,
    /// Whether a filter decides which system calls it may make.
    pub is_filtered: bool,
}

impl ForeignVcpu {
    /// The vCPU with this descriptor. Which thread executes it is to be found out.
    ///
    /// # Errors
    /// [`ForeignError::Descriptor`], or [`ForeignError::Window`] when its page cannot be mapped.
    pub fn open(
        process: &Process,
        descriptor: VcpuDescriptor,
        way: WayBack,
    ) -> Result<Self, ForeignError> {
        let what = "the page that a vCPU shares with KVM cannot be mapped";
        let (number, pid) = (descriptor.vcpu, process.pid());
        let ours = process.descriptor(descriptor.fd)?;
        // It may have closed it since it was listed, and opened something else: nobody writes to that.
        let link = format!("/proc/self/fd/{}", ours.as_raw_fd());
        if !is_vcpu(Path::new(&link), number) {
            let vcpu = number;
            return Err(ForeignError::Closed { pid, vcpu });
        }
        let page = RunPage::map(ours);
        let page = page.map_err(|source| ForeignError::Window { what, source })?;
        Ok(Self {
            file: VcpuFile::of(pid, descriptor, page.descriptor()),
            thread: Cell::default(),
            page,
            way,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.file.number()
    }

    /// The process of its VMM.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.file.pid()
    }

    /// The page that it shares with KVM.
    #[must_use]
    pub const fn page(&self) -> &RunPage {
        &self.page
    }

    /// How calls are made in the name of its VMM.
    #[must_use]
    pub const fn way(&self) -> WayBack {
        self.way
    }

    /// Its descriptor's number in the VMM; none once that is closed, which may be something else by now.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        self.file.descriptor()
    }

    /// Its descriptor in the VMM, which is its own: what came to have that number since is asked nothing.
    ///
    /// # Errors
    /// [`ForeignError::Closed`].
    pub fn own_descriptor(&self) -> Result<i32, ForeignError> {
        let (pid, vcpu) = (self.pid(), self.number());
        let process = Process::open(pid)?;
        if !self.file.is_known_one(&process) {
            // Its VMM may have it by another one.
            self.look_among(&process, &process.all_vcpu_descriptors()?);
        }
        self.descriptor().ok_or(ForeignError::Closed { pid, vcpu })
    }

    /// Whether its VMM was seen to have closed it. A thread that executes it goes on until it leaves the guest, and no thread enters
    /// it after that.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.file.is_closed()
    }

    /// Whether its VMM has closed it, and nobody is in it any more: nothing is to be held for its sake.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.file.is_over()
    }

    /// It was seen to be over ([`closed`](super::closed)).
    pub fn is_executed_by_nobody(&self) {
        self.file.is_executed_by_nobody();
        self.lose_thread();
    }

    /// Sees by which of these descriptors its VMM has it now.
    pub fn look_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) {
        let is_back = self.file.look_among(process, descriptors);
        // Whoever executes it now need not be who did.
        if is_back {
            self.lose_thread();
        }
    }

    /// Whether one of these descriptors of its VMM is its own.
    #[must_use]
    pub fn is_among(&self, process: &Process, descriptors: &[VcpuDescriptor]) -> bool {
        self.file.found_among(process, descriptors).is_some()
    }

    /// Whether this descriptor of a thread is its own; none where the system does not say.
    #[must_use]
    pub fn is_descriptor_of(&self, thread: i32, fd: i32) -> Option<bool> {
        self.file.is_descriptor_of(thread, fd)
    }

    /// The thread that executes it, if that is known.
    #[must_use]
    pub fn executor(&self) -> Option<Executor> {
        self.thread.get()
    }

    /// The number of that thread.
    #[must_use]
    pub fn thread(&self) -> Option<i32> {
        self.executor().map(|executor| executor.thread)
    }

    /// This thread of `process` was seen to execute it.
    pub fn set_thread(&self, process: &Process, thread: i32) {
        let is_filtered = process.is_filtered(thread);
        self.thread.set(Some(Executor {
            thread,
            is_filtered,
        }));
    }

    /// The thread that executed it has ended.
    pub fn lose_thread(&self) {
        self.thread.set(None);
    }

    /// Whether the vCPU left the guest last with nothing half done, or has left it for good.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.is_closed() || self.page.is_consistent()
    }
}

/// Whether a system call executes this vCPU.
#[must_use]
pub fn is_run_of(vcpu: &ForeignVcpu, [number, fd, request]: [u64; 3]) -> bool {
    let is_its = |own: i32| fd == u64::from(own.cast_unsigned());
    number == libc::SYS_ioctl.cast_unsigned()
        && vcpu.descriptor().is_some_and(is_its)
        && request == requests::RUN
}

#[cfg(test)]
pub(super) mod testing {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// A vCPU of a process that has no descriptor of it: nobody executes it, and its page is of zeros.
    pub fn vcpu_of(process: &Process, vcpu: u16) -> ForeignVcpu {
        let file: OwnedFd = memfd_create("run", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 16).unwrap();
        let page = RunPage::map(file).unwrap();
        let descriptor = VcpuDescriptor { vcpu, fd: -1 };
        ForeignVcpu {
            file: VcpuFile::of(process.pid(), descriptor, page.descriptor()),
            thread: Cell::default(),
            page,
            way: WayBack::find(process).unwrap(),
        }
    }

    /// Whether KVM is to leave its registers in its page.
    pub fn is_prepared(vcpu: &ForeignVcpu) -> bool {
        vcpu.page.is_stale()
    }
}
