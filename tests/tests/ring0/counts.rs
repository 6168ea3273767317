//! The counts in a trace equal the guest's own where the traced code runs in ring 0.

use tests::exact::{EVERYTHING, assert_exact, assert_traced_exactly};
use tests::{Guest, scaled};

fn ring_0(iterations: u32) -> String {
    format!("ring=0 iterations={}", scaled(iterations))
}

#[test]
fn workloads_of_every_kind_of_site() {
    for vcpus in [1, 2] {
        let workloads = "calls,recursion,tail_calls,c_fentry,c_mcount,c_patchable,variadic_float";
        assert_traced_exactly(workloads, &ring_0(500), vcpus);
    }
}

#[test]
fn threads_that_are_preempted_and_migrate() {
    assert_traced_exactly("threads,nops,smp", &ring_0(5000), 2);
}

#[test]
fn threads_in_ring_3() {
    assert_traced_exactly("threads,variadic_float", "ring=3 iterations=500", 2);
}

/// Another attach point than the usual one: what was called before is not in the trace, what is called
/// from there on is, the function itself included.
#[test]
fn from_any_function_on() {
    let guest = |attach| {
        Guest::new("workload=tail_calls,calls ring=0 iterations=50")
            .with(EVERYTHING)
            .with(["--attach-at", attach])
            .output()
    };
    let (ended, trace) = guest("calls_root").run();
    let mut called = ended.good().printed().called();
    called.retain(|function, _| function.starts_with("calls_"));
    assert_eq!(trace.counts(), called);
    let (ended, trace) = guest("calls_twig").run();
    let printed = ended.good().printed();
    // Its callers are entered already.
    assert_eq!(trace.counts()["calls_twig"], printed.calls["calls_twig"]);
    assert_eq!(
        trace.counts()["calls_root"],
        printed.calls["calls_root"] - 1
    );
}

#[test]
fn from_the_attach_point_on() {
    let guest = Guest::new("workload=calls,threads ring=0 iterations=50").vcpus(2);
    let (ended, trace) = guest.with(EVERYTHING).output().run();
    assert_exact(&trace, &ended.good().printed());
}
