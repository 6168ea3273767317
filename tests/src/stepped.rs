//! A machine of the `vmm` library with one vCPU that is stopped at an instruction and taken on from
//! there one by one, in ring 0 and with a timer that does not tick meanwhile.
//!
//! Where debug registers do nothing, a breakpoint is bytes in the text: it can stand at the entry of a
//! function and not in the middle of an instruction. Single steps go anywhere on every host.

use std::time::Instant;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use terms::addr::Gva;
use tracer::tracing::options::TracingOptions;
use tracer::tracing::{Host, Kernel, Tracing};
use vmm::clock::HOST;
use vmm::devices::console::ConsoleWriter;
use vmm::host::pollers::Threads;
use vmm::layout;
use vmm::loader::KernelFile;
use vmm::machine::{Machine, MachineConfig};
use vmm::vcpu::{Request, VcpuEventKind};

use crate::missed;
use crate::place::patience;

/// Of a guest's command line: no timer interrupt while it is stepped.
pub const NO_TICKS: &str = "tick=10000000";

/// A machine that runs `kernel` with this command line; not started yet.
///
/// # Panics
/// When it cannot be built.
#[must_use]
pub fn machine(
    kernel: &KernelFile,
    cmdline: String,
    vcpus: u64,
    console: &ConsoleWriter,
) -> Machine {
    let config = MachineConfig {
        initrd: None,
        cmdline,
        vcpus,
        memory_mib: 64,
        window_bytes: layout::WINDOW_SIZE,
        nested: false,
        host_events: false,
    };
    Machine::build(&config, kernel, console.queue()).expect("the machine is built")
}

/// Tracing of a machine that is not started yet, prepared for it, and where it begins.
///
/// # Panics
/// When the kernel cannot be traced so.
#[must_use]
pub fn tracing(
    machine: &mut Machine,
    kernel: &KernelFile,
    options: TracingOptions,
) -> (Tracing, Gva) {
    let traced = Kernel {
        image: kernel.image().expect("the kernel has an image"),
        debug: kernel.debug(),
        name: kernel.path().display().to_string(),
    };
    let host = Host {
        clock: HOST,
        pollers: Box::new(Threads::of_this_host()),
        command_line: String::new(),
    };
    let mut tracing = Tracing::new(options, traced, host).expect("it can be traced");
    let mut target = machine.before_start().expect("it has not been started");
    let attach = tracing.before_start(&mut target);
    let attach = attach.expect("its text is that of the image");
    (tracing, attach.expect("tracing begins somewhere"))
}

/// The next thing that a vCPU tells.
///
/// # Panics
/// When nothing comes.
#[must_use]
pub fn next_event(machine: &Machine) -> VcpuEventKind {
    let deadline = Instant::now() + patience();
    loop {
        match machine.events().next() {
            // Nobody here is interested in text that comes or goes.
            Some(event) if event.kind == VcpuEventKind::Announcement => {
                machine.acknowledge(event.vcpu)
            }
            Some(event) => return event.kind,
            None => {}
        }
        assert!(Instant::now() < deadline, "nothing comes from the guest");
        std::thread::yield_now();
    }
}

/// Waits until the vCPU has come to the breakpoint at `address`.
///
/// # Panics
/// When something else happens.
pub fn wait_at(machine: &Machine, address: Gva) {
    assert_eq!(next_event(machine), VcpuEventKind::Breakpoint(address));
}

/// Has every vCPU trapped that comes to `at`; nobody any more without one.
///
/// # Panics
/// When KVM refuses.
pub fn set_breakpoint(machine: &mut Machine, at: Option<Gva>) {
    let set = || machine.set_breakpoint(at);
    let set = missed::insist("a breakpoint", patience(), set, missed::is_one);
    set.expect("the breakpoint is set, or removed");
}

/// Starts the machine and stops it at the entry of a function; from there it continues by [`step`].
///
/// # Panics
/// When it does not come there.
pub fn start_to(machine: &mut Machine, entry: Gva) {
    stay_on_this_cpu();
    set_breakpoint(machine, Some(entry));
    machine.start().expect("the machine starts");
    wait_at(machine, entry);
    begin(machine);
}

/// Keeps this thread, and the vCPUs that it starts, on one CPU of the host: on some KVMs (kvm-pvm) a vCPU that is
/// moved between two steps runs on without end.
fn stay_on_this_cpu() {
    let mut set = CpuSet::new();
    set.set(sched_getcpu());
    sched_setaffinity(None, &set).expect("a CPU that we run on is one that we may use");
}

/// The vCPU is at a breakpoint: it continues by [`step`].
///
/// # Panics
/// When KVM refuses.
pub fn begin(machine: &mut Machine) {
    set_breakpoint(machine, None);
    let mut quiesced = machine.quiesce(patience()).expect("it is stopped");
    quiesced
        .ask(0, Request::SingleStep, patience())
        .expect("KVM can step");
}

/// Executes one instruction.
///
/// # Panics
/// When the guest ends.
pub fn step(machine: &Machine) {
    machine.leave_breakpoint();
    let event = next_event(machine);
    assert!(matches!(event, VcpuEventKind::Breakpoint(_)), "{event:?}");
}

/// The instruction and stack pointers of the stopped vCPU.
///
/// # Panics
/// When it is not stopped.
#[must_use]
pub fn place(machine: &Machine) -> (u64, u64) {
    let quiesced = machine.quiesce(patience()).expect("it is stopped");
    let vcpu = quiesced.full_registers().first().expect("there is one");
    (vcpu.general.rip, vcpu.general.rsp)
}

/// Steps until the instruction at `address` comes next.
///
/// # Panics
/// When it does not come within some hundred steps.
pub fn step_to(machine: &Machine, address: Gva) {
    for _ in 0..500 {
        if place(machine).0 == address.0 {
            return;
        }
        step(machine);
    }
    panic!("it never comes to {address}");
}

/// Lets it run.
///
/// # Panics
/// When KVM refuses.
pub fn go_on(machine: &mut Machine) {
    set_breakpoint(machine, None);
    machine.leave_breakpoint();
}
