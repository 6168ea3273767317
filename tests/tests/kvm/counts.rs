//! The counts in a trace equal the guest's own, exactly.

use serde_json::Value;
use tests::exact::{EVERYTHING, assert_exact, assert_traced_exactly};
use tests::{Client, Guest, scaled};

macro_rules! exact {
    ($($workload:ident: $iterations:expr, $rest:expr;)*) => {
        $(mod $workload {
            use super::{assert_traced_exactly, scaled};

            fn on(vcpus: u32) {
                let rest = format!("iterations={} {}", scaled($iterations), $rest);
                assert_traced_exactly(stringify!($workload), &rest, vcpus);
            }

            #[test]
            fn on_one_vcpu() {
                on(1);
            }

            #[test]
            fn on_two_vcpus() {
                on(2);
            }
        })*
    };
}

exact! {
    calls: 2000, "";
    recursion: 500, "";
    tail_calls: 5000, "";
    threads: 20_000, "tick=200";
    smp: 50_000, "tick=500";
    c_fentry: 3000, "";
    c_mcount: 3000, "";
    c_patchable: 3000, "";
    nops: 2000, "threads=6 tick=200";
    variadic_float: 2000, "tick=200";
    // Its printing takes longer than its calls.
    many: 10, format_args!("many_calls=1 many_functions={}", scaled(10_000));
}

/// `spin` counts as it happens, not from a table, and faster than any reader: what is in the trace
/// and what is known to be missing are all calls.
#[test]
fn spin_that_is_traced_from_the_boot_on() {
    for vcpus in [1, 2] {
        let options = [
            "--trace",
            "function",
            "--filter",
            "spin_root",
            "--mode",
            "discard",
        ];
        let guest = Guest::new("workload=spin").vcpus(vcpus).with(options);
        let mut running = guest.with(["--ring-size", "64"]).output().start();
        let seen = |status: &Value| Client::rings(status, "read") > 10_000;
        running.client().wait_until("reads many calls", seen);
        running.type_text("q");
        let (ended, trace) = running.end();
        let printed = ended.good().printed();
        let counts = trace.counts();
        assert_eq!(counts.keys().collect::<Vec<_>>(), ["spin_root"]);
        assert_eq!(counts, trace.uftrace());
        assert_eq!(
            counts["spin_root"] + trace.lost(),
            printed.calls["spin_root"]
        );
    }
}

#[test]
fn a_trace_from_the_boot_on_has_everything() {
    let workloads = "calls,recursion,tail_calls,threads,smp,c_fentry,c_mcount,c_patchable,nops,\
                     variadic_float";
    for vcpus in [1, 2] {
        let iterations = scaled(100);
        let cmdline = format!("workload={workloads} iterations={iterations} tick=200");
        let (ended, trace) = Guest::new(&cmdline)
            .vcpus(vcpus)
            .with(EVERYTHING)
            .output()
            .run();
        let (untraced, _) = Guest::new(&cmdline).vcpus(vcpus).run();
        let printed = ended.good().printed();
        assert_eq!(printed, untraced.good().printed());
        assert_exact(&trace, &printed);
    }
}

/// Without times there is less in a record, and nothing less in the counts.
#[test]
fn a_session_without_a_clock_counts_the_same() {
    let iterations = scaled(10_000);
    let guest = Guest::new(&format!(
        "workload=threads iterations={iterations} tick=200"
    ))
    .vcpus(2);
    let (ended, trace) = guest
        .with(EVERYTHING)
        .with(["--clock", "none"])
        .output()
        .run();
    assert_exact(&trace, &ended.good().printed());
}
