//! What a trace shows is what was executed: the guest is single-stepped through some calls, and the
//! instruction and stack pointers of every step say which functions were entered and left.

use image::Image;
use tempfile::TempDir;
use tests::oracle::{Oracle, calls};
use tests::stepped::{self, NO_TICKS, next_event, wait_at};
use tests::{guest, in_the_box, vmm_says};
use tracer::stub::spec::ReturnHook;
use tracer::tracing::options::{SessionOptions, Tracer, TracingOptions};
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;
use vmm::machine::Machine;
use vmm::vcpu::VcpuEventKind;

/// Where stepping begins in each workload, in the order in which the guest calls them.
const CALLS: [&str; 1] = ["calls_root"];
const TAIL_CALLS: [&str; 2] = ["tail_calls_first", "tail_calls_even"];
const RECURSION: [&str; 1] = ["recursion_step"];
const STEPS_MAX: u32 = 200_000;

/// Steps from a root's entry until it has returned.
fn step_out(machine: &mut Machine, oracle: &mut Oracle) -> u32 {
    stepped::begin(machine);
    for steps in 0..STEPS_MAX {
        let (rip, rsp) = stepped::place(machine);
        if !oracle.step(rip, rsp) {
            return steps;
        }
        stepped::step(machine);
    }
    panic!("still inside after {STEPS_MAX} steps");
}

fn check(hook: ReturnHook, workloads: &str, roots: &[&str]) {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("trace");
    let kernel = KernelFile::read(&guest()).unwrap();
    let mut oracle = Oracle::new(Image::parse(kernel.bytes()).unwrap(), |_| true);
    let console = ConsoleWriter::start(std::io::sink()).unwrap();
    let cmdline = format!("workload={workloads} ring=0 iterations=1 {NO_TICKS}");
    let mut machine = stepped::machine(&kernel, cmdline, 1, &console);
    let options = TracingOptions {
        enabled: true,
        tracer: Tracer::Graph,
        session: SessionOptions {
            return_hook: hook,
            output: Some(output.clone()),
            ..SessionOptions::default()
        },
        filter: ["calls_*", "tail_calls_*", "recursion_*"]
            .map(str::to_owned)
            .to_vec(),
        ..TracingOptions::default()
    };
    let (mut tracing, attach) = stepped::tracing(&mut machine, &kernel, options);
    stepped::set_breakpoint(&mut machine, Some(attach));
    machine.start().unwrap();
    wait_at(&machine, attach);
    stepped::set_breakpoint(&mut machine, None);
    tracing.reached(&machine).unwrap();
    let mut steps = 0;
    for root in roots {
        let at = oracle.address(root);
        stepped::set_breakpoint(&mut machine, Some(at));
        machine.leave_breakpoint();
        wait_at(&machine, at);
        steps += step_out(&mut machine, &mut oracle);
    }
    stepped::go_on(&mut machine);
    assert_eq!(next_event(&machine), VcpuEventKind::GuestExit(0));
    let finished = tracing.finish(&machine, None).unwrap();
    assert!(finished.last_calls.is_empty(), "the guest is not dead");
    drop(tracing);
    let report = vmm_says(&[
        "report".as_ref(),
        output.as_os_str(),
        "--format".as_ref(),
        "graph".as_ref(),
    ]);
    let report = report.good().stdout;
    let seen = calls(&report);
    println!("{hook:?}: {steps} steps, {} calls", oracle.calls.len());
    assert!(oracle.calls.len() >= 15, "{:?}", oracle.calls);
    assert_eq!(seen, oracle.calls, "{report}");
}

#[test]
fn the_calls_of_a_trace_are_those_that_were_executed() {
    let hooks = [ReturnHook::Balanced, ReturnHook::Jmp, ReturnHook::Ret];
    for hook in hooks {
        check(hook, "tail_calls", &TAIL_CALLS);
    }
    // In the box a step takes milliseconds, and these have thousands: with one hook there.
    let rest = if in_the_box() { &hooks[..1] } else { &hooks };
    for hook in rest {
        check(*hook, "calls", &CALLS);
        check(*hook, "recursion", &RECURSION);
    }
}
