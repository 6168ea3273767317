//! Where stubs and rings are in the guest's address space: nowhere that the kernel uses, now or later.

use std::time::Instant;

use serde_json::{Value, json};
use tests::{Guest, linux_initrd, patience};

/// A module comes and goes, so that the area of modules has been used; then, while everything is traced, large
/// ones come, each after those that it needs. What is looked for in the log is spelled so that this line in it is not found.
const MODULES: &str = "\
    insmod /modules/binfmt_misc.ko && rmmod binfmt_misc; \
    echo step used; read line; \
    cd /modules/large; loaded=0; \
    for module in *; do insmod $module && loaded=$((loaded + 1)); done; \
    echo loaded $loaded of $(ls | wc -l); \
    echo step loaded; read line; \
    dmesg | grep -e '[B]UG:' -e '[O]ops'; echo step over; read line";

#[test]
fn large_modules_find_their_place_while_everything_is_traced() {
    let guest = Guest::linux(MODULES, Some(&linux_initrd("initrd-modules"))).vcpus(2);
    let mut running = guest.start();
    running.wait_for("step used");
    let mut client = running.client();
    let before = client.digest();
    client.call(
        "start",
        json!({"filter": ["vmap_*", "load_module", "mod:*:*"]}),
    );
    running.type_text("\n");
    running.wait_for("step loaded");
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), before);
    assert_eq!(client.status()["tracing"]["frozen"], Value::Null);
    running.type_text("\n");
    running.wait_for("step over");
    drop(client);
    running.type_text("\n");
    let (ended, _) = running.end();
    let ended = ended.good();
    let printed = |what: &str| ended.stdout.lines().find(|line| line.contains(what));
    let loaded = printed("loaded ").expect("how many were loaded");
    let words: Vec<&str> = loaded.split_whitespace().collect();
    assert!(words[1] == words[3] && words[1].len() > 1, "{ended}");
    for trouble in ["BUG:", "Oops"] {
        assert_eq!(printed(trouble), None, "{ended}");
    }
}

#[test]
fn a_kernel_that_looks_for_writable_code_finds_none() {
    // Without noxsave it warns of the processor that the box emulates. It looks when it makes its text read-only, long after this attach point, and warns of what it finds.
    let script = "dmesg | grep 'W.X mappings'";
    for attach in ["sched_init_smp", "free_initmem", "rcu_end_inkernel_boot"] {
        let guest = Guest::linux_with("noxsave panic_on_warn=1", script, None);
        let trace = [
            "--trace",
            "graph",
            "--filter",
            "vfs_*",
            "--attach-at",
            attach,
        ];
        let (ended, _) = guest.vcpus(2).with(trace).run();
        let ended = ended.good();
        let passed = "Checked W+X mappings: passed, no W+X pages found";
        assert!(ended.stdout.contains(passed), "{attach}: {ended}");
    }
}

/// The first kernel starts the same one in its place, as soon as it is told to. That one has nothing to run: it
/// is a shell.
const KEXEC: &str = "\
    echo step first; read line; \
    kexec /kexec/vmlinuz /kexec/initrd \
    'console=ttyS0 quiet panic=-1 nokaslr'; echo kexec failed";

#[test]
fn another_kernel_in_the_place_of_the_traced_one_is_left_alone() {
    let mut running = Guest::linux(KEXEC, Some(&linux_initrd("initrd-kexec"))).start();
    running.wait_for("step first");
    let mut client = running.client();
    let before = client.digest();
    client.call("start", json!({"filter": ["vfs_*", "*_write*"]}));
    running.type_text("\n");
    running.wait_for("a shell on ttyS0");
    let deadline = Instant::now() + patience();
    let frozen = loop {
        let status = client.status();
        if let Some(why) = status["tracing"]["frozen"]["reason"].as_str() {
            break why.to_owned();
        }
        assert!(Instant::now() < deadline, "nothing is noticed: {status}");
        tests::look_again();
    };
    assert!(frozen.contains("another kernel"), "{frozen}");
    assert_eq!(client.status()["tracing"]["sessions"][0]["state"], "off");
    // The same kernel: its text is what it was before anything was traced.
    assert_eq!(client.digest(), before);
    running.type_text("echo $((6 * 7)) is the answer; sleep 3; exit 5\n");
    running.wait_for("42 is the answer");
    drop(client);
    let (ended, _) = running.end();
    assert_eq!(ended.code, Some(5), "{ended}");
    assert!(ended.stderr.contains("tracing has ended"), "{ended}");
}
