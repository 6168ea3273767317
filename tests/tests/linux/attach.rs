//! `vmm attach` to a stock Linux of another VMM, without any file of its kernel.

use tests::{Guest, Running};

use crate::shell::Shell;

fn attach(to: &Shell, options: &[&str]) -> Running {
    let attached = Guest::attached(to.running.pid(), None);
    let one = |attached: Guest, option: &&str| attached.with([*option]);
    let mut attached = options.iter().fold(attached, one).output().start();
    attached.client().status();
    attached
}

#[test]
fn system_calls_are_counted_exactly_and_the_text_is_given_back() {
    let mut shell = Shell::start();
    let text = shell.client().digest();
    let function = "__x64_sys_sched_get_priority_max";
    for tracer in ["function", "graph"] {
        let options = ["--trace", tracer, "--mode", "discard", "--filter", function];
        let attached = attach(&shell, &options);
        assert_ne!(
            shell.client().digest(),
            text,
            "{tracer}: nothing was changed"
        );
        shell.does("syscalls 12345");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(function.to_owned(), 12345)], "{tracer}: {ended}");
        assert_eq!(shell.client().digest(), text, "{tracer}");
    }
    let _ = shell.end();
}

#[test]
fn the_graph_of_an_open_is_that_of_every_function() {
    let mut shell = Shell::start();
    let text = shell.client().digest();
    let options = ["--trace", "graph", "--graph-function", "do_sys_openat2"];
    let attached = attach(&shell, &options);
    shell.does("cat /proc/version");
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, trace) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let graph = trace.report("graph");
    let mut rest = graph.as_str();
    for child in [
        "|  do_sys_openat2() {",
        "|    getname",
        "|    do_filp_open() {",
        "|      path_openat() {",
        "|    fd_install",
        "|  }",
    ] {
        let at = rest.find(child);
        rest = &rest[at.unwrap_or_else(|| panic!("no '{child}' in order: {graph}"))..];
    }
    assert_eq!(shell.client().digest(), text);
    shell.does("cat /proc/version");
    let _ = shell.end();
}
