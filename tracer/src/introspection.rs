//! What a guest can be asked about itself while it runs: which of its text is still there, its modules, its own probes and
//! its threads. It is read out of the lists that the guest keeps of itself, so nothing of it is believed unchecked, and all work is
//! bounded.

use std::fmt::Debug;
use std::sync::Arc;

use image::{Added, TextRange};
use terms::addr::{Gpa, Gva};
use terms::region::Region;
use terms::site::SITE_LENGTH;

use crate::current_task::Cgroup;
use crate::module::Module;
use crate::stack::{OwnReturn, Unwind, UnwindError};
use crate::target::{MemoryError, PhysicalMemory, VcpuRegisters};

/// A module in the guest's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The module.
    pub module: Module,
    /// Whether it has been started: before, what it says of itself is not yet what stays.
    pub is_live: bool,
}

/// What a module has to be traced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Where the functions in its text begin, by address, one for each, and what they are called.
    pub functions: Vec<(Gva, String)>,
    /// Sites in its text, ascending, and what stands there.
    pub sites: Vec<(Gva, [u8; SITE_LENGTH])>,
}

impl Contents {
    /// What comes with `module`, whose contents these are.
    #[must_use]
    pub fn added<'a>(&'a self, module: &'a Module) -> Added<'a> {
        Added {
            module: &module.name,
            text: module.text,
            functions: &self.functions,
            sites: &self.sites,
        }
    }
}

/// Why the modules are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// A pointer leads nowhere.
    #[error("the guest's list of modules cannot be read: {0}")]
    Memory(#[from] MemoryError),
    /// The list does not end.
    #[error("the guest's list of modules has more than {0} entries")]
    Endless(usize),
    /// A module with more functions than any.
    #[error("module '{name}' says that it has {count} {what}, more than {limit}")]
    TooMany {
        /// Its name.
        name: String,
        /// Of what.
        what: &'static str,
        /// How many it says.
        count: u64,
        /// How many are believed.
        limit: u64,
    },
}

/// Why it is not known where the guest has kprobes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KprobesError {
    /// A pointer leads nowhere.
    #[error("the guest's list of its own probes (kprobes) cannot be read: {0}")]
    Memory(#[from] MemoryError),
    /// The lists do not end.
    #[error("the guest's list of its own probes (kprobes) has more than {0} entries")]
    Endless(usize),
    /// Somebody is about to change them.
    #[error("the guest is changing its own probes (kprobes) right now: try again")]
    Busy,
    /// It has some way of its own to keep them.
    #[error(
        "where the guest has its own probes (kprobes) is not known: its kernel's symbols and types (BTF) do not say {0}; \
         what has a patch site can be traced all the same"
    )]
    Unknown(&'static str),
}

/// Why a cgroup is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// Its types say nothing of them.
    #[error("the guest's kernel does not say where it has its cgroups (they are read by its BTF)")]
    Unknown,
    /// A pointer leads nowhere.
    #[error("the guest's list of cgroups cannot be read: {0}")]
    Memory(#[from] MemoryError),
    /// The list does not end.
    #[error("the guest's list of cgroups has more than {0} entries")]
    Endless(usize),
    /// There is none.
    #[error(
        "the guest has no cgroup '{path}': a path in the unified hierarchy (version 2), from its root on, as /proc/PID/cgroup shows it"
    )]
    Missing {
        /// Its path.
        path: String,
    },
}

/// A thread of a guest, known by the stack that it has in its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Where the kernel describes it: another one there is another thread.
    pub at: Gva,
    /// The lowest address of its stack.
    pub stack: Gva,
    /// Its number.
    pub pid: i32,
    /// Its name and number, as ftrace shows them: `comm-pid`.
    pub name: String,
}

/// The threads that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tasks {
    /// In the order of the guest's lists.
    pub found: Vec<Task>,
    /// The lists had not come to their end when this many steps had been made: no more are.
    pub given_up: Option<usize>,
    /// The lists were followed to their ends, so no thread in them is missing. Those that are just made or end are in none.
    pub is_whole: bool,
}

/// Where in its memory a guest may have addresses that it returns by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returns {
    /// Nowhere but here, sorted, without overlap; or why they may be anywhere.
    pub within: Result<Vec<Region>, Untold>,
    /// Not here. Sorted, without overlap.
    pub unused: Vec<Region>,
}

impl Returns {
    /// They may be anywhere.
    #[must_use]
    pub const fn anywhere(why: Untold) -> Self {
        Self {
            within: Err(why),
            unused: Vec::new(),
        }
    }

    /// It may tell more a moment later.
    #[must_use]
    pub fn may_tell_more(&self) -> bool {
        matches!(
            self.within,
            Err(Untold::Elsewhere { .. } | Untold::OnNoStack { .. })
        )
    }
}

/// Why a guest cannot tell in which parts of its memory it has addresses that it returns by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    /// Nothing is known of its stacks, or the words that say what of its memory is where make no sense.
    #[error("nothing says where this kernel has its stacks")]
    Unknown,
    /// A vCPU executes something else: its firmware, system management, a guest of its own.
    #[error("vCPU {vcpu} executes what is not this kernel's, at {rip}")]
    Elsewhere {
        /// Which one.
        vcpu: usize,
        /// Where.
        rip: Gva,
    },
    /// A vCPU executes the kernel, on the stack of an interrupt or of a task that ends, or where it may still have a program's.
    #[error("vCPU {vcpu} is on no stack of a task, at {rsp}")]
    OnNoStack {
        /// Which one.
        vcpu: usize,
        /// Its stack pointer.
        rsp: Gva,
    },
    /// The list of tasks leads nowhere, or has no end.
    #[error("the kernel's list of tasks cannot be followed to its end")]
    Tasks,
    /// A task's stack is in the direct map of all memory.
    #[error("the stack of the task at {task} lies among other memory")]
    Mixed {
        /// Its `task_struct`.
        task: Gva,
    },
    /// The guest's own tracers have taken return addresses off the stack of a task.
    #[error("the kernel keeps return addresses of the task at {task} elsewhere than on its stack")]
    Kept {
        /// Its `task_struct`.
        task: Gva,
    },
    /// The guest has probes of its own, or it cannot be told.
    #[error("the kernel has kprobes of its own, or its list of them cannot be read")]
    Kprobes,
    /// A table is not there, or there is no end to them.
    #[error("the kernel's page tables cannot be followed")]
    Tables,
}

/// Where a guest has its threads.
pub trait TaskList: Debug + Send {
    /// All of them, as far as they can be found: the guest continues meanwhile. The work is bounded, whatever the guest
    /// makes of its lists.
    fn look(&self, memory: &dyn PhysicalMemory) -> Tasks;
}

/// The lists of a guest.
pub trait Introspection: Debug + Send {
    /// Whether the text that it needed only to start may have been freed.
    fn init_is_gone(&self, memory: &dyn PhysicalMemory) -> bool;

    /// Whether functions can come that are in no image: those of modules that can be traced.
    fn has_modules(&self) -> bool;

    /// The modules whose text is there, in the order of its list. Those whose text lies where none can are left out, as
    /// are all that overlap an earlier one or `kernel`.
    ///
    /// # Errors
    /// A [`ModuleError`] when the list cannot be followed to its end.
    fn modules(
        &self,
        memory: &dyn PhysicalMemory,
        kernel: &[TextRange],
    ) -> Result<Vec<Loaded>, ModuleError>;

    /// How many symbols `module` says that it has: what reading it costs.
    ///
    /// # Errors
    /// A [`ModuleError`].
    fn symbols(&self, memory: &dyn PhysicalMemory, module: &Module) -> Result<usize, ModuleError>;

    /// Reads what `module` has. It may be unloaded meanwhile: then this is of no use, and the next look at the list
    /// says so.
    ///
    /// # Errors
    /// A [`ModuleError`].
    fn contents(
        &self,
        memory: &dyn PhysicalMemory,
        module: &Module,
    ) -> Result<Contents, ModuleError>;

    /// Reads the memory of its kernel, without a processor of it.
    ///
    /// # Errors
    /// [`MemoryError`] where nothing is mapped.
    fn read(
        &self,
        memory: &dyn PhysicalMemory,
        at: Gva,
        into: &mut [u8],
    ) -> Result<(), MemoryError>;

    /// Where the guest, which is stopped, has probes of its own, switched on or off; sorted.
    ///
    /// # Errors
    /// A [`KprobesError`].
    fn kprobes(&self, memory: &dyn PhysicalMemory) -> Result<Vec<Gva>, KprobesError>;

    /// Whether it can have probes of its own that nobody sees: it can have some, and has no types that say where. Then
    /// [`Self::kprobes`] finds none.
    fn hides_kprobes(&self) -> bool;

    /// Whether somebody in it is changing its text, or is about to: until it is over nobody else may put anything into what is the guest's
    /// own. None where that cannot be told. While the guest is stopped the answer holds until it continues.
    fn changes_text(&self, memory: &dyn PhysicalMemory) -> Option<bool>;

    /// The first of `kprobes`, which are sorted, that would be in the way of what is displaced between `at` and `end`.
    fn kprobe_in_the_way(&self, kprobes: &[Gva], at: Gva, end: Gva) -> Option<Gva>;

    /// Where there may be what a guest that is stopped with these registers still returns by.
    fn returns(&self, memory: &dyn PhysicalMemory, vcpus: &[VcpuRegisters]) -> Returns;

    /// More parts of its memory, sorted and without overlap, by which it does not return: of the stacks on which `places` lie,
    /// what lies beside return addresses, which are what `own` makes of what lies there. That is more work while the guest is
    /// stopped, so it is asked when something was found.
    fn beside_returns(
        &self,
        memory: &dyn PhysicalMemory,
        vcpus: &[VcpuRegisters],
        places: &[Gpa],
        own: &OwnReturn<'_>,
    ) -> Vec<Region>;

    /// The cgroup at this path, in the one hierarchy of all.
    ///
    /// # Errors
    /// A [`CgroupError`].
    fn cgroup(&self, memory: &dyn PhysicalMemory, path: &str) -> Result<Cgroup, CgroupError>;

    /// Whether stacks of its kernel can be walked, as far as the image says.
    fn can_unwind(&self) -> bool;

    /// Who walks them.
    ///
    /// # Errors
    /// An [`UnwindError`].
    fn unwind(&self, memory: &dyn PhysicalMemory) -> Result<Arc<dyn Unwind>, UnwindError>;

    /// Where it has its threads, if that is known.
    fn tasks(&self) -> Option<Box<dyn TaskList>>;
}
