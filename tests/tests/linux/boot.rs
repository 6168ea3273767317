//! Booting, the console, and the ends of a run.

use tests::Guest;

#[test]
fn one_and_two_vcpus_boot_and_switch_themselves_off() {
    for vcpus in [1, 2] {
        let script = "echo cpus $(grep -c ^processor /proc/cpuinfo); date +%Y; uname -s";
        let (ended, _) = Guest::linux(script, None).vcpus(vcpus).run();
        let ended = ended.good();
        let lines: Vec<&str> = ended.stdout.lines().map(str::trim).collect();
        let at = lines
            .iter()
            .position(|line| *line == format!("cpus {vcpus}"));
        let [year, system] = lines[at.expect("the number of CPUs") + 1..][..2] else {
            panic!("{ended}");
        };
        assert!(
            year.parse::<u32>().unwrap() >= 2025,
            "the clock says {year}"
        );
        assert_eq!(system, "Linux");
        assert!(ended.stdout.contains("reboot: Power down"), "{ended}");
    }
}

#[test]
fn a_reset_and_a_status_end_the_run() {
    let (ended, _) = Guest::linux("reboot -f", None).run();
    assert_eq!(ended.code, Some(0), "{ended}");
    let (ended, _) = Guest::linux("exit 7", None).run();
    assert_eq!(ended.code, Some(7), "{ended}");
}

#[test]
fn the_shell_on_the_console_is_usable() {
    let mut running = Guest::linux("", None).vcpus(2).start();
    running.wait_for("a shell on ttyS0");
    // What the terminal echoes does not look like the answer.
    running.type_text("echo $((6 * 7)) is the answer\n");
    running.wait_for("42 is the answer");
    // More than a FIFO holds, in one go.
    let word = "long".repeat(100);
    running.type_text(&format!("echo {word} | wc -c\n"));
    running.wait_for("\n401");
    // Ctrl-C ends what runs in front, and only that. The child says itself that it runs: between the shell's
    // `fork` and `exec` an interrupt would be lost.
    running.type_text("sh -c 'echo sleep\"\"s; exec sleep 100000'\n");
    running.wait_for("sleeps");
    running.type_text("\u{3}");
    running.type_text("echo a''wake\n");
    running.wait_for("awake");
    running.type_text("exit 3\n");
    let (ended, _) = running.end();
    assert_eq!(ended.code, Some(3), "{ended}");
}
