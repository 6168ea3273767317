//! Large changes of text: how many pauses they are made in, and what a failure in the middle leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use image::Image;
use serde_json::json;
use terms::addr::Gpa;
use tests::stepped::{self, NO_TICKS, wait_at};
use tests::{Guest, guest, patience};
use tracer::target::PhysicalMemory;
use tracer::tracing::filters::{FilterEdit, Globs};
use tracer::tracing::options::{DEFAULT_SESSION, TracingOptions};
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;
use vmm::machine::Machine;

/// Sites of the first slice, and of the smallest.
const FIRST: u64 = 64;
const FEWEST: u64 = 16;

/// Traces every function of a guest with these options, and stops again. How many functions, and the pauses of each.
fn pauses(options: &[&str]) -> (u64, [u64; 2]) {
    let stopping = ["--patch-method", "quiesce"];
    let mut running = Guest::spinning(&[&stopping[..], options].concat());
    let mut client = running.client();
    let held = |client: &mut tests::Client| {
        let status = client.status();
        status["pauses"]["parked"]["count"].as_u64().unwrap()
    };
    let before = held(&mut client);
    let started = client.call("start", json!({}));
    let between = held(&mut client);
    let stopped = client.call("stop", json!({}));
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let [begin, end] = [&started, &stopped].map(|changed| number(&changed["pauses"]));
    // What it says is what the vCPUs went through; attaching and rings take some more.
    assert!(
        (begin..=begin + 4).contains(&(between - before)),
        "{started}"
    );
    (number(&started["traced"]), [begin, end])
}

#[test]
fn a_change_is_made_in_as_many_pauses_as_was_asked_for() {
    let (functions, atomic) = pauses(&["--atomic"]);
    assert!(functions > 10_000, "{functions} functions");
    // The rings are made in a pause before.
    assert_eq!(atomic, [1 + 1, 1]);
    // Slices double at most: 64, 128, ... Fewer than so many pauses do not hold all functions.
    let (functions, default) = pauses(&[]);
    let doubling = u64::from((functions / FIRST + 1).ilog2());
    assert!(
        default[0] > doubling,
        "{default:?} pauses, {functions} functions"
    );
    // Nothing is written in a nanosecond: after the first slice all are of the smallest size.
    let (functions, shortest) = pauses(&["--max-pause", "1ns"]);
    let expected = 1 + 1 + (functions - FIRST).div_ceil(FEWEST);
    assert_eq!(shortest[0], expected);
    assert!(shortest[1] >= functions.div_ceil(FEWEST), "{shortest:?}");
}

fn options() -> TracingOptions {
    TracingOptions {
        enabled: true,
        filter: vec!["calls_leaf".to_owned()],
        max_pause: Some(Duration::from_nanos(1)),
        ..TracingOptions::default()
    }
}

/// Entries of the guest's page directory that lead to the window, with their values.
fn window_entries(machine: &Machine, directory: Gpa) -> Vec<(Gpa, u64)> {
    const ADDRESS: u64 = 0x000f_ffff_ffe0_0000;
    let window = machine.memory().window();
    let entry = |index: u64| {
        let at = directory.wrapping_add(8 * index);
        let mut bytes = [0; 8];
        machine.memory().read_physical(at, &mut bytes).unwrap();
        (at, u64::from_le_bytes(bytes))
    };
    let leads_there = |(_, value): &(Gpa, u64)| value & ADDRESS >= window.start.0;
    (0..512).map(entry).filter(leads_there).collect()
}

/// The window is taken away after a site was patched that has hundreds of slices after it: enough for whoever takes it to
/// get his turn on a busy machine. What follows fails, and what came before is taken back.
#[test]
fn a_slice_that_fails_has_those_before_it_taken_back() {
    let kernel = KernelFile::read(&guest()).unwrap();
    let image = Image::parse(kernel.bytes()).unwrap();
    let console = ConsoleWriter::start(std::io::sink()).unwrap();
    let cmdline = format!("workload=spin {NO_TICKS}");
    let mut machine = stepped::machine(&kernel, cmdline, 1, &console);
    let (mut tracing, attach) = stepped::tracing(&mut machine, &kernel, options());
    stepped::set_breakpoint(&mut machine, Some(attach));
    machine.start().unwrap();
    wait_at(&machine, attach);
    stepped::set_breakpoint(&mut machine, None);
    tracing.reached(&machine).unwrap();
    let before = tracing.digest(&machine).unwrap().sha256;

    let physical = |name: &str| {
        let at = image.symbols.address_of(name).unwrap();
        machine.layout().locate(at).unwrap().0
    };
    let (directory, site) = (physical("high_pd"), physical("many_0500"));
    let entries = window_entries(&machine, directory);
    assert!(!entries.is_empty(), "there is no window");
    let (ram, gives_up) = (machine.ram(), AtomicBool::new(false));
    let (entry, value) = entries[0];
    let thief = || {
        let mut byte = [0];
        while byte != [0xe9] && !gives_up.load(Ordering::SeqCst) {
            ram.read(site, &mut byte).unwrap();
        }
        ram.write(entry, &0x40_0083_u64.to_le_bytes()).unwrap();
        byte == [0xe9]
    };
    let everything = Globs {
        filter: vec!["*".to_owned()],
        notrace: Vec::new(),
    };
    let changed = std::thread::scope(|scope| {
        let thief = scope.spawn(thief);
        let changed =
            tracing.change_filter(&machine, DEFAULT_SESSION, FilterEdit::Set, &everything);
        gives_up.store(true, Ordering::SeqCst);
        assert!(thief.join().unwrap(), "the site was never patched");
        changed
    });
    let error = changed.unwrap_err().to_string();
    assert!(error.contains("has taken the window"), "{error}");
    ram.write(entry, &value.to_le_bytes()).unwrap();
    assert_eq!(tracing.digest(&machine).unwrap().sha256, before);
    assert_eq!(tracing.status().patched, 1);
    // It works again.
    let changed = tracing
        .change_filter(&machine, DEFAULT_SESSION, FilterEdit::Set, &everything)
        .unwrap();
    assert!(changed.traced > 10_000);
    tracing.finish(&machine, None).unwrap();
    drop(machine);
    let _ = console.finish(patience());
}
