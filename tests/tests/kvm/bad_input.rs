//! Whatever is wrong with what the user gives: one line that names it, an exit status, no panic.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tests::elf::{Damaged, Kernels, bare};
use tests::{Ended, Guest, guest, patience, vmm_says};

/// `vmm run` on a kernel, with more options.
fn run(kernel: &Path, options: &[&str]) -> Ended {
    let kernel = kernel.to_str().unwrap();
    vmm_says(&[&["run", "--kernel", kernel], options].concat())
}

/// Refused with status 100, in one line that has all these words.
fn refused(ended: &Ended, words: &[&str]) {
    let line = ended.refused(100);
    for word in words {
        assert!(line.contains(word), "no '{word}' in: {line}");
    }
    assert_eq!(ended.stdout, "");
}

#[test]
fn kernels_that_are_no_files() {
    let folder = Kernels::new();
    let missing = folder.path().join("missing.elf");
    refused(&run(&missing, &[]), &["missing.elf", "No such file"]);
    refused(
        &run(folder.path(), &[]),
        &[folder.path().to_str().unwrap(), "not a regular file"],
    );
    refused(&run(Path::new("/dev/zero"), &[]), &["/dev/zero"]);
    refused(
        &vmm_says(&["sites", missing.to_str().unwrap()]),
        &["missing.elf", "No such file"],
    );
}

#[test]
fn kernels_that_are_no_elf_files() {
    let folder = Kernels::new();
    let cases = [
        ("empty.elf", Damaged(Vec::new()), ""),
        (
            "text.elf",
            Damaged(b"#!/bin/sh\necho no kernel\n".repeat(100)),
            "neither an ELF file nor a bzImage",
        ),
        ("narrow.elf", Damaged::guest().set((4, 1), 1), "32-bit"),
        (
            "backwards.elf",
            Damaged::guest().set((5, 1), 2),
            "little-endian",
        ),
        ("arm.elf", Damaged::guest().set((18, 2), 183), "183"),
        ("object.elf", Damaged::guest().set((16, 2), 1), ""),
    ];
    for (name, image, word) in cases {
        let path = folder.write(name, &image);
        refused(&run(&path, &[]), &[name, word]);
        refused(&vmm_says(&[Path::new("sites"), &path]), &[name, word]);
    }
}

#[test]
fn kernels_whose_headers_lie() {
    let folder = Kernels::new();
    let whole = Damaged::guest;
    let length = whole().0.len() as u64;
    let first = whole().segment_field(0, 24);
    let cases = [
        ("header-only.elf", whole().cut(64)),
        ("half-a-header.elf", whole().cut(40)),
        ("half.elf", whole().cut(whole().0.len() / 2)),
        ("headers-outside.elf", whole().program_headers_at(length)),
        (
            "headers-far-outside.elf",
            whole().program_headers_at(u64::MAX - 3),
        ),
        ("many-headers.elf", whole().program_headers(0xffff)),
        ("no-headers.elf", whole().program_headers(0)),
        ("entry-outside.elf", whole().set((24, 8), 0x1234_5678_9abc)),
        ("contents-outside.elf", whole().segment(0, 8, length)),
        ("contents-wrap.elf", whole().segment(0, 8, u64::MAX - 1)),
        ("contents-absurd.elf", whole().segment(0, 32, u64::MAX)),
        ("memory-absurd.elf", whole().segment(0, 40, u64::MAX / 2)),
        ("memory-less-than-file.elf", whole().segment(0, 40, 1)),
        ("too-low.elf", whole().segment(0, 24, 0)),
        ("too-high.elf", whole().segment(0, 24, 1 << 45)),
        ("overlap.elf", whole().segment(1, 24, first)),
    ];
    for (name, image) in cases {
        refused(
            &run(&folder.write(name, &image), &["--timeout", "5"]),
            &[name],
        );
    }
}

#[test]
fn images_that_cannot_be_traced() {
    let folder = Kernels::new();
    let trace = [
        "--trace",
        "function",
        "--cmdline",
        "workload=calls iterations=2",
    ];
    let bare = folder.write("bare.elf", &bare(&[0xf4]));
    refused(&run(&bare, &trace), &["bare.elf"]);
    assert_eq!(
        vmm_says(&[Path::new("sites"), &bare])
            .refused(100)
            .matches("bare.elf")
            .count(),
        1
    );
    let sections = folder.write("sections.elf", &Damaged::guest().without_sections());
    refused(&run(&sections, &trace), &["sections.elf"]);
    let symbols = folder.write("symbols.elf", &Damaged::guest().without_symbols());
    refused(&run(&symbols, &trace), &["symbols.elf"]);
    // They run, though.
    for kernel in [sections, symbols] {
        let ended = run(
            &kernel,
            &[
                "--cmdline",
                "workload=calls iterations=2",
                "--timeout",
                &patience().as_secs().to_string(),
            ],
        );
        assert_eq!(ended.good().printed().calls["calls_leaf"], 64);
    }
}

/// Both hung or panicked once: an input without an end was read before the first event, and the trace
/// notes the command line.
#[test]
fn a_console_input_without_end_and_a_path_that_is_no_text() {
    let folder = Kernels::new();
    let trace = folder.path().join(OsStr::from_bytes(b"trace-\xff"));
    let mut run = tests::vmm();
    run.arg("run").arg("--kernel").arg(guest());
    run.args(["--cmdline", "workload=calls iterations=2"]);
    run.args(["--trace", "function", "--filter", "calls_*", "--output"]);
    run.arg(&trace);
    let endless = std::fs::File::open("/dev/zero").unwrap();
    let ended = Ended::from(run.stdin(endless).output().unwrap());
    assert_eq!(ended.good().printed().calls["calls_leaf"], 64);
    let report = vmm_says(&[Path::new("report"), &trace]);
    assert!(report.good().stdout.contains("calls_leaf"));
}

#[test]
fn initial_ram_disks_that_are_none_or_too_large() {
    let folder = Kernels::new();
    let write = |name: &str, bytes: usize| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![0; bytes]).unwrap();
        path
    };
    let (empty, large) = (write("empty.cpio", 0), write("large.cpio", 20 << 20));
    let with = |initrd: &Path| {
        run(
            &guest(),
            &["--memory", "32", "--initrd", initrd.to_str().unwrap()],
        )
    };
    refused(&with(&empty), &["empty.cpio", "is empty"]);
    refused(
        &with(&empty.with_file_name("none")),
        &["the initrd", "none"],
    );
    refused(&with(empty.parent().unwrap()), &["not a regular file"]);
    refused(&with(&large), &["20971520 bytes", "--memory"]);
}

#[test]
fn globs_and_symbols_that_match_nothing() {
    let trace = |options: &[&str]| run(&guest(), &[&["--trace", "function"], options].concat());
    refused(
        &trace(&["--filter", "calls_laef"]),
        &["calls_laef", "calls_leaf"],
    );
    refused(&trace(&["--filter", "qqqq*"]), &["qqqq", "vmm sites"]);
    refused(&trace(&["--filter", "calls_["]), &["calls_["]);
    refused(&trace(&["--filter", "calls_*", "--notrace", "*"]), &[]);
    refused(
        &trace(&["--attach-at", "workload_ready"]),
        &["workload_ready", "workloads_ready"],
    );
    refused(
        &trace(&["--attach-at", "qqqqqqqqqqqq"]),
        &["qqqqqqqqqqqq", "vmm sites"],
    );
}

#[test]
fn numbers_out_of_range() {
    let cases: [(&[&str], &[&str]); 15] = [
        (&["--vcpus", "0"], &["--vcpus 0", "1 to"]),
        (&["--vcpus", "100000"], &["--vcpus 100000", "1 to"]),
        (&["--vcpus", "two"], &["--vcpus", "two"]),
        (&["--vcpus", "-1"], &["--vcpus", "-1"]),
        (&["--memory", "0"], &["--memory 0"]),
        (
            &["--memory", "1000000000"],
            &["--memory 1000000000", "this host has"],
        ),
        (
            &["--memory", "18446744073709551615"],
            &["--memory 18446744073709551615"],
        ),
        (&["--ring-size", "5"], &["--ring-size", "power of two"]),
        (&["--ring-size", "0"], &["--ring-size", "power of two"]),
        (&["--ring-size", "18446744073709551615"], &["--ring-size"]),
        (&["--ring-size", "524288"], &["--ring-size", "256 MiB"]),
        (
            &[
                "--trace",
                "function",
                "--ring-size",
                "262144",
                "--vcpus",
                "2",
            ],
            &["--ring-size 262144", "512 MiB", "--ring-size 131072"],
        ),
        (&["--timeout", "0"], &["--timeout"]),
        (&["--timeout", "-3"], &["--timeout", "-3"]),
        (&["--mode", "both"], &["--mode", "both"]),
    ];
    for (options, words) in cases {
        refused(&run(&guest(), options), words);
    }
    refused(
        &run(&guest(), &["--cmdline", &"x".repeat(100_000)]),
        &["--cmdline"],
    );
    refused(&run(&guest(), &["--force"]), &["--output"]);
    let nothing = run(&guest(), &["--output", "/nonexistent/trace"]);
    refused(&nothing, &["--output", "--trace", "--control"]);
    for option in ["--filter", "--notrace", "--attach-at"] {
        refused(&run(&guest(), &[option, "calls_root"]), &["--trace"]);
    }
    refused(&vmm_says::<&str>(&["fly"]), &["fly"]);
    refused(&vmm_says(&["run"]), &["--kernel"]);
}

/// On Linux the attach point is a boot away: what is wrong is said before the guest starts, and before an older trace is
/// replaced.
#[test]
fn what_cannot_be_traced_is_said_before_the_guest_starts() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let output = ["--output", trace.to_str().unwrap(), "--force"];
    let older = [
        "--trace",
        "function",
        "--filter",
        "calls_*",
        "--cmdline",
        "workload=calls iterations=2",
    ];
    let _ = run(&guest(), &[&older[..], &output[..2]].concat()).good();
    let before = std::fs::read(trace.join("exotrace.json")).unwrap();
    let together = [
        "--probe",
        "optimised_registers+0xc",
        "--probe",
        "optimised_registers+0x10",
        "--probe-tactic",
        "3",
    ];
    let cases: [(&[&str], &[&str]); 9] = [
        (&together, &["cannot be set at the same time", "tactic 5"]),
        (
            &["--probe", "calls_twgi %rdi"],
            &["calls_twgi", "calls_twig"],
        ),
        (&["--probe", "calls_twig %rdj"], &["%rdj"]),
        (&["--probe", "optimised_locals erly"], &["erly", "early"]),
        (&["--probe", "calls_twig+0x1000000 %rdi"], &["past the end"]),
        (
            &["--event", "message_snet"],
            &["message_snet", "message_sent"],
        ),
        (
            &["--trace", "function", "--threshold", "10us"],
            &["--threshold", "graph"],
        ),
        (
            &["--trace", "graph", "--clock-cpu", "0"],
            &["--clock-cpu", "--clock page"],
        ),
        (
            &["--trace", "function", "--filter", "calls_.*"],
            &["not for a regular expression"],
        ),
    ];
    for (options, words) in cases {
        refused(&run(&guest(), &[options, &output].concat()), words);
        assert_eq!(
            std::fs::read(trace.join("exotrace.json")).unwrap(),
            before,
            "{options:?}"
        );
    }
}

#[test]
fn control_paths_that_cannot_be() {
    let mut running = Guest::new("workload=list,spin").start();
    let mut client = running.client();
    let taken = running.socket().to_str().unwrap().to_owned();
    refused(&run(&guest(), &["--control", &taken]), &[&taken, "in use"]);
    let file = running.path("file");
    std::fs::write(&file, "precious").unwrap();
    refused(
        &run(&guest(), &["--control", file.to_str().unwrap()]),
        &["file", "no socket"],
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let nowhere = running.path("missing/control");
    let nowhere = nowhere.to_str().unwrap();
    refused(
        &run(&guest(), &["--control", nowhere]),
        &[nowhere, "must exist"],
    );
    let long = running.path(&"long".repeat(60));
    refused(
        &run(&guest(), &["--control", long.to_str().unwrap()]),
        &["--control", "shorter"],
    );
    refused(
        &vmm_says(&["ctl", "--control", nowhere, "status"]),
        &[nowhere],
    );
    assert_eq!(client.status()["guest"]["state"], "running");
    // A socket that a killed VMM has left behind is in nobody's way.
    let left = running.path("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let options = [
        "--cmdline",
        "workload=list",
        "--control",
        left.to_str().unwrap(),
    ];
    let _ = run(&guest(), &options).good();
}

#[test]
fn trace_directories_that_are_none() {
    let folder = Kernels::new();
    let missing = folder.path().join("missing");
    refused(&vmm_says(&[Path::new("report"), &missing]), &["missing"]);
    refused(
        &vmm_says(&[Path::new("report"), folder.path()]),
        &[folder.path().to_str().unwrap()],
    );
    refused(&vmm_says(&["report", "x", "--format", "poem"]), &["poem"]);
    let backwards = ["report", "x", "--from", "2s", "--to", "1500ms"];
    refused(&vmm_says(&backwards), &["--from 2s", "--to 1.5s"]);
    for time in ["soon", "-1", "1e400", "9999999999999s"] {
        refused(&vmm_says(&["report", "x", "--from", time]), &[time]);
    }
    for condition in ["", "total", "total > ", "calls > 1e9%x", "luck > 3"] {
        let diff = ["diff", "x", "y", "--fail-if", condition];
        refused(&vmm_says(&diff), &["--fail-if"]);
    }
}

#[test]
fn sessions_in_which_nobody_can_be_waited_for() {
    let folder = Kernels::new();
    let output = folder.path().join("trace");
    let with = |options: &[&str]| {
        let lossless = ["--trace", "function", "--mode", "lossless"];
        run(&guest(), &[&lossless, options].concat())
    };
    let output = ["--output", output.to_str().unwrap()];
    refused(&with(&[]), &["--mode lossless", "--output"]);
    for (options, words) in [
        (["--ring-size", "32"], ["--mode lossless", "--ring-size 64"]),
        (["--clock", "page"], ["--mode lossless", "--clock tsc"]),
    ] {
        refused(&with(&[&options[..], &output].concat()), &words);
    }
    let profile = [
        "run",
        "--kernel",
        guest().to_str().unwrap(),
        "--trace",
        "profile",
    ]
    .map(str::to_owned);
    let mut profile: Vec<&str> = profile.iter().map(String::as_str).collect();
    profile.extend(["--mode", "lossless"]);
    refused(&vmm_says(&profile), &["--mode lossless", "profile"]);
    let discards = ["--on-full", "end", "--mode", "discard"];
    let ended = run(
        &guest(),
        &[&["--trace", "function"], &discards[..]].concat(),
    );
    refused(&ended, &["--on-full is for --mode lossless"]);
    let hidden = ["--wait-time", "hidden", "--mode", "discard"];
    let ended = run(&guest(), &[&["--trace", "function"], &hidden[..]].concat());
    refused(&ended, &["--wait-time is for --mode lossless"]);
}

/// It works where `vmm doctor` says so, and is refused elsewhere.
#[test]
fn waits_are_hidden_only_where_the_guest_sees_its_counter_set_back() {
    let doctor = vmm_says(&["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let tried = |check: &&serde_json::Value| check["name"] == "the guest's TSC can be set back";
    let tried = checks.iter().find(tried).expect("it is tried");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let lossless = ["--trace", "function", "--mode", "lossless"];
    let hidden = [
        "--wait-time",
        "hidden",
        "--output",
        output.to_str().unwrap(),
    ];
    let ended = run(&guest(), &[&lossless[..], &hidden[..]].concat());
    match tried["verdict"] == "ok" {
        true => assert_eq!(ended.code, Some(0), "{ended}"),
        false => refused(&ended, &["leave --wait-time out", "vmm doctor"]),
    }
}
