//! Traces: exact counts, and the graph of a system call.

use tests::Guest;

#[test]
fn system_calls_are_counted_exactly() {
    let function = "__x64_sys_sched_get_priority_max";
    for tracer in ["function", "graph"] {
        let trace = ["--trace", tracer, "--mode", "discard", "--filter", function];
        let guest = Guest::linux("syscalls 12345", None).vcpus(2).with(trace);
        let (ended, trace) = guest.output().run();
        let ended = ended.good();
        assert!(ended.stdout.contains("made 12345"), "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(function.to_owned(), 12345)], "{tracer}");
    }
}

/// Its caller is not traced: what it returns to says who that is.
#[test]
fn every_system_call_says_who_has_called_it() {
    let function = "__x64_sys_sched_get_priority_max";
    let trace = ["--trace", "function", "--callers", "--mode", "discard"];
    let guest = Guest::linux("syscalls 1234", None).vcpus(2).with(trace);
    let (ended, trace) = guest.with(["--filter", function]).output().run();
    assert!(ended.good().stdout.contains("made 1234"));
    let rows = trace.report_with("callers", &["--csv"]);
    let expected = format!("1234,{function},do_syscall_64");
    assert_eq!(rows.lines().skip(1).collect::<Vec<_>>(), [expected]);
}

#[test]
fn the_graph_of_an_open_shows_what_it_is_made_of() {
    let trace = ["--trace", "graph", "--graph-function", "do_sys_openat2"];
    let guest = Guest::linux("cat /proc/version", None).vcpus(2).with(trace);
    let (ended, trace) = guest.output().run();
    assert_eq!(ended.code, Some(0), "{ended}");
    let graph = trace.report("graph");
    // The first call of each of these, in this order, inside the first open.
    let mut rest = graph.as_str();
    for child in [
        "|  do_sys_openat2() {",
        "|    getname",
        "|    get_unused_fd_flags",
        "|    do_filp_open() {",
        "|      path_openat() {",
        "|    fd_install",
        "|    putname",
        "|  }",
    ] {
        let at = rest.find(child);
        rest = &rest[at.unwrap_or_else(|| panic!("no '{child}' in order: {}", graph))..];
    }
    // uftrace, too, knows whose calls they are: PID 1's, first of all.
    let tasks = trace.uftrace_says(&["report", "--task"]);
    let names = || {
        tasks
            .lines()
            .filter_map(|line| line.split_whitespace().last())
    };
    assert!(names().any(|name| name.ends_with("-1")), "{tasks}");
    assert!(!names().any(|name| name.starts_with("swapper")), "{tasks}");
}
