//! From the first function on: a boot is traced before the kernel has made its sites nops, and over every border of its
//! start. More of it is in the suite linux_long.

use tests::start::Start;
use tests::{Guest, linux, usual_or_long};

#[test]
fn a_boot_has_every_init_call_that_the_kernel_says_it_made() {
    let start = Start {
        kernel: &linux().0,
        // Processors of the box make it warn, unless it is told so.
        words: "noxsave panic_on_warn=1",
        vcpus: 1,
        attach: "start_kernel",
        mode: "lossless",
        ring: "8192",
        wait_time: "visible",
        // Everything is hooked all the same. What is recorded is read several times, in the box.
        depth: Some("6"),
    };
    let booted = start.traced_as_untraced();
    let untraced = booted.compare_init_calls(start.kernel);
    println!("cannot be traced: {untraced:?}");
    // Those of the kernel's own tracer among the first.
    let is_known = |why: &&String| *why == "no patch site" || why.starts_with("never traced ");
    let odd: Vec<_> = untraced.keys().filter(|why| !is_known(why)).collect();
    assert_eq!(odd, [""; 0]);
    let counts = booted.trace.uftrace();
    for once in ["start_kernel", "setup_arch", "rest_init", "kernel_init"] {
        assert_eq!(counts.get(once), Some(&1), "{once}");
    }
    let boot = booted.trace.report("boot");
    for row in [
        "setup_arch <-start_kernel",
        "# the boot took ",
        "acpi_init",
        "# init calls are those that the kernel lists",
    ] {
        assert!(boot.contains(row), "{row}: {boot}");
    }
}

/// Before there are tasks, the one that boots is the current one.
#[test]
fn of_a_boot_only_the_calls_of_some_tasks_are_recorded() {
    const CALL: &str = "__x64_sys_sched_get_priority_max";
    let of_two = [
        ("--only-tasks", "syscalls", 50, false),
        ("--not-tasks", "syscalls", 0, true),
    ];
    let by_number = [("--only-tasks", "0", 0, true)];
    let of_all = of_two.into_iter().chain(by_number);
    for (which, task, call, init) in of_all.take(usual_or_long(2, 3)) {
        let guest = Guest::linux_with("noxsave", "syscalls 50", None).vcpus(2);
        let guest = guest.with([
            "--attach-at",
            "start_kernel",
            "--trace",
            "function",
            which,
            task,
        ]);
        let guest = guest.with([
            "--filter",
            CALL,
            "--filter",
            "sched_init",
            "--mode",
            "discard",
        ]);
        let (ended, trace) = guest.output().run();
        let _ = ended.good();
        let counts = trace.uftrace();
        let calls = counts.get(CALL).copied().unwrap_or_default();
        assert_eq!(calls, call, "{which} {task}: {counts:?}");
        assert_eq!(
            counts.contains_key("sched_init"),
            init,
            "{which} {task}: {counts:?}"
        );
        assert_eq!(trace.lost(), 0);
    }
}
