//! GDT, IDT and one TSS per vCPU.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{self, MAX_VCPUS, VECTORS};

/// Ring 0 code segment.
pub const KERNEL_CODE: u64 = 0x08;
/// Ring 0 data segment.
pub const KERNEL_DATA: u64 = 0x10;
/// Ring 3 data segment.
pub const USER_DATA: u64 = 0x18 | 3;
/// Ring 3 code segment.
pub const USER_CODE: u64 = 0x20 | 3;
const FIRST_TSS: u16 = 0x28;

const FIXED: usize = 5;
const TSS_SIZE: usize = 104;
const EMERGENCY_STACK: usize = 2048;

/// What [`set_up`] could not find room for.
pub struct TooManyVcpus;

static GDT: [AtomicU64; FIXED + 2 * MAX_VCPUS] = {
    let mut gdt = [const { AtomicU64::new(0) }; FIXED + 2 * MAX_VCPUS];
    gdt[1] = AtomicU64::new(0x00af_9b00_0000_ffff);
    gdt[2] = AtomicU64::new(0x00cf_9300_0000_ffff);
    gdt[3] = AtomicU64::new(0x00cf_f300_0000_ffff);
    gdt[4] = AtomicU64::new(0x00af_fb00_0000_ffff);
    gdt
};

static IDT: [[AtomicU64; 2]; VECTORS] = [const { [const { AtomicU64::new(0) }; 2] }; VECTORS];

/// A TSS, written in 8-byte pieces: the hardware's fields sit at offsets that are 4 modulo 8, so
/// the structure starts 4 bytes into `words`.
#[repr(C, align(128))]
struct Tss {
    words: [AtomicU64; 16],
    emergency_stack: [AtomicU64; EMERGENCY_STACK / 8],
}

static TSS: [Tss; MAX_VCPUS] = [const {
    Tss {
        words: [const { AtomicU64::new(0) }; 16],
        emergency_stack: [const { AtomicU64::new(0) }; EMERGENCY_STACK / 8],
    }
}; MAX_VCPUS];

/// Index in `words` of a field at `offset` of the hardware's structure.
const fn word(offset: usize) -> usize {
    (offset + 4) / 8
}
const RSP0: usize = word(4);
const IST1: usize = word(36);
const IST2: usize = word(44);
const IO_MAP: usize = word(100);

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Fills the IDT, once, on the boot vCPU.
///
/// Our interrupts and the kernel call save into the running thread's context (IST 1). Whatever else
/// happens is the end, and gets the emergency stack (IST 2).
pub fn fill_idt() {
    for (vector, entry) in (0u64..).zip(&IDT) {
        let is_breakpoint = vector == layout::VECTOR_BREAKPOINT;
        let handler = if is_breakpoint {
            layout::breakpoint_entry_address()
        } else {
            layout::trap_stubs_start() + vector * 16
        };
        let expected = is_breakpoint || vector == layout::VECTOR_UNDEFINED || vector >= 32;
        let stack = if expected { 1 } else { 2 };
        // Present, interrupt gate; int3 is open to ring 3.
        let kind = if is_breakpoint { 0xee00 } else { 0x8e00 };
        let [low, high] = entry;
        low.store(
            (handler & 0xffff)
                | (KERNEL_CODE << 16)
                | ((stack | kind) << 32)
                | ((handler & 0xffff_0000) << 32),
            Ordering::Relaxed,
        );
        high.store(handler >> 32, Ordering::Relaxed);
    }
}

/// Loads GDT, IDT and this vCPU's TSS.
pub fn set_up(vcpu: u64) -> Result<(), TooManyVcpus> {
    let number = u16::try_from(vcpu).map_err(|_| TooManyVcpus)?;
    let tss = TSS.get(usize::from(number)).ok_or(TooManyVcpus)?;
    let base = (&raw const tss.words) as u64 + 4;
    let emergency_top = (&raw const tss.emergency_stack) as u64 + EMERGENCY_STACK as u64;
    set(tss, RSP0, emergency_top);
    set(tss, IST2, emergency_top);
    // I/O map base (offset 102) beyond the limit: no ports for ring 3.
    set(tss, IO_MAP, (TSS_SIZE as u64) << 16);

    let slot = FIXED + 2 * usize::from(number);
    let low = (TSS_SIZE as u64 - 1)
        | ((base & 0x00ff_ffff) << 16)
        | (0x89 << 40)
        | ((base & 0xff00_0000) << 32);
    GDT.get(slot)
        .ok_or(TooManyVcpus)?
        .store(low, Ordering::Relaxed);
    GDT.get(slot + 1)
        .ok_or(TooManyVcpus)?
        .store(base >> 32, Ordering::Relaxed);
    load(FIRST_TSS + 16 * number);
    Ok(())
}

/// Where the next trap on this vCPU saves its frame: `end` is the end of the context's frame.
pub fn set_trap_stack(vcpu: u64, end: u64) {
    if let Some(tss) = usize::try_from(vcpu).ok().and_then(|vcpu| TSS.get(vcpu)) {
        set(tss, IST1, end);
    }
}

fn set(tss: &Tss, word: usize, value: u64) {
    if let Some(slot) = tss.words.get(word) {
        slot.store(value, Ordering::Relaxed);
    }
}

/// The last byte of a table of this size.
fn limit(size: usize) -> u16 {
    u16::try_from(size - 1).unwrap_or(u16::MAX)
}

fn load(tss_selector: u16) {
    let gdt = TablePointer {
        limit: limit(size_of_val(&GDT)),
        base: (&raw const GDT) as u64,
    };
    let idt = TablePointer {
        limit: limit(size_of_val(&IDT)),
        base: (&raw const IDT) as u64,
    };
    // SAFETY: the tables are statics, filled before this; the segments that the far return and the
    // moves select are flat, so no address changes meaning. GS is left alone: its base is set later.
    unsafe {
        asm!(
            "lgdt [{gdt}]",
            "lidt [{idt}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "mov fs, {zero:e}",
            "mov gs, {zero:e}",
            "ltr {tss:x}",
            gdt = in(reg) &raw const gdt,
            idt = in(reg) &raw const idt,
            code = const KERNEL_CODE,
            data = in(reg) KERNEL_DATA,
            zero = in(reg) 0u64,
            tss = in(reg) tss_selector,
            scratch = out(reg) _,
        );
    }
}
