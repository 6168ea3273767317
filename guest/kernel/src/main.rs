//! Ring 0 of the bundled guest: a small real kernel, so that tracing has something real to trace.
//!
//! Ring 0 is kept short, free of SSE and x87, and is never instrumented (guest/README.md says why).
//! images/guest/build.sh checks the machine code for that, and that nothing in here calls the core
//! library or panics: everything that can fail is an `Option` or a `Result`.

#![no_std]
#![no_main]

mod announce;
mod apic;
mod command_line;
mod console;
mod context;
mod cpu;
mod hostile;
mod layout;
mod lock;
mod sched;
mod segments;
mod smp;
mod tables;
mod text;
mod trap;
mod vcpu;

use core::arch::{asm, global_asm};

global_asm!(include_str!("boot.s"));
global_asm!(include_str!("trap.s"));

/// The boot vCPU, on its kernel stack in the high half, interrupts off.
#[unsafe(no_mangle)]
extern "C" fn boot_vcpu_main(boot_params: u64) -> ! {
    let line = command_line::copy(boot_params);
    let settings = command_line::parse(line);
    segments::fill_idt();
    if segments::set_up(0).is_err() {
        cpu::halt();
    }
    vcpu::set_up(0);
    if !cpu::has_x2apic() {
        give_up("guest: the LAPIC has no x2APIC mode: pass CPUID.1:ECX bit 21 to the guest\n");
    }
    apic::set_up();
    trap::set_tick(settings.tick);
    sched::set_up(settings.threads_in_ring_0);
    if settings.threads_in_ring_0 {
        trap::refuse_breakpoints();
    }
    if smp::start(settings.vcpus).is_err() {
        give_up("guest: fewer vCPUs came online than vcpus= on the command line says\n");
    }
    workloads_ready();
    let arguments = [line.as_ptr() as u64, line.len() as u64, settings.vcpus];
    if sched::spawn(
        control::start as *const () as u64,
        arguments,
        sched::ANY_VCPU,
    )
    .is_none()
    {
        give_up("guest: no room for the main thread\n");
    }
    smp::release();
    trap::run()
}

/// Where tracing attaches by default: every vCPU is online with its GS base set, no thread has run.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn workloads_ready() {
    // SAFETY: an empty body, that must not be optimised away.
    unsafe { asm!("", options(nostack)) }
}

fn give_up(reason: &str) -> ! {
    console::say(reason);
    trap::end(layout::status::UNSUPPORTED)
}
