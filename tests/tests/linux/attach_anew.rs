//! `vmm attach --follow` to a Linux that starts anew: that is noticed, nothing of ours is left in its VMM, and the new one is traced.

use serde_json::json;
use tests::{Guest, Running, linux, linux_initrd, vmm_says};

const FUNCTION: &str = "__x64_sys_sched_get_priority_max";
/// Does the lines that are typed. What it says at first is not in its own text, which is seen when it is typed.
const SHELL: &str = "U=u; echo now ${U}p; while read line; do eval $line; echo did $line; done";

/// Attaches to the guest before and after it starts anew, and counts calls in both.
fn is_followed(mut qemu: Running, start_anew: impl FnOnce(&mut Running)) {
    qemu.wait_for("now up");
    let options = ["--trace", "function", "--filter", FUNCTION, "--follow"];
    let attached = Guest::attached(qemu.pid(), None);
    let one = |attached: Guest, option: &&str| attached.with([*option]);
    let mut attached = options.iter().fold(attached, one).output().start();
    let mut client = attached.client();
    client.status();
    qemu.type_text("syscalls 100\n");
    qemu.wait_for("did syscalls 100");
    start_anew(&mut qemu);
    client.is_left();
    qemu.wait_for_times("now up", 2);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", qemu.pid())).unwrap();
    attached.client().status();
    assert!(maps.matches("exotrace").count() <= 1, "{maps}");
    qemu.type_text("syscalls 200\n");
    qemu.wait_for("did syscalls 200");
    let next = attached.path("trace.2");
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, trace) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let counts = vmm_says(&["report", next.to_str().unwrap(), "--format", "counts"]);
    let after = counts.stdout.lines().find(|line| line.contains(FUNCTION));
    assert_eq!(
        after.unwrap_or_default().split_whitespace().next(),
        Some("200"),
        "{counts}"
    );
    let counts: Vec<_> = trace.uftrace().into_iter().collect();
    assert_eq!(counts, [(FUNCTION.to_owned(), 100)], "{ended}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", qemu.pid())).unwrap();
    assert_eq!(maps.matches("exotrace").count(), 0, "{ended} {maps}");
    qemu.type_text("exit\n");
    let _ = qemu.end();
}

/// No other run of the tests has a guest of this name.
fn named(name: &str) -> String {
    format!("exotrace-{name}-{}", std::process::id())
}

fn reset(qemu: &mut Running) {
    let mut monitor = qemu.monitor();
    monitor.command("set-action", &json!({"reboot": "reset"}));
    monitor.command("system_reset", &json!({}));
}

/// The next kernel puts itself somewhere else: no jump of ours is looked for there.
#[test]
fn a_reset_of_a_linux_is_noticed_and_followed() {
    let qemu = Guest::linux_under_qemu(&named("reset"), SHELL, &linux().1, 1);
    is_followed(qemu.start(), reset);
}

/// The next kernel is where the old one was, with the same text: by its page tables nothing can be told.
#[test]
fn a_reset_of_a_linux_that_is_at_the_same_place_each_time_is_noticed_and_followed() {
    let cmdline = format!("console=ttyS0 quiet panic=-1 nokaslr run=\"{SHELL}\"");
    let qemu = Guest::linux_under_qemu(&named("same"), SHELL, &linux().1, 1);
    is_followed(qemu.with(["-append", &cmdline]).start(), reset);
}

#[test]
fn a_kernel_that_is_started_in_the_place_of_the_traced_one_is_noticed_and_followed() {
    let initrd = linux_initrd("initrd-kexec");
    let qemu = Guest::linux_under_qemu(&named("kexec"), SHELL, &initrd, 1);
    is_followed(qemu.start(), |qemu| {
        let cmdline = format!("console=ttyS0 quiet panic=-1 run=\"{SHELL}\"");
        let line = format!("kexec /kexec/vmlinuz /kexec/initrd '{cmdline}'\n");
        qemu.type_text(&line);
    });
}
