//! Whose stacks there are: the guest's tasks with their names, read out of its memory while it runs.
//!
//! Records name a stack and not a task, and are read some milliseconds after they were made, when the
//! vCPU may be with another task. So not *who runs* is asked but *whose stack is this*: the list of all
//! tasks says it, also for those that sleep. Interrupt stacks are nobody's.
//!
//! Facts: `struct task_struct` and `struct signal_struct` of Linux 5.10 to 6.12.

#[cfg(test)]
mod tests;

use crate::addr::Gva;
use crate::image::btf::{Btf, Field};
use crate::image::symbol::SymbolTable;
use crate::kernel_view::KernelTables;
use crate::target::{MemoryError, TargetMemory};

/// More tasks are not looked at.
const TASKS_MAX: usize = 1 << 15;
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

/// A task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The lowest address of its kernel stack.
    pub stack: Gva,
    /// Its number.
    pub pid: i32,
    /// Its name and number, as ftrace shows them: `comm-pid`.
    pub name: String,
}

/// All tasks, as far as the lists can be followed: the guest goes on meanwhile.
#[must_use]
pub fn tasks(memory: &(impl TargetMemory + ?Sized), layout: &TaskLayout) -> Vec<Task> {
    let mut found = Vec::new();
    let _ = walk(memory, layout, &mut found);
    found
}

fn walk(
    memory: &(impl TargetMemory + ?Sized),
    layout: &TaskLayout,
    found: &mut Vec<Task>,
) -> Result<(), MemoryError> {
    let mut process = layout.first;
    for _ in 0..TASKS_MAX {
        threads(memory, layout, process, found)?;
        let next = word(memory, process.wrapping_add(layout.tasks))?;
        process = Gva(next.0.wrapping_sub(layout.tasks));
        if process == layout.first || found.len() >= TASKS_MAX {
            break;
        }
    }
    Ok(())
}

/// All threads of a process; at least the one that it is.
fn threads(
    memory: &(impl TargetMemory + ?Sized),
    layout: &TaskLayout,
    process: Gva,
    found: &mut Vec<Task>,
) -> Result<(), MemoryError> {
    found.push(task(memory, layout, process)?);
    let signal = word(memory, process.wrapping_add(layout.signal))?;
    let head = signal.wrapping_add(layout.thread_head);
    let mut node = word(memory, head)?;
    while node != head && found.len() < TASKS_MAX {
        let thread = Gva(node.0.wrapping_sub(layout.thread_node));
        if thread != process {
            found.push(task(memory, layout, thread)?);
        }
        node = word(memory, node)?;
    }
    Ok(())
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
    let shown = |char: char| if char.is_control() { '?' } else { char };
    let comm: String = String::from_utf8_lossy(comm).chars().map(shown).collect();
    let pid = i32::from_le_bytes(pid);
    Ok(Task {
        stack: word(memory, at.wrapping_add(layout.stack))?,
        pid,
        name: format!("{comm}-{pid}"),
    })
}

fn word(memory: &(impl TargetMemory + ?Sized), at: Gva) -> Result<Gva, MemoryError> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(Gva(u64::from_le_bytes(bytes)))
}
