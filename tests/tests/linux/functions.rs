//! Our view of the kernel against its own.

use std::fmt::Write as _;

use serde_json::Value;
use tests::{Guest, linux, vmm_says, with_file};

/// The guest compares: its lists are too long for a serial line.
#[test]
fn every_function_that_the_guest_can_trace_is_known_at_the_address_that_it_has() {
    let kernel = linux().0;
    let sites = vmm_says(&["sites", kernel.to_str().unwrap(), "--json"]).good();
    let sites: Value = serde_json::from_str(&sites.stdout).unwrap();
    let mut ours = String::new();
    for site in sites["sites"].as_array().unwrap() {
        let (address, name) = (&site["address"], &site["symbol"]);
        let address = address.as_str().unwrap().trim_start_matches("0x");
        writeln!(ours, "{address} {}", name.as_str().unwrap()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let initrd = with_file(folder.path(), "ours", ours.as_bytes());
    let script = "\
        K=/proc/kallsyms; A=/sys/kernel/tracing/available_filter_functions; \
        awk 'NR == FNR { ours[$1]; next } $1 in ours { print $3 }' /ours $K >/named; \
        awk 'NR == FNR { named[$1]; next } !/^__ftrace_invalid/ && !($1 in named)' /named $A >/missing; \
        awk 'NR == FNR { at[$1 $3]; next } !(($1 $2) in at)' $K /ours >/moved; \
        echo missing $(wc -l </missing) moved $(wc -l </moved); head -n 5 /missing /moved; \
        echo known $(wc -l <$A)";
    let (ended, _) = Guest::linux(script, Some(&initrd)).run();
    let ended = ended.good();
    assert!(ended.stdout.contains("missing 0 moved 0"), "{ended}");
    let known = ended
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("known "));
    assert!(
        known.unwrap().trim().parse::<u32>().unwrap() > 30_000,
        "{ended}"
    );
}
