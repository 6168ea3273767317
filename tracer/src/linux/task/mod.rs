//! Whose stacks there are: the guest's tasks with their names, read out of its memory while it runs.
//!
//! Records name a stack and not a task, and are read some milliseconds after they were made, when the
//! vCPU may be with another task. So not *who runs* is asked but *whose stack is this*: the list of all
//! tasks says it, also for those that sleep. Interrupt stacks are nobody's.
//!
//! Facts: `struct task_struct` and `struct signal_struct` of Linux 5.10 to 6.12.

#[cfg(test)]
pub(in crate::linux) mod testing;
#[cfg(test)]
mod tests;

use debuginfo::btf::{Btf, Field};
use image::symbol::SymbolTable;
use terms::addr::Gva;
use terms::printable::masked;

use crate::introspection::{Task, TaskList, Tasks};
use crate::linux::kernel_view::{KernelTables, KernelView};
use crate::target::{MemoryError, PhysicalMemory, TargetMemory};

/// Steps along the lists in one look, at most: as many tasks as a Linux has process numbers by default. A step reads
/// some tens of bytes.
const STEPS_MAX: usize = 1 << 15;
const NAME_MAX: u64 = 64;

/// Places in the guest's structs, in bytes from their beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLayout {
    /// The first task.
    pub first: Gva,
    /// The page tables that map every task.
    pub tables: KernelTables,
    /// `task_struct.tasks`: the list of processes.
    pub tasks: u64,
    /// `task_struct.thread_node`: the list of a process' threads.
    pub thread_node: u64,
    /// `task_struct.signal`, and in it the head of that list.
    pub signal: u64,
    /// `signal_struct.thread_head`.
    pub thread_head: u64,
    /// `task_struct.pid`.
    pub pid: u64,
    /// `task_struct.comm`.
    pub comm: Field,
    /// `task_struct.stack`.
    pub stack: u64,
}

impl TaskLayout {
    /// What the kernel's types and symbols say.
    pub(crate) fn find(btf: &Btf<'_>, symbols: &SymbolTable, tables: KernelTables) -> Option<Self> {
        let task = |path| btf.field("task_struct", path);
        let offset = |path| task(path).map(|field: Field| field.offset);
        Some(Self {
            first: symbols.address_of("init_task")?,
            tables,
            tasks: offset("tasks")?,
            thread_node: offset("thread_node")?,
            signal: offset("signal")?,
            thread_head: btf.field("signal_struct", "thread_head")?.offset,
            pid: offset("pid")?,
            comm: task("comm")?,
            stack: offset("stack")?,
        })
    }
}

impl TaskList for TaskLayout {
    fn look(&self, memory: &dyn PhysicalMemory) -> Tasks {
        tasks(&KernelView::new(memory, self.tables), self)
    }
}

/// All tasks, as far as the lists can be followed: the guest continues meanwhile. Lists of a guest's making can
/// lead anywhere and round and round, so there is an end to the steps along them.
#[must_use]
pub fn tasks(memory: &(impl TargetMemory + ?Sized), layout: &TaskLayout) -> Tasks {
    let mut walk = Walk {
        memory,
        layout,
        steps: 0,
        found: Vec::new(),
    };
    // A pointer that leads nowhere ends the walk too; what was found before is as good as the rest.
    let ended = walk.processes();
    let given_up = (walk.steps >= STEPS_MAX).then_some(STEPS_MAX);
    Tasks {
        given_up,
        is_whole: ended.is_ok() && given_up.is_none(),
        found: walk.found,
    }
}

/// A walk along the guest's lists.
struct Walk<'a, M: TargetMemory + ?Sized> {
    memory: &'a M,
    layout: &'a TaskLayout,
    /// Entries of lists that were looked at, of processes and of threads.
    steps: usize,
    found: Vec<Task>,
}

impl<M: TargetMemory + ?Sized> Walk<'_, M> {
    fn processes(&mut self) -> Result<(), MemoryError> {
        let mut process = self.layout.first;
        while self.step() {
            self.threads(process)?;
            let tasks = process.wrapping_add(self.layout.tasks);
            let next = self.memory.read_address(tasks)?;
            process = Gva(next.0.wrapping_sub(self.layout.tasks));
            if process == self.layout.first {
                break;
            }
        }
        Ok(())
    }

    /// All threads of a process; at least the one that it is.
    fn threads(&mut self, process: Gva) -> Result<(), MemoryError> {
        self.add(process)?;
        let signal = process.wrapping_add(self.layout.signal);
        let signal = self.memory.read_address(signal)?;
        let head = signal.wrapping_add(self.layout.thread_head);
        let mut node = self.memory.read_address(head)?;
        while node != head && self.step() {
            let thread = Gva(node.0.wrapping_sub(self.layout.thread_node));
            if thread != process {
                self.add(thread)?;
            }
            node = self.memory.read_address(node)?;
        }
        Ok(())
    }

    /// Whether one more step may be made.
    fn step(&mut self) -> bool {
        let may = self.steps < STEPS_MAX;
        self.steps += usize::from(may);
        may
    }

    fn add(&mut self, at: Gva) -> Result<(), MemoryError> {
        self.found.push(task(self.memory, self.layout, at)?);
        Ok(())
    }
}

fn task(
    memory: &(impl TargetMemory + ?Sized),
    layout: &TaskLayout,
    at: Gva,
) -> Result<Task, MemoryError> {
    let mut pid = [0; 4];
    memory.read(at.wrapping_add(layout.pid), &mut pid)?;
    let length = usize::try_from(layout.comm.size.min(NAME_MAX)).unwrap_or_default();
    let mut comm = vec![0; length];
    memory.read(at.wrapping_add(layout.comm.offset), &mut comm)?;
    let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    let comm = String::from_utf8_lossy(comm);
    let comm = masked(&comm);
    let pid = i32::from_le_bytes(pid);
    Ok(Task {
        at,
        stack: memory.read_address(at.wrapping_add(layout.stack))?,
        pid,
        name: format!("{comm}-{pid}"),
    })
}
