//! Lock prefixes that are switched while threads of every kind count in the same words.

use image::Image;
use serde_json::{Value, json};
use terms::addr::Gva;
use tests::exact::gated;
use tests::stepped::{self, NO_TICKS, next_event};
use tests::{Ended, Guest, guest, in_the_box, patience};
use tracer::engine::Engine;
use tracer::points::locks::LockPrefixes;
use tracer::target::{PhysicalMemory, StoppedTarget};
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;
use vmm::vcpu::VcpuEventKind;

fn counting(threads: u64) -> Guest {
    let iterations = if in_the_box() { 20_000 } else { 1_000_000 };
    gated(
        "locks",
        &format!("iterations={iterations} threads={threads} tick=100"),
    )
}

/// Each word holds as much as there were calls.
fn assert_nothing_lost(ended: Ended) {
    let ended = ended.good();
    let calls = ended.clone().printed().calls["locks_step"];
    assert!(calls > 0);
    for word in ["added", "exchanged"] {
        let line = format!("counter {word} {calls}");
        assert!(ended.stdout.contains(&line), "not '{line}' in {ended}");
    }
}

fn state(status: &Value) -> Option<&str> {
    status.pointer("/tracing/smp_locks/state")?.as_str()
}

#[test]
fn one_vcpu_starts_without_locks_and_counts_exactly_while_they_are_switched() {
    let mut running = counting(6).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let status = client.status();
    assert_eq!(state(&status), Some("off"));
    let sites = status.pointer("/tracing/smp_locks/sites").unwrap().as_u64();
    let off = client.digest();
    running.type_text("q");
    let (mut switches, mut to) = (0, "on");
    while let Some(answer) = client.ask("smp-locks", json!({"state": to})) {
        let answer = answer.expect("it is one vCPU");
        assert_eq!(answer["state"], to);
        assert_eq!(answer["switched"].as_u64(), sites);
        switches += 1;
        to = if to == "on" { "off" } else { "on" };
        if to == "on"
            && switches % 64 == 0
            && let Some(digest) = client.ask("digest", Value::Null)
        {
            assert_eq!(digest.unwrap()["sha256"], off);
        }
    }
    println!("{switches} switches");
    assert!(switches > 10, "the guest ended too early");
    assert_nothing_lost(running.end().0);
}

#[test]
fn two_vcpus_keep_their_locks_and_count_exactly() {
    let mut running = counting(6).vcpus(2).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    assert_eq!(state(&client.status()), Some("on"));
    let digest = client.digest();
    let message = client.refused("smp-locks", json!({"state": "off"}));
    assert!(message.contains("the machine has 2 vCPUs"), "{message}");
    let refused = running.ctl(&["smp-locks", "off"]);
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    assert_eq!(client.digest(), digest);
    let on = running.ctl(&["smp-locks", "on"]).good();
    assert_eq!(on.stdout, "lock prefixes were on already\n");
    running.type_text("q");
    assert_nothing_lost(running.end().0);
}

#[test]
fn a_state_that_is_none_is_an_error() {
    let mut running = Guest::new("workload=spin").start();
    let mut client = running.client();
    let message = client.refused("smp-locks", json!({"state": "perhaps"}));
    assert!(message.contains("`on` or `off`"), "{message}");
    running.type_text("q");
    let _ = running.end().0.good();
}

/// A vCPU that is about to execute the instruction executes it as it is when it continues. The words are
/// read from the guest's memory before it prints them, which a host that emulates ring 0 cannot.
fn held_at_the_prefix(from: LockPrefixes, to: LockPrefixes) {
    const CALLS: u64 = 4 * 500;
    let kernel = KernelFile::read(&guest()).unwrap();
    let image = std::sync::Arc::new(Image::parse(kernel.bytes()).unwrap());
    let step = image
        .symbols
        .address_of("locks_step")
        .expect("the function");
    let inside = |at: Gva| image.function_at(at) == image.function_at(step);
    let site = image.locks.iter().find(|site| inside(site.address));
    let site = site.expect("its locked instruction").address;
    let console = ConsoleWriter::start(std::io::sink()).unwrap();
    let cmdline = format!("workload=locks threads=4 iterations=500 ring=0 {NO_TICKS}");
    let mut machine = stepped::machine(&kernel, cmdline, 1, &console);
    let mut engine = Engine::new(std::sync::Arc::clone(&image));
    let mut target = machine.before_start().unwrap();
    engine.normalise(&mut target).unwrap();
    engine.switch_locks(&mut target, from, 1).unwrap();
    stepped::start_to(&mut machine, step);
    stepped::step_to(&machine, site);
    let mut quiesced = machine.quiesce(patience()).unwrap();
    assert_eq!(quiesced.vcpus()[0].rip, site.0);
    let switched = engine.switch_locks(&mut quiesced, to, 1).unwrap();
    assert_eq!(switched, image.locks.len());
    drop(quiesced);
    let mut symbols = image.symbols.iter();
    let printing = symbols.find(|symbol| &*symbol.display == "control::locks::print_words");
    let printing = printing.expect("the function").address;
    stepped::set_breakpoint(&mut machine, Some(printing));
    machine.leave_breakpoint();
    let end = next_event(&machine);
    assert_ne!(end, VcpuEventKind::GuestExit(0), "the words are gone");
    for word in ["locks_added", "locks_exchanged"] {
        let at = image.symbols.address_of(word).expect("the word");
        let (at, _) = machine.layout().locate(at).expect("it is in the image");
        let mut bytes = [0; 8];
        machine.memory().read_physical(at, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), CALLS, "{word} at {end:?}");
    }
}

#[test]
fn a_thread_held_at_the_prefix_goes_on_without_the_lock() {
    held_at_the_prefix(LockPrefixes::On, LockPrefixes::Off);
}

#[test]
fn a_thread_held_at_the_prefix_goes_on_with_the_lock() {
    held_at_the_prefix(LockPrefixes::Off, LockPrefixes::On);
}
