//! What is left of a guest that died.

use tests::{Ended, Guest, limited};

#[test]
fn a_panic_has_a_status_and_shows_what_came_before_it() {
    let script = "echo c > /proc/sysrq-trigger";
    let trace = ["--trace", "graph"];
    let (ended, trace) = Guest::linux(script, None)
        .vcpus(2)
        .with(trace)
        .output()
        .run();
    assert_eq!(ended.code, Some(107), "{ended}");
    for word in [
        "the guest's kernel panics on vCPU",
        "last 20 calls of each vCPU",
        // What an interrupt in between did may have taken the last lines.
        "> sysrq_handle_crash > panic\n",
        "panic() {",
        "all of them: vmm report",
    ] {
        assert!(ended.stderr.contains(word), "no '{word}': {ended}");
    }
    assert!(trace.report("counts").contains("sysrq_handle_crash"));
}

#[test]
fn a_kernel_that_halts_after_its_panic_is_noticed() {
    // panic=0 after boot: it stays where it is for ever.
    let script = "echo 0 > /proc/sys/kernel/panic; echo c > /proc/sysrq-trigger";
    let (ended, _) = Guest::linux(script, None).run();
    assert_eq!(ended.code, Some(107), "{ended}");
    assert!(
        !ended.stderr.contains("last 20 calls"),
        "nothing was traced: {ended}"
    );
}

#[test]
fn a_hang_has_a_status_and_shows_where_it_is_and_what_came_before() {
    let script = "echo it hangs; while :; do :; done";
    let runs = |limit| {
        let trace = ["--trace", "graph", "--filter", "*tick*", "--timeout", limit];
        Guest::linux(script, None).vcpus(2).with(trace).run().0
    };
    let hangs = |ended: &Ended| ended.stdout.contains("it hangs");
    let ended = limited(runs, hangs);
    assert!(hangs(&ended), "{ended}");
    assert_eq!(ended.code, Some(103), "{ended}");
    for word in [
        "last 20 calls of each vCPU",
        "tick_sched_",
        "(--timeout): vCPU 0 is ",
        ", vCPU 1 is ",
    ] {
        assert!(ended.stderr.contains(word), "no '{word}': {ended}");
    }
}
