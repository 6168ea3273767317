//! The LAPIC in x2APIC mode: timer, start of the other vCPUs, nudges.

use crate::cpu;
use crate::layout;

const MSR_APIC_BASE: u32 = 0x1b;
const ENABLED_X2APIC: u64 = (1 << 11) | (1 << 10);
const MSR_EOI: u32 = 0x80b;
const MSR_SPURIOUS: u32 = 0x80f;
const SOFTWARE_ENABLE: u64 = 1 << 8;
const MSR_COMMAND: u32 = 0x830;
const MSR_TIMER: u32 = 0x832;
const MSR_INITIAL_COUNT: u32 = 0x838;
const MSR_DIVIDE: u32 = 0x83e;
const DIVIDE_BY_1: u64 = 0b1011;

const ALL_BUT_SELF: u64 = 0b11 << 18;
const ASSERT: u64 = 1 << 14;
const INIT: u64 = 0b101 << 8;
const STARTUP: u64 = 0b110 << 8;

/// The counter of KVM's LAPIC timer runs at 1 GHz.
const COUNTS_PER_MICROSECOND: u64 = 1000;

/// Switches this vCPU's LAPIC on, with a one-shot timer that is not yet armed.
pub fn set_up() {
    // SAFETY: the LAPIC base register exists; the other bits stay.
    let base = unsafe { cpu::read_msr(MSR_APIC_BASE) };
    write(MSR_APIC_BASE, base | ENABLED_X2APIC);
    write(
        MSR_SPURIOUS,
        SOFTWARE_ENABLE | u64::from(layout::VECTOR_SPURIOUS),
    );
    write(MSR_DIVIDE, DIVIDE_BY_1);
    write(MSR_TIMER, u64::from(layout::VECTOR_TIMER));
}

/// Fires the timer interrupt once, after this time.
pub fn arm_timer(microseconds: u64) {
    write(
        MSR_INITIAL_COUNT,
        (microseconds * COUNTS_PER_MICROSECOND).min(u64::from(u32::MAX)),
    );
}

/// The interrupt is dealt with.
pub fn end_of_interrupt() {
    write(MSR_EOI, 0);
}

/// Sends every other vCPU to the trampoline.
pub fn start_others() {
    write(MSR_COMMAND, ALL_BUT_SELF | ASSERT | INIT);
    write(
        MSR_COMMAND,
        ALL_BUT_SELF | ASSERT | STARTUP | (layout::AP_TRAMPOLINE >> 12),
    );
}

/// Makes every other vCPU look at the run queue.
pub fn nudge_others() {
    write(
        MSR_COMMAND,
        ALL_BUT_SELF | ASSERT | u64::from(layout::VECTOR_RESCHEDULE),
    );
}

fn write(msr: u32, value: u64) {
    // SAFETY: only the LAPIC's registers are passed, and `boot_vcpu_main` has checked for x2APIC.
    // Their values change when interrupts come, which Rust code cannot tell.
    unsafe { cpu::write_msr(msr, value) };
}
