//! Kernels that are neither the bundled guest nor a Linux, under `vmm run` and under QEMU: small ones in C (images/foreign),
//! each with what compilers and kernels do otherwise.

use std::path::Path;

use serde_json::json;
use tests::{Counts, Guest, Running, foreign_kernel};

/// What each does when it is told to.
const WORK: [(&str, u64); 4] = [
    ("work_run", 1),
    ("work_middle", 40),
    ("work_leaf", 120),
    ("work_deep", 10),
];
/// How often it is told to.
const TIMES: u64 = 2;

fn expected() -> Counts {
    let all = WORK.iter();
    all.map(|(name, calls)| ((*name).to_owned(), TIMES * calls))
        .collect()
}

fn work(guest: &mut Running, done: &mut usize, times: u64) {
    for _ in 0..times {
        *done += 1;
        guest.type_text("c");
        guest.wait_for_times("foreign: done", *done);
    }
}

/// Traces the work of `guest` by a tracer that `tracing` drives, and lets it work on; the text is as before then.
fn traced(guest: &mut Running, tracing: Option<&mut Running>, tracer: &str) {
    let mut client = match tracing {
        Some(tracing) => tracing.client(),
        None => guest.client(),
    };
    let text = client.digest();
    let mut done = 0;
    work(guest, &mut done, 1);
    let wanted = json!({"tracer": tracer, "filter": ["work_*"]});
    let begun = client.call("start", wanted.clone());
    assert_eq!(begun["traced"], WORK.len(), "{begun}");
    assert_eq!(
        begun["skipped"].as_array().map_or(0, Vec::len),
        0,
        "{begun}"
    );
    assert_ne!(client.digest(), text, "nothing was changed");
    work(guest, &mut done, TIMES);
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    work(guest, &mut done, 1);
}

fn run(kernel: &Path, tracer: &str) {
    let mut guest = Guest::of(kernel, "").output().start();
    guest.wait_for("foreign: ready");
    traced(&mut guest, None, tracer);
    guest.type_text("q");
    let (ended, trace) = guest.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!((trace.uftrace(), trace.lost()), (expected(), 0), "{tracer}");
}

fn attached(mut guest: Running, kernel: &Path, tracer: &str, status: i32) {
    guest.wait_for("foreign: ready");
    let mut attached = Guest::attached(guest.pid(), Some(kernel)).output().start();
    traced(&mut guest, Some(&mut attached), tracer);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, trace) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(!ended.stderr.contains("stays"), "{ended}");
    assert_eq!((trace.uftrace(), trace.lost()), (expected(), 0), "{tracer}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    assert!(!maps.contains("exotrace"), "{maps}");
    // What the next one finds is what the first has found.
    guest.type_text("c");
    guest.type_text("q");
    assert_eq!(guest.end().0.code, Some(status));
}

/// Under `vmm run`, and as the guest of that and of QEMU when it runs already.
fn everywhere(name: &str) {
    let kernel = foreign_kernel(name);
    for tracer in ["function", "graph"] {
        run(&kernel, tracer);
        attached(Guest::of(&kernel, "").start(), &kernel, tracer, 0);
        let qemu = format!("exotrace-{}-{name}-{tracer}", std::process::id());
        let qemu = Guest::kernel_under_qemu(&qemu, &kernel).start();
        attached(qemu, &kernel, tracer, 1);
    }
}

/// `-fcf-protection=branch -fpatchable-function-entry=16,11`: listed are the nops before the function.
#[test]
fn nops_that_an_entry_and_its_landing_pad_split_are_sites() {
    everywhere("prefix");
}

#[test]
fn a_kernel_on_tables_of_four_gigabytes_has_room_for_the_window() {
    everywhere("identity");
}

/// Under `vmm run` they are made nops before it starts; whoever comes later leaves them as they are.
#[test]
fn calls_of_the_profiling_function_come_back() {
    everywhere("raw");
}
