//! The list of tasks of a guest that makes it up: it ends, and its names can be shown.

use debuginfo::btf::Field;
use terms::addr::{Gpa, Gva};
use tracer::linux::kernel_view::KernelTables;
use tracer::linux::task::{TaskLayout, tasks};

use super::guest_memory::{GuestMemory, image};

/// Where the first task lies.
const FIRST: u64 = 0xffff_8880_0000_0000;
/// Reads that a list of the longest length needs, and some.
const READS_MAX: u64 = 1 << 19;
/// More tasks are not shown.
const TASKS_MAX: usize = 1 << 15;

fn layout() -> TaskLayout {
    TaskLayout {
        first: Gva(FIRST),
        tables: KernelTables {
            top: Gpa(0),
            five_levels: None,
        },
        tasks: 0,
        thread_node: 0x10,
        signal: 0x20,
        thread_head: 0x18,
        pid: 0x28,
        comm: Field {
            offset: 0x30,
            size: 16,
        },
        stack: 0x40,
    }
}

/// Follows the list.
pub fn run(bytes: &[u8]) {
    let memory = GuestMemory::new(bytes, READS_MAX);
    let found = tasks(&memory, &layout()).found;
    // Each process is one task at least, before the length is looked at.
    assert!(found.len() <= 2 * TASKS_MAX, "{} tasks", found.len());
    for task in found {
        assert!(!task.name.chars().any(char::is_control), "{:?}", task.name);
        assert!(task.name.chars().count() <= 64 + 12, "{}", task.name);
    }
}

/// Two processes, the second with two threads; one that leads back to itself.
pub fn seeds() -> Vec<Vec<u8>> {
    let at = |number: u64| FIRST + 0x200 * number;
    let head = |number: u64| at(number) + 0x100 + 0x18;
    let mut words = Vec::new();
    let mut texts = Vec::new();
    for (task, next, leader, name) in [
        (0, 1, 0, "swapper/0"),
        (1, 0, 1, "daemon"),
        (2, 2, 1, "worker"),
    ] {
        words.push((at(task), at(next)));
        words.push((at(task) + 0x20, at(leader) + 0x100));
        words.push((at(task) + 0x28, 100 + task));
        words.push((at(task) + 0x40, 0xffff_c900_0000_0000 + task * 0x4000));
        texts.push((at(task) + 0x30, name));
    }
    let nodes = [(0, head(0)), (1, at(2) + 0x10), (2, head(1))];
    words.extend([(head(0), at(0) + 0x10), (head(1), at(1) + 0x10)]);
    words.extend(nodes.map(|(task, node)| (at(task) + 0x10, node)));
    let good = image(&words, &texts);
    words.push((at(2) + 0x10, at(2) + 0x10));
    vec![good, image(&words, &texts)]
}
