//! From the first function on: a boot is traced before the kernel has made its sites nops, and over every border of its
//! start.

use tests::start::{Start, compare_init_calls};
use tests::{Guest, linux, vmm_says};

/// Processors of the box make it warn, unless it is told so.
const WORDS: &str = "noxsave panic_on_warn=1";

#[test]
fn a_boot_has_every_init_call_that_the_kernel_says_it_made() {
    let start = Start {
        kernel: &linux().0,
        words: WORDS,
        vcpus: 1,
        attach: "start_kernel",
        ring: "131072",
    };
    let (ended, trace) = start.traced();
    let missing = compare_init_calls(&ended, &trace);
    // What belongs to the kernel's own tracer has no sites.
    println!("not traced: {missing:?}");
    assert!(missing.len() < 60, "{missing:?}");
    let counts = trace.uftrace();
    for once in ["start_kernel", "setup_arch", "rest_init", "kernel_init"] {
        assert_eq!(counts.get(once), Some(&1), "{once}");
    }
    let boot = trace.report("boot");
    for row in ["setup_arch <-start_kernel", "# the boot took ", "acpi_init"] {
        assert!(boot.contains(row), "{row}: {boot}");
    }
    let path = trace.path().display().to_string();
    let same = vmm_says(&["diff", &path, &path, "--function", "acpi_init"]).good();
    assert!(same.stdout.contains("acpi_init"), "{}", same.stdout);
}

#[test]
fn a_profile_of_what_comes_before_its_processors_are_told_apart_is_refused() {
    let guest = Guest::linux("", None).with(["--trace", "profile", "--attach-at", "start_kernel"]);
    let (ended, _) = guest.run();
    assert_ne!(ended.code, Some(0), "{ended}");
    assert!(
        ended.stderr.contains("a profile counts for each vCPU"),
        "{ended}"
    );
}
