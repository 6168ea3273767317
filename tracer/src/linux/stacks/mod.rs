//! Where in its memory a Linux, which is stopped, has what it may still return by.
//!
//! An interrupt of a stub leaves the stub's address on a stack, a caller's address that somebody notes down is one of a stub while a
//! call's return is traced: such words stay for hours and lead nowhere. Which they are:
//!
//! - on a stack, what lies below its pointer: of a task that executes nowhere its own word for it (`thread.sp`), of one that executes
//!   its vCPU's. A kernel has no red zone: an interrupt would write there;
//! - all of the stack of a task that executes in ring 3, and of those that interrupts use, while no vCPU is on one;
//! - what is not on a stack. Stacks are mapped on their own (`CONFIG_VMAP_STACK`), so nothing is on one that the kernel
//!   can write in the direct map of all memory only, or not at all. In its image it has the first task's. That holds as long as nobody takes return addresses off stacks to keep them elsewhere, which
//!   kretprobes and the kernel's own function graph do: there it is not used.
//!
//! Where that leaves something, stacks of tasks that wait, and of those that vCPUs execute, are walked by the kernel's own tables
//! ([`crate::linux::orc`]): what lies beside return addresses nobody returns by either. One whose walk does not come to an end, through the kernel's text and that of its modules
//! alone, counts as in use as it is.
//!
//! A stack of a task that is in no list (one that ends) counts as in use. What cannot be read, or is not as it is in Linux 5.10 to
//! 6.12, says nothing: then a word may be returned by.

mod look;
#[cfg(test)]
mod tests;

use debuginfo::btf::Btf;
use image::TextRange;
use image::symbol::SymbolTable;
use terms::addr::Gva;
use terms::region::joined;

use super::kernel_view::ENTRY;
use super::per_cpu::PerCpu;
use super::task::TaskLayout;
use crate::introspection::{Returns, Untold};
use crate::target::{PhysicalMemory, TargetMemory, VcpuRegisters};
pub(in crate::linux) use look::Look;

/// What in a task says that its return addresses are kept elsewhere than on its stack, by the function graph, kretprobes and what
/// replaced those: 0 while none are. A kernel without one of them does not do that.
const KEPT: [&str; 3] = ["ret_stack", "kretprobe_instances", "rethooks"];

/// What tells which stacks are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stacks {
    /// `task_struct.thread.sp`: a task's stack pointer, when it last gave up its processor.
    pub pointer: u64,
    /// `task_struct.on_cpu`: not 0 from before it gets a processor until after it has given it up.
    pub on_cpu: u64,
    /// Words of `task_struct` that are 0 while none of the task's return addresses are kept elsewhere than on its stack.
    pub kept: Vec<u64>,
    /// Where system calls enter: every address space of the kernel's maps that.
    pub entry: Gva,
    /// From `_text` to `_end`. Its init part is freed and used for anything, stacks too, and stays mapped here.
    pub image: TextRange,
    /// `page_offset_base` and `vmalloc_base`: words that say where the direct map begins, and what comes after it.
    pub direct_map: Option<(Gva, Gva)>,
    /// `vmemmap_base`: the word that says where that ends, and the descriptors of pages begin, which are many.
    pub descriptors: Option<Gva>,
    /// What processors have beside the tasks that are in the list.
    pub processors: Option<Processors>,
}

/// What each processor has of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// Where they have it.
    pub per_cpu: PerCpu,
    /// `cpus_booted_once_mask`, which they have in common: those that were ever told to be there (`notify_cpu_starting`). There can be more vCPUs: ones
    /// that the kernel was told not to start (`maxcpus=1`), or that did not come up in time, stay where the firmware has left them.
    pub started: Option<Gva>,
    /// `idle_threads`: its idle task.
    pub idle: Gva,
    /// `hardirq_stack_ptr`: the highest word of the stack of its interrupts.
    pub interrupts: Option<Gva>,
    /// `cached_stacks`: two stacks of tasks that have ended, and in what they lead to (`vm_struct`) the offset of their address.
    pub cached: Option<(Gva, u64)>,
}

impl Stacks {
    /// What the kernel's types and symbols say.
    pub(crate) fn find(btf: &Btf<'_>, symbols: &SymbolTable) -> Option<Self> {
        let task = |path| Some(btf.field("task_struct", path)?.offset);
        let symbol = |name| symbols.address_of(name);
        Some(Self {
            pointer: task("thread.sp")?,
            on_cpu: task("on_cpu")?,
            kept: KEPT.into_iter().filter_map(task).collect(),
            entry: symbol(ENTRY)?,
            image: TextRange {
                start: symbol("_text")?,
                end: symbol("_end")?,
            },
            direct_map: symbol("page_offset_base").zip(symbol("vmalloc_base")),
            descriptors: symbol("vmemmap_base"),
            processors: Processors::find(btf, symbols),
        })
    }

    /// Where there may be what the guest still returns by. `has_kprobes` says whether it has probes of its own, or whether that is
    /// not known.
    pub(crate) fn returns(
        &self,
        memory: &dyn PhysicalMemory,
        tasks: &TaskLayout,
        has_kprobes: bool,
        vcpus: &[VcpuRegisters],
    ) -> Returns {
        let look = Look::new(self, memory, tasks, vcpus);
        let without_kprobes = |parts| (!has_kprobes).then_some(parts).ok_or(Untold::Kprobes);
        let within = look.stacks().and_then(without_kprobes);
        Returns {
            within,
            unused: joined(look.unused()),
        }
    }
}

impl Processors {
    /// The GS bases of those that were ever started, if the kernel says that of any.
    fn started(&self, view: &impl TargetMemory) -> Option<Vec<Gva>> {
        let bases = self.per_cpu.bases_in(view, self.started?);
        bases.ok().filter(|bases| !bases.is_empty())
    }

    fn find(btf: &Btf<'_>, symbols: &SymbolTable) -> Option<Self> {
        let symbol = |name| symbols.address_of(name);
        // From 6.2 to 6.14 it is with other things in one struct.
        let in_struct = || {
            let field = btf.field("pcpu_hot", "hardirq_stack_ptr")?;
            Some(symbol("pcpu_hot")?.wrapping_add(field.offset))
        };
        let cached = btf.field("vm_struct", "addr").map(|field| field.offset);
        Some(Self {
            per_cpu: PerCpu::find(symbols)?,
            started: symbol("cpus_booted_once_mask"),
            idle: symbol("idle_threads")?,
            interrupts: symbol("hardirq_stack_ptr").or_else(in_struct),
            cached: symbol("cached_stacks").zip(cached),
        })
    }
}
