//! Every guest physical address that the VMM chooses, each with one line of why.
//!
//! ```text
//! 0x0000_0500  GDT of the entry state
//! 0x0000_7000  boot_params (the "zero page")
//! 0x0000_9000  page tables of the entry state: PML4, PDPT, four page directories
//! 0x0002_0000  kernel command line
//! 0x0009_fc00  end of low RAM (where a PC has its EBDA)
//! 0x000e_0000  ACPI tables (where a PC has its BIOS)
//! 0x0010_0000  RAM again; kernels load here or above
//! 0xd000_0000  hole for devices and interrupt controllers
//! 0x1_0000_0000 RAM that did not fit below the hole
//! …            the window region, above all RAM: stubs and rings, in no memory map
//! ```

use terms::addr::Gpa;

/// One KiB, in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB, in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB, in bytes.
pub const GIB: u64 = 1 << 30;

/// GDT of the entry state: the first free bytes after the real-mode vectors and the BIOS data area.
pub const GDT: Gpa = Gpa(0x500);
/// Empty IDT of the entry state: the entry code runs with interrupts off and brings its own.
pub const IDT: Gpa = Gpa(0x540);
/// `boot_params`: where other VMMs put it too, clear of everything else.
pub const BOOT_PARAMS: Gpa = Gpa(0x7000);
/// Initial stack, growing down towards `boot_params`' end.
pub const BOOT_STACK: Gpa = Gpa(0x8ff0);
/// First of the six page-table pages of the entry state.
pub const BOOT_PAGE_TABLES: Gpa = Gpa(0x9000);
/// Kernel command line.
pub const CMDLINE: Gpa = Gpa(0x20000);
/// Longest command line in bytes, its NUL included: what Linux x86 takes.
pub const CMDLINE_MAX: usize = 2048;
/// End of low RAM in the memory map: the EBDA of a PC starts here.
pub const LOW_RAM_END: Gpa = Gpa(0x9_fc00);
/// ACPI tables: a kernel looks for the first of them in the PC's BIOS area, from here on.
pub const ACPI_TABLES: Gpa = Gpa(0xe_0000);
/// End of that area.
pub const ACPI_TABLES_END: Gpa = HIGH_RAM_START;
/// Start of extended memory. Kernel segments below it would overwrite the entry state.
pub const HIGH_RAM_START: Gpa = Gpa(0x10_0000);
/// The hole for MMIO, IOAPIC, LAPIC, KVM's own pages: 768 MiB below 4 GiB.
pub const MMIO_HOLE_START: Gpa = Gpa(0xd000_0000);
/// End of the hole.
pub const MMIO_HOLE_END: Gpa = Gpa(0x1_0000_0000);
/// Three pages that KVM on Intel needs for a real-mode TSS; anywhere in the hole.
pub const KVM_TSS: Gpa = Gpa(0xfffb_d000);
/// One page that KVM on Intel needs for an identity map; right below the TSS.
pub const KVM_IDENTITY_MAP: Gpa = Gpa(0xfffb_c000);

/// The window region starts at a multiple of this, so that 2-MiB and 1-GiB entries can map it.
pub const WINDOW_ALIGN: u64 = GIB;
/// Default size of the window region. Only pages that are touched cost memory.
pub const WINDOW_SIZE: u64 = 512 * MIB;
/// What the rings of one session can have of it. The rest is for what comes before them: stubs, cells,
/// the mirror, the clock page.
pub const RINGS_SIZE: u64 = WINDOW_SIZE - 64 * MIB;

/// End of the RAM that an initrd may lie in: what every 64-bit kernel takes (boot protocol 2.03).
pub const INITRD_END: Gpa = Gpa(0x8000_0000);
/// Registers of the I/O APIC: where every PC has them.
pub const IO_APIC: u32 = 0xfec0_0000;
/// Registers of the local APICs: where every PC has them.
pub const LOCAL_APIC: u32 = 0xfee0_0000;

/// Smallest guest: the entry state, a kernel and a little room.
pub const MEMORY_MIN_MIB: u64 = 8;
/// Most vCPUs: APIC ids of one byte, with 255 being broadcast.
pub const VCPUS_MAX: u64 = 254;

/// COM1, an 8250.
pub const SERIAL_PORT: u16 = 0x3f8;
/// The interrupt line of COM1.
pub const SERIAL_IRQ: u32 = 4;
/// A text trap (see `breakpoint`) writes here; a guest's own writes mean nothing.
pub const TRAP_PORT: u8 = 0xf5;
/// A probe that leaves the guest (see `vcpu::detours`) writes here; a guest's own writes mean nothing.
pub const PROBE_PORT: u8 = 0xf7;
/// A guest writes here when its notice of text that comes or goes is ready; it continues when that has been
/// seen to.
pub const DOORBELL_PORT: u8 = 0xf6;
/// A guest ends by writing its status byte here.
pub const EXIT_PORT: u16 = 0xf4;
/// Command port of the keyboard controller: writing [`I8042_RESET`] resets a PC.
pub const I8042_COMMAND: u16 = 0x64;
/// The command that pulls the reset line.
pub const I8042_RESET: u8 = 0xfe;
/// ACPI's PM1a event registers: where QEMU has them too.
pub const ACPI_PM1_EVENT: u16 = 0x600;
/// ACPI's PM1a control register, after them.
pub const ACPI_PM1_CONTROL: u16 = 0x604;
/// The sleep type that means "off".
pub const ACPI_SLEEP_TYPE_OFF: u8 = 5;
/// The interrupt line of ACPI, which nothing pulls.
pub const ACPI_IRQ: u32 = 9;
/// Index port of the CMOS clock.
pub const CMOS_INDEX: u16 = 0x70;
/// Data port of the CMOS clock.
pub const CMOS_DATA: u16 = 0x71;

/// Where RAM of `bytes` lies: one range, or two when it does not fit below the hole.
#[must_use]
pub fn ram_ranges(bytes: u64) -> Vec<(Gpa, u64)> {
    let below = bytes.min(MMIO_HOLE_START.0);
    let mut ranges = vec![(Gpa(0), below)];
    if bytes > below {
        ranges.push((MMIO_HOLE_END, bytes - below));
    }
    ranges
}

/// Where the window region of a guest with `ram_bytes` of RAM starts.
#[must_use]
pub fn window_start(ram_bytes: u64) -> Gpa {
    let ram_end = ram_ranges(ram_bytes)
        .last()
        .map_or(0, |(start, length)| start.0.saturating_add(*length));
    Gpa(ram_end.max(MMIO_HOLE_END.0).next_multiple_of(WINDOW_ALIGN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ram_is_one_range_with_the_window_at_4_gib() {
        assert_eq!(ram_ranges(256 * MIB), [(Gpa(0), 256 * MIB)]);
        assert_eq!(window_start(256 * MIB), MMIO_HOLE_END);
    }

    #[test]
    fn large_ram_goes_around_the_hole_and_below_the_window() {
        let ranges = ram_ranges(5 * GIB);
        assert_eq!(ranges[0], (Gpa(0), MMIO_HOLE_START.0));
        assert_eq!(ranges[1].0, MMIO_HOLE_END);
        assert_eq!(
            ranges.iter().map(|(_, length)| length).sum::<u64>(),
            5 * GIB
        );
        let end = ranges[1].0.0 + ranges[1].1;
        assert!(window_start(5 * GIB).0 >= end);
        assert_eq!(window_start(5 * GIB).0 % WINDOW_ALIGN, 0);
    }

    #[test]
    fn entry_state_structures_do_not_overlap() {
        let mut ranges = [
            (GDT.0, 48),
            (IDT.0, 8),
            (BOOT_PARAMS.0, 4096),
            (BOOT_PAGE_TABLES.0, 6 * 4096),
            (CMDLINE.0, CMDLINE_MAX as u64),
            (ACPI_TABLES.0, ACPI_TABLES_END.0 - ACPI_TABLES.0),
        ];
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
        assert!(CMDLINE.0 + CMDLINE_MAX as u64 <= LOW_RAM_END.0);
    }
}
