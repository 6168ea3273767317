//! The CPU state in which the boot vCPU enters the kernel: long mode, flat segments, low 4 GiB
//! mapped one to one, interrupts off, `rsi` = `boot_params` (Linux 64-bit boot protocol).

use kvm_bindings::{kvm_dtable, kvm_fpu, kvm_regs, kvm_segment, kvm_sregs};
use terms::addr::Gpa;
use tracer::target::MemoryError;

use crate::layout;
use crate::memory::Ram;

const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TASK_SELECTOR: u16 = 0x20;

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

const ENTRY_PRESENT: u64 = 1;
const ENTRY_WRITABLE: u64 = 1 << 1;
const ENTRY_LARGE: u64 = 1 << 7;
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;
const DIRECTORIES: u64 = 4;
const ENTRIES: u64 = 512;

/// Flat segments: two null descriptors, then code and data where the boot protocol wants them,
/// and a 16-byte task segment.
const GDT: [u64; 6] = [
    0,
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x0000_8b00_0000_ffff,
    0,
];

/// Writes the GDT, an empty IDT and the page tables.
pub(super) fn write_tables(ram: &Ram) -> Result<(), MemoryError> {
    for (slot, descriptor) in GDT.iter().enumerate() {
        let at = layout::GDT.wrapping_add(slot as u64 * 8);
        ram.write(at, &descriptor.to_le_bytes())?;
    }
    write_page_tables(ram)
}

fn write_page_tables(ram: &Ram) -> Result<(), MemoryError> {
    let page = |number: u64| layout::BOOT_PAGE_TABLES.wrapping_add(number * PAGE);
    let table = ENTRY_PRESENT | ENTRY_WRITABLE;
    let write = |at: Gpa, entry: u64| ram.write(at, &entry.to_le_bytes());
    write(page(0), page(1).0 | table)?;
    for directory in 0..DIRECTORIES {
        write(
            page(1).wrapping_add(directory * 8),
            page(2 + directory).0 | table,
        )?;
        for entry in 0..ENTRIES {
            let frame = (directory * ENTRIES + entry) * LARGE_PAGE;
            let at = page(2 + directory).wrapping_add(entry * 8);
            write(at, frame | table | ENTRY_LARGE)?;
        }
    }
    Ok(())
}

/// General registers at the entry point.
#[must_use]
pub fn registers(entry: Gpa) -> kvm_regs {
    kvm_regs {
        rip: entry.0,
        rsi: layout::BOOT_PARAMS.0,
        rsp: layout::BOOT_STACK.0,
        rbp: layout::BOOT_STACK.0,
        rflags: 2,
        ..Default::default()
    }
}

/// The system registers, made out of those that the vCPU has after reset.
#[must_use]
pub fn system_registers(reset: kvm_sregs) -> kvm_sregs {
    let code = segment(CODE_SELECTOR, 0xb, true);
    let data = segment(DATA_SELECTOR, 0x3, false);
    let task = kvm_segment {
        base: 0,
        limit: 0xffff,
        selector: TASK_SELECTOR,
        type_: 0xb,
        present: 1,
        ..Default::default()
    };
    kvm_sregs {
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: task,
        gdt: kvm_dtable {
            base: layout::GDT.0,
            limit: size_of_val(&GDT)
                .saturating_sub(1)
                .try_into()
                .unwrap_or(u16::MAX),
            ..Default::default()
        },
        idt: kvm_dtable {
            base: layout::IDT.0,
            limit: 0,
            ..Default::default()
        },
        cr0: CR0_PE | CR0_ET | CR0_NE | CR0_PG,
        cr3: layout::BOOT_PAGE_TABLES.0,
        cr4: CR4_PAE,
        efer: EFER_LME | EFER_LMA,
        ..reset
    }
}

fn segment(selector: u16, type_: u8, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..Default::default()
    }
}

/// The FPU as a CPU has it after reset plus `fninit`.
#[must_use]
pub fn fpu() -> kvm_fpu {
    kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MIB;

    #[test]
    fn low_addresses_map_to_themselves() {
        let ram = Ram::create(16, MIB).unwrap();
        write_tables(&ram).unwrap();
        let load = |at: u64| {
            let mut bytes = [0; 8];
            ram.read(Gpa(at), &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        let frame = |entry: u64| entry & !0xfff;
        for address in [0u64, 0x20_0000, 0xfee0_0000] {
            let pdpt = frame(load(layout::BOOT_PAGE_TABLES.0));
            let directory = frame(load(pdpt + (address >> 30) * 8));
            let entry = load(directory + (address >> 21 & 511) * 8);
            assert_eq!(frame(entry), address & !(LARGE_PAGE - 1));
            assert_ne!(entry & ENTRY_LARGE, 0);
        }
    }
}
