//! Single instructions that Rust has no words for.

use core::arch::asm;

/// Writes one byte to an I/O port.
pub fn write_port(port: u16, value: u8) {
    // SAFETY: ring 0 may do port I/O; the devices behind our ports do not touch memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// Reads one byte from an I/O port.
pub fn read_port(port: u16) -> u8 {
    let value: u8;
    // SAFETY: as in `write_port`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

/// Writes `length` bytes at `start` to an I/O port, with one instruction.
///
/// # Safety
/// The bytes must be mapped.
pub unsafe fn write_port_bytes(port: u16, start: u64, length: u64) {
    // SAFETY: reads the caller's bytes; the direction flag is clear in the ABI.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") start => _, inout("rcx") length => _,
            options(nostack, readonly));
    }
}

/// Reads a model-specific register.
///
/// # Safety
/// The register must exist.
pub unsafe fn read_msr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller vouches for the register.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(low) | (u64::from(high) << 32)
}

/// Writes a model-specific register.
///
/// # Safety
/// The register must exist, and the value must leave the machine as Rust expects it.
pub unsafe fn write_msr(msr: u32, value: u64) {
    // SAFETY: the caller vouches for register and value; edx:eax is how the value is passed.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("rax") value, in("rdx") value >> 32, options(nostack));
    }
}

/// The address of the last page fault.
pub fn fault_address() -> u64 {
    let value: u64;
    // SAFETY: reading CR2 has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack)) }
    value
}

/// Where the topmost page table is.
pub fn page_table() -> u64 {
    let value: u64;
    // SAFETY: reading CR3 has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack)) }
    value
}

/// Has this vCPU look at its page tables anew.
pub fn flush_page_table() {
    let value = page_table();
    // SAFETY: the same tables as before.
    unsafe { use_page_table(value) }
}

/// Has this vCPU use the page tables at this physical address.
///
/// # Safety
/// What is mapped and used is mapped there, too.
pub unsafe fn use_page_table(at: u64) {
    // SAFETY: as of this function.
    unsafe { asm!("mov cr3, {}", in(reg) at, options(nostack)) }
}

/// Whether the LAPIC has x2APIC mode.
pub fn has_x2apic() -> bool {
    core::arch::x86_64::__cpuid(1).ecx & (1 << 21) != 0
}

/// `IA32_TSC_ADJUST`: what is added to the time stamp counter.
const TSC_ADJUST: u32 = 0x3b;

/// Sets the time stamp counter of this vCPU so many ticks ahead. Says whether the processor can do that.
pub fn set_timestamp_ahead(ticks: u64) -> bool {
    let can = core::arch::x86_64::__cpuid_count(7, 0).ebx & (1 << 1) != 0;
    if can {
        // SAFETY: the CPU says that it has the register.
        let added = unsafe { read_msr(TSC_ADJUST) };
        // SAFETY: as before; nothing here goes by the counter.
        unsafe { write_msr(TSC_ADJUST, added.wrapping_add(ticks)) };
    }
    can
}

/// The time stamp counter.
pub fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has it, and ring 0 may always read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Stops this vCPU for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off nothing of ours runs on this vCPU again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}
