//! What the process of a guest has given up: every thread of it, since each of them handles what the guest says.

use std::fs;
use std::path::{Path, PathBuf};

use tests::Guest;

/// What `/proc` says of one of the process's threads, or of the process.
fn said_of(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).expect("it lives")
}

#[test]
fn no_thread_has_capabilities_or_can_gain_any_and_no_core_dump_has_the_guests_memory() {
    let guest = Guest::spinning(&[
        "--trace", "function", "--filter", "spin_*", "--clock", "page",
    ]);
    let process = PathBuf::from(format!("/proc/{}", guest.pid()));
    let threads = fs::read_dir(process.join("task")).unwrap();
    let threads: Vec<_> = threads.map(|thread| thread.unwrap().path()).collect();
    // The main thread, a vCPU, signals, console, a reader and the clock page.
    assert!(threads.len() >= 6, "{threads:?}");
    for thread in &threads {
        let status = said_of(thread, "status");
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} in {status}")).trim()
        };
        assert_eq!(value("NoNewPrivs:"), "1", "{status}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(value(set), 16), Ok(0), "{set} {status}");
        }
    }
    let limits = said_of(&process, "limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.expect("it is listed").split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{limits}");

    // RAM and the window's region are the large mappings. (Neighbours are one, to the host.)
    let mut left_out = 0;
    let mut bytes = 0;
    for line in said_of(&process, "smaps").lines() {
        if let Some(size) = line.strip_prefix("Size:") {
            bytes = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "wr")
            && bytes >= 16 << 20
        {
            left_out += bytes;
            let is_left_out = flags.split_whitespace().any(|flag| flag == "dd");
            assert!(is_left_out, "{bytes} bytes: {flags}");
        }
    }
    assert!(left_out >= 512 << 20, "{left_out}");
}
