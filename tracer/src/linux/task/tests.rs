use terms::addr::Gpa;

use super::*;
use crate::linux::kernel_view::KernelView;
use crate::mock::{MockTarget, Rights};
use crate::target::TextMemory;

const AREA: u64 = 0xffff_8880_0000_0000;
const BYTES: u64 = 0x200;
const SIGNAL: u64 = 0x100;
const THREAD_HEAD: u64 = 0x18;

/// Tasks at `AREA`, each in 512 bytes with its `signal_struct` in the upper half.
struct Guest(MockTarget);

fn layout(target: &MockTarget) -> TaskLayout {
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
    fn new(processes: &[&[&str]]) -> Self {
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

    fn word(&mut self, at: u64, value: u64) {
        self.0.write(Gva(at), &value.to_le_bytes()).unwrap();
    }

    fn tasks(&self) -> Tasks {
        let layout = layout(&self.0);
        tasks(&KernelView::new(&self.0, layout.tables), &layout)
    }

    fn names(&self) -> Vec<String> {
        self.tasks()
            .found
            .into_iter()
            .map(|task| task.name)
            .collect()
    }
}

#[test]
fn every_thread_of_every_process_is_found_once() {
    let guest = Guest::new(&[&["swapper/0"], &["init"], &["daemon", "worker", "a\x1bb"]]);
    assert_eq!(
        guest.names(),
        [
            "swapper/0-100",
            "init-101",
            "daemon-102",
            "worker-103",
            "a?b-104"
        ]
    );
}

#[test]
fn lists_that_lead_nowhere_or_round_and_round_end() {
    let mut guest = Guest::new(&[&["swapper/0"], &["init"], &["daemon", "worker"]]);
    guest.word(AREA + BYTES, 0x1234_0000_0000);
    assert_eq!(guest.names(), ["swapper/0-100", "init-101"]);
    let worker = AREA + 3 * BYTES + 0x10;
    guest.word(AREA + BYTES, AREA + 2 * BYTES);
    guest.word(worker, worker);
    assert!(guest.names().len() <= STEPS_MAX);
    assert_eq!(guest.tasks().given_up, Some(STEPS_MAX));
    guest.word(worker, AREA + 2 * BYTES + SIGNAL + THREAD_HEAD);
    assert_eq!(guest.tasks().given_up, None);
}

#[test]
fn a_task_whose_thread_list_leads_to_itself_is_given_up() {
    let mut guest = Guest::new(&[&["swapper/0"], &["init", "thread"]]);
    // No task is found on such a way, so their number alone would never end it.
    for process in [AREA, AREA + BYTES] {
        let node = process + 0x10;
        guest.word(process + SIGNAL + THREAD_HEAD, node);
        guest.word(node, node);
    }
    let tasks = guest.tasks();
    assert_eq!(tasks.given_up, Some(STEPS_MAX));
    assert_eq!(tasks.found.len(), 1);
}
