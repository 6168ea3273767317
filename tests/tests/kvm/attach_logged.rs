//! A VMM that has KVM note which pages of its guest are written, as a migration does, and snapshots by difference.

use std::path::Path;

use tests::{guest, vmm_says};

use crate::scripted::Scripted;

const LOGGED: &str = include_str!("attach_logged.py");

/// What KVM says when it is asked for what it has noted.
fn asks(logged: &mut Scripted) -> String {
    logged.told("")
}

/// A slot was named as one of which nothing is noted; then nothing was any more.
#[test]
fn who_looks_for_a_guests_memory_does_not_end_what_is_noted_of_it() {
    let mut logged = Scripted::start(LOGGED, &[]);
    assert_eq!(asks(&mut logged), "notes");
    let pid = logged.pid().to_string();
    let listed = vmm_says(&["ps", "--guest"]);
    let mut lines = listed.stdout.lines();
    let line = lines.find(|line| line.split_whitespace().next() == Some(&pid));
    assert!(line.is_some_and(|line| line.contains("64 MiB")), "{listed}");
    assert_eq!(asks(&mut logged), "notes", "{listed}");
    let looked = vmm_says(&["doctor", "--attach", &pid]);
    let is_said = looked.stderr.contains("KVM notes which pages");
    assert!(
        looked.stdout.contains("This guest can be traced") && is_said,
        "{looked}"
    );
    assert_eq!(asks(&mut logged), "notes", "{looked}");
}

/// As of a QEMU with `dirty-ring-size`: KVM does not say which of its slots are noted.
#[test]
fn a_vmm_whose_guest_is_noted_in_rings_is_refused() {
    let logged = Scripted::start(LOGGED, &[Path::new("ring")]);
    let pid = logged.pid().to_string();
    let why = "QEMU is to be started without `dirty-ring-size`";
    let looked = vmm_says(&["doctor", "--attach", &pid]);
    assert_eq!(looked.code, Some(1), "{looked}");
    assert!(looked.stdout.contains(why), "{looked}");
    let kernel = guest();
    let kernel = kernel.to_str().unwrap();
    let said = vmm_says(&["attach", &pid, "--trace", "function", "--kernel", kernel]);
    assert!(said.stderr.contains(why), "{said}");
    assert_eq!(
        (said.code, said.stderr.lines().count()),
        (Some(100), 1),
        "{said}"
    );
}

/// The flag was asked for, and the slot named with it a moment later: what the VMM had switched on by then was switched off.
#[test]
fn a_vmm_that_begins_to_have_its_guest_noted_just_now_goes_on_with_that() {
    let mut logged = Scripted::start(LOGGED, &[]);
    let pid = logged.pid().to_string();
    assert_eq!(logged.told("toggle"), "toggles");
    for _ in 0..20 {
        let looked = vmm_says(&["doctor", "--attach", &pid]);
        assert!(
            looked.stdout.contains("This guest can be traced"),
            "{looked}"
        );
    }
    assert_eq!(logged.told("end"), "0 wrong");
}
