//! A Linux of nothing but tasks, for tests.

use terms::addr::{Gpa, Gva};

use super::TaskLayout;
use crate::linux::kernel_view::KernelTables;
use crate::mock::{MockTarget, Rights};
use crate::target::TextMemory;
use debuginfo::btf::Field;

/// Where the tasks are.
pub(in crate::linux) const AREA: u64 = 0xffff_8880_0000_0000;
/// Distance of two tasks.
pub(in crate::linux) const BYTES: u64 = 0x200;
pub(super) const SIGNAL: u64 = 0x100;
pub(super) const THREAD_HEAD: u64 = 0x18;

/// Tasks at `AREA`, each in 512 bytes with its `signal_struct` in the upper half.
pub(in crate::linux) struct Guest(pub MockTarget);

pub(in crate::linux) fn layout(target: &MockTarget) -> TaskLayout {
    TaskLayout {
        first: Gva(AREA),
        tables: KernelTables {
            top: target.root().table,
            five_levels: None,
        },
        tasks: 0,
        thread_node: 0x10,
        signal: 0x20,
        thread_head: THREAD_HEAD,
        pid: 0x28,
        comm: Field {
            offset: 0x30,
            size: 16,
        },
        stack: 0x40,
    }
}

impl Guest {
    /// The processes of a list, each with threads.
    pub fn new(processes: &[&[&str]]) -> Self {
        let mut target = MockTarget::new(1, 64 << 20);
        target
            .map(Gva(AREA), Gpa(0x800_0000), 4096, Rights::ALL)
            .unwrap();
        let mut guest = Self(target);
        let mut numbered = 0..;
        let places: Vec<Vec<u64>> = processes
            .iter()
            .map(|threads| numbered.by_ref().take(threads.len()).collect())
            .collect();
        let at = |number: u64| AREA + number * BYTES;
        for (index, threads) in places.iter().enumerate() {
            let next = places[(index + 1) % places.len()][0];
            let head = at(threads[0]) + SIGNAL + THREAD_HEAD;
            guest.word(at(threads[0]), at(next));
            guest.word(head, at(threads[0]) + 0x10);
            for (place, (number, name)) in threads.iter().zip(processes[index]).enumerate() {
                let next = threads.get(place + 1).map_or(head, |next| at(*next) + 0x10);
                guest.word(at(*number) + 0x10, next);
                guest.word(at(*number) + 0x20, at(threads[0]) + SIGNAL);
                guest.word(at(*number) + 0x28, 100 + number);
                let mut comm = name.as_bytes().to_vec();
                comm.resize(16, 0);
                guest.0.write(Gva(at(*number) + 0x30), &comm).unwrap();
                guest.word(at(*number) + 0x40, 0xffff_c900_0000_0000 + number * 0x4000);
            }
        }
        guest
    }

    /// Writes a word at an address of the kernel's.
    pub fn word(&mut self, at: u64, value: u64) {
        self.0.write(Gva(at), &value.to_le_bytes()).unwrap();
    }
}
