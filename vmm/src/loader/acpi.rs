//! ACPI tables: what tells a kernel how many vCPUs there are, where the interrupt controllers lie, and
//! how the machine is switched off and reset.
//!
//! ```text
//! RSDP ──▶ XSDT ──▶ FADT ──▶ DSDT  (\_S5: the sleep type of "off"; COM1)
//!            │       └─────▶ FACS
//!            └────▶ MADT          (a local APIC for each vCPU, the I/O APIC)
//! ```
//!
//! Field meanings: ACPI specification 6.5, chapter 5. The RSDP lies where a BIOS has it, so that
//! kernels which look for it find it; `boot_params` says it to the others.

use acpi_tables::Aml;
use acpi_tables::aml::{Device, EISAName, IO, Interrupt, Name, Package, Path, ResourceTemplate};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use terms::addr::Gpa;

use super::LoadError;
use crate::layout;
use crate::memory::Ram;

const OEM: [u8; 6] = *b"EXOTRC";
const OEM_TABLE: [u8; 8] = *b"EXOTRACE";
const OEM_REVISION: u32 = 1;
/// The DSDT's revision says that its integers have 64 bits.
const DSDT_REVISION: u8 = 2;
const SDT_HEADER_BYTES: u32 = 36;
/// The FACS wants 64; more than the others need.
const ALIGNMENT: u64 = 64;

/// FADT, IA-PC boot architecture: devices at their legacy ports, no VGA, no MSI. There is no keyboard
/// controller to be probed: only its reset line works.
const BOOT_ARCHITECTURE: u16 = 1 | 1 << 2 | 1 << 3;
/// MADT flag: there is a pair of 8259s, to be masked when the APICs are used.
const PIC_PRESENT: u32 = 1;
/// Latencies that mean "no such C-state".
const NO_C2: u16 = 101;
const NO_C3: u16 = 1001;
/// Where the CMOS clock has the century.
const CENTURY: u8 = 0x32;

/// Writes the tables for `vcpus` vCPUs; returns where the RSDP lies.
pub(super) fn write(ram: &Ram, vcpus: u64) -> Result<Gpa, LoadError> {
    let rsdp = layout::ACPI_TABLES;
    let mut tables = Tables {
        ram,
        next: rsdp.wrapping_add(ALIGNMENT),
    };
    let dsdt = tables.add(dsdt().as_slice())?;
    let facs = tables.add(&bytes(&FACS::new()))?;
    let fadt = tables.add(&bytes(&fadt(dsdt, facs)))?;
    let madt = tables.add(&bytes(&madt(vcpus)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = tables.add(&bytes(&xsdt))?;
    // Last, because it points at the others; first in memory, where it is looked for.
    tables.next = rsdp;
    tables.add(&bytes(&Rsdp::new(OEM, xsdt.0)))
}

/// Tables one after the other.
struct Tables<'m> {
    ram: &'m Ram,
    next: Gpa,
}

impl Tables<'_> {
    fn add(&mut self, table: &[u8]) -> Result<Gpa, LoadError> {
        let at = self.next;
        let end = at.0 + table.len() as u64;
        let no_room = LoadError::NoRoom {
            what: "the ACPI tables",
            at,
        };
        if end > layout::ACPI_TABLES_END.0 || self.ram.write(at, table).is_err() {
            return Err(no_room);
        }
        self.next = Gpa(end.next_multiple_of(ALIGNMENT));
        Ok(at)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// `\_S5`: what is written to the PM1a control register to switch off. And COM1, for kernels that
/// look for serial ports nowhere else.
fn dsdt() -> Sdt {
    let off = layout::ACPI_SLEEP_TYPE_OFF;
    let zero = 0u8;
    let package = Package::new(vec![&off, &off, &zero, &zero]);
    let mut aml = bytes(&Name::new(Path::new("_S5_"), &package));
    let ports = IO::new(layout::SERIAL_PORT, layout::SERIAL_PORT, 1, 8);
    let irq = Interrupt::new(true, true, false, false, layout::SERIAL_IRQ);
    let (hid, uid) = (
        Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
        Name::new(Path::new("_UID"), &zero),
    );
    let resources = ResourceTemplate::new(vec![&ports, &irq]);
    let crs = Name::new(Path::new("_CRS"), &resources);
    aml.extend(bytes(&Device::new(
        Path::new("_SB_.COM1"),
        vec![&hid, &uid, &crs],
    )));
    let mut table = Sdt::new(
        *b"DSDT",
        SDT_HEADER_BYTES,
        DSDT_REVISION,
        OEM,
        OEM_TABLE,
        OEM_REVISION,
    );
    table.append_slice(&aml);
    table
}

/// The fixed hardware: PM1a registers (no SMI: ACPI is always on), the reset register, the CMOS.
fn fadt(dsdt: Gpa, facs: Gpa) -> FADT {
    let low = |at: Gpa| u32::try_from(at.0).unwrap_or_default();
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_32(low(dsdt))
        .firmware_ctrl_32(low(facs))
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup);
    fadt.sci_int = u16::try_from(layout::ACPI_IRQ).unwrap_or_default().into();
    fadt.pm1a_evt_blk = u32::from(layout::ACPI_PM1_EVENT).into();
    fadt.pm1_evt_len = 4;
    fadt.pm1a_cnt_blk = u32::from(layout::ACPI_PM1_CONTROL).into();
    fadt.pm1_cnt_len = 2;
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C3.into();
    fadt.century = CENTURY;
    fadt.iapc_boot_arch = BOOT_ARCHITECTURE.into();
    fadt.reset_reg = GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        layout::I8042_COMMAND.into(),
    );
    fadt.reset_value = layout::I8042_RESET;
    fadt.finalize()
}

/// The processors and the I/O APIC. Its pins are the interrupt lines, the timer's too: that is how
/// KVM routes them as long as nobody tells it otherwise.
fn madt(vcpus: u64) -> MadtWithPics {
    let local = LocalInterruptController::Address(layout::LOCAL_APIC);
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, local);
    let last = u8::try_from(vcpus.saturating_sub(1)).unwrap_or(u8::MAX);
    for number in 0..=last {
        let enabled = EnabledStatus::Enabled;
        madt.add_structure(ProcessorLocalApic::new(number, number, enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    MadtWithPics(madt)
}

/// A MADT that says that there are 8259s, which the crate's own cannot.
struct MadtWithPics(MADT);

/// Where the flags and the checksum lie in a MADT.
const MADT_FLAGS: usize = 40;
const CHECKSUM: usize = 9;

impl Aml for MadtWithPics {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let mut table = bytes(&self.0);
        let flag = u8::try_from(PIC_PRESENT).unwrap_or_default();
        for (offset, change) in [(MADT_FLAGS, flag), (CHECKSUM, flag.wrapping_neg())] {
            if let Some(byte) = table.get_mut(offset) {
                *byte = byte.wrapping_add(change);
            }
        }
        sink.vec(&table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use tracer::target::PhysicalMemory;

    fn read(memory: &Memory, at: Gpa, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        memory.read_physical(at, &mut bytes).unwrap();
        bytes
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// A table whose signature, length and checksum are right.
    fn table(memory: &Memory, at: u64, signature: &[u8; 4]) -> Vec<u8> {
        let header = read(memory, Gpa(at), 36);
        assert_eq!(&header[..4], signature);
        let table = read(memory, Gpa(at), word(&header, 4) as usize);
        assert_eq!(sum(&table), 0, "checksum of {signature:?}");
        table
    }

    #[test]
    fn the_tables_lead_from_the_rsdp_to_every_vcpu() {
        for vcpus in [1, 2, layout::VCPUS_MAX] {
            let ram = Ram::create(layout::MEMORY_MIN_MIB, 0x1000).unwrap();
            let memory = ram.memory().clone();
            let rsdp = write(&ram, vcpus).unwrap();
            let rsdp = read(&memory, rsdp, 36);
            assert_eq!(&rsdp[..8], b"RSD PTR ");
            assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
            let xsdt = table(&memory, word(&rsdp, 24).into(), b"XSDT");
            let fadt = table(&memory, word(&xsdt, 36).into(), b"FACP");
            let madt = table(&memory, word(&xsdt, 44).into(), b"APIC");
            assert_eq!(madt.len() as u64, 44 + 8 * vcpus + 12);
            assert_eq!(word(&madt, MADT_FLAGS), PIC_PRESENT);
            for number in 0..u8::try_from(vcpus).unwrap() {
                let at = 44 + 8 * usize::from(number);
                assert_eq!(madt[at..at + 8], [0, 8, number, number, 1, 0, 0, 0]);
            }
            let facs = u64::from(word(&fadt, 36));
            assert_eq!(
                (facs % 64, &read(&memory, Gpa(facs), 4)[..]),
                (0, &b"FACS"[..])
            );
            let dsdt = table(&memory, word(&fadt, 40).into(), b"DSDT");
            assert!(dsdt.windows(4).any(|name| name == b"_S5_"));
            assert_eq!(word(&fadt, 64), u32::from(layout::ACPI_PM1_CONTROL));
        }
    }
}
