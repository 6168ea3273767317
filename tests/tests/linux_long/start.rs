//! Boots that are traced from their first function on: of kernels of other ages, and instruction by instruction.

use tempfile::TempDir;
use tests::oracle::{Oracle, calls};
use tests::start::Start;
use tests::stepped::{self, wait_at};
use tests::{Guest, kernels, linux, vmm_says};
use tracer::filter::{Filter, Sources};
use tracer::tracing::options::{SessionOptions, Tracer, TracingOptions};
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;

/// One processor, and two with tables of the kernel that user mode does not have, in small rings whose waits it does not see.
#[test]
fn boots_leave_nothing_and_are_compared_with_each_other() {
    let one = Start {
        kernel: &linux().0,
        words: "noxsave panic_on_warn=1",
        vcpus: 1,
        attach: "start_kernel",
        mode: "lossless",
        ring: "8192",
        wait_time: "visible",
        depth: None,
    };
    let two = Start {
        words: "noxsave panic_on_warn=1 pti=on",
        vcpus: 2,
        attach: "x86_64_start_kernel",
        ring: "64",
        wait_time: "hidden",
        ..one
    };
    let booted = [one, two].map(|start| start.traced_as_untraced());
    let both = booted.map(|booted| booted.trace);
    for trace in &both {
        let said = trace.report("boot");
        println!("{said}");
        assert!(said.contains("# the boot took "), "{said}");
    }
    let [one, two] = both
        .each_ref()
        .map(|trace| trace.path().display().to_string());
    // Who brings the second processor up is called on two, and has nobody to bring up on one.
    let names = ["--function", "acpi_init", "--function", "bringup_cpu"];
    let words = [&["diff", &one, &two], &names[..]].concat();
    let compared = vmm_says(&words).good().stdout;
    println!("{compared}");
    let of = |function: &str| compared.lines().find(|line| line.contains(function));
    assert!(of("acpi_init").is_some(), "{compared}");
    assert!(of("bringup_cpu").is_some(), "{compared}");
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

#[test]
fn kernels_of_the_suite_are_traced_from_their_first_functions() {
    for kernel in kernels(Some("suite")) {
        for (vcpus, attach, words) in [
            (1, "start_kernel", ""),
            (2, "x86_64_start_kernel", "pti=on"),
        ] {
            println!("{}: {vcpus} vCPUs, {attach} {words}", kernel.name);
            let start = Start {
                kernel: &kernel.image(),
                words: &format!("{} {words}", kernel.boots_with),
                vcpus,
                attach,
                mode: "lossless",
                ring: "8192",
                wait_time: "visible",
                depth: None,
            };
            let booted = start.traced_as_untraced();
            let untraced = booted.compare_init_calls(start.kernel);
            println!("init calls that are not traced: {untraced:?}");
            let counts = booted.trace.uftrace();
            assert_eq!(counts.get("setup_arch"), Some(&1), "{}", kernel.name);
        }
    }
}

/// So many instructions from the first one of `start_kernel` on.
const STEPS: u32 = 100_000;

#[test]
fn the_first_calls_of_a_kernel_are_those_that_it_executes() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("trace");
    let kernel = KernelFile::read(&linux().0).unwrap();
    let image = kernel.image().unwrap();
    let selected = Filter::default()
        .select(&image, &Sources::default())
        .unwrap()
        .selected;
    let names: Vec<String> = selected
        .iter()
        .map(|id| image.functions[id.index()].display.to_string())
        .collect();
    let mut oracle = Oracle::new(image, |name| names.iter().any(|known| known == name));
    let console = ConsoleWriter::start(std::io::sink()).unwrap();
    let cmdline = "console=ttyS0 quiet noxsave".to_owned();
    let mut machine = stepped::machine(&kernel, cmdline, 1, &console);
    let options = TracingOptions {
        enabled: true,
        tracer: Tracer::Graph,
        session: SessionOptions {
            output: Some(output.clone()),
            ..SessionOptions::default()
        },
        attach_at: Some("start_kernel".to_owned()),
        ..TracingOptions::default()
    };
    let (mut tracing, attach) = stepped::tracing(&mut machine, &kernel, options);
    stepped::set_breakpoint(&mut machine, Some(attach));
    machine.start().unwrap();
    wait_at(&machine, attach);
    stepped::set_breakpoint(&mut machine, None);
    let mut border = tracing.reached(&machine).unwrap();
    stepped::begin(&mut machine);
    for _ in 0..STEPS {
        let (rip, rsp) = stepped::place(&machine);
        if border.is_some_and(|border| border.0 == rip) {
            border = tracing.reached(&machine).unwrap();
        }
        oracle.step(rip, rsp);
        stepped::step(&machine);
    }
    // The stub of the last one has recorded it when the function itself is executed.
    for _ in 0..200 {
        stepped::step(&machine);
        let (rip, rsp) = stepped::place(&machine);
        if oracle.is_in_function(rip) {
            break;
        }
        oracle.step(rip, rsp);
    }
    let finished = tracing.finish(&machine, None).unwrap();
    assert!(finished.last_calls.is_empty(), "the guest is not dead");
    drop(tracing);
    let report = [
        "report".as_ref(),
        output.as_os_str(),
        "--format".as_ref(),
        "graph".as_ref(),
    ];
    let report = vmm_says(&report).good().stdout;
    let seen = calls(&report);
    println!("{STEPS} steps, {} calls", oracle.calls.len());
    assert!(oracle.calls.len() > 300, "{:?}", oracle.calls);
    let differ = seen
        .iter()
        .zip(&oracle.calls)
        .position(|(seen, made)| seen != made);
    let near = differ.map(|at| {
        let from = at.saturating_sub(5);
        (
            at,
            &seen[from..seen.len().min(at + 5)],
            &oracle.calls[from..oracle.calls.len().min(at + 5)],
        )
    });
    assert_eq!(near, None);
    assert_eq!(seen.len(), oracle.calls.len());
}
