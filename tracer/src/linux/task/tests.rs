use super::testing::{AREA, BYTES, Guest, SIGNAL, THREAD_HEAD, layout};
use super::*;

fn tasks_of(guest: &Guest) -> Tasks {
    let layout = layout(&guest.0);
    tasks(&KernelView::new(&guest.0, layout.tables), &layout)
}

fn names(guest: &Guest) -> Vec<String> {
    tasks_of(guest)
        .found
        .into_iter()
        .map(|task| task.name)
        .collect()
}

#[test]
fn every_thread_of_every_process_is_found_once() {
    let guest = Guest::new(&[&["swapper/0"], &["init"], &["daemon", "worker", "a\x1bb"]]);
    assert_eq!(
        names(&guest),
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
    assert_eq!(names(&guest), ["swapper/0-100", "init-101"]);
    assert!(!tasks_of(&guest).is_whole);
    let worker = AREA + 3 * BYTES + 0x10;
    guest.word(AREA + BYTES, AREA + 2 * BYTES);
    guest.word(worker, worker);
    assert!(names(&guest).len() <= STEPS_MAX);
    assert_eq!(tasks_of(&guest).given_up, Some(STEPS_MAX));
    guest.word(worker, AREA + 2 * BYTES + SIGNAL + THREAD_HEAD);
    let tasks = tasks_of(&guest);
    assert_eq!((tasks.given_up, tasks.is_whole), (None, true));
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
    let tasks = tasks_of(&guest);
    assert_eq!((tasks.given_up, tasks.is_whole), (Some(STEPS_MAX), false));
    assert_eq!(tasks.found.len(), 1);
}
