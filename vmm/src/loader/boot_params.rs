//! What the Linux 64-bit boot protocol hands to a kernel in memory: `boot_params` with the memory
//! map, and the command line.

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use terms::addr::Gpa;
use vm_memory::{Bytes, GuestAddress};

use super::{BootOptions, LoadError};
use crate::layout;
use crate::memory::Ram;

const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = 0x5372_6448;
const PROTOCOL_2_15: u16 = 0x020f;
const LOADER_UNDEFINED: u8 = 0xff;
const LOADED_HIGH: u8 = 1;
const E820_RAM: u32 = 1;

/// Where the kernel finds what was loaded beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The initial RAM disk and its size.
    pub(super) initrd: Option<(Gpa, u64)>,
    /// The root of the ACPI tables.
    pub(super) rsdp: Gpa,
}

/// Writes the command line, with ` vcpus=N` added, and `boot_params`.
pub(super) fn write(ram: &Ram, options: &BootOptions<'_>, found: Found) -> Result<(), LoadError> {
    let line = command_line(options.cmdline, options.vcpus)?;
    let refused = |_| LoadError::NoRoom {
        what: "the command line",
        at: layout::CMDLINE,
    };
    ram.map()
        .write_slice(&line, GuestAddress(layout::CMDLINE.0))
        .map_err(refused)?;

    let mut params = boot_params::default();
    params.hdr.boot_flag = BOOT_FLAG;
    params.hdr.header = HEADER_MAGIC;
    params.hdr.version = PROTOCOL_2_15;
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.loadflags = LOADED_HIGH;
    params.hdr.cmd_line_ptr = u32::try_from(layout::CMDLINE.0).unwrap_or_default();
    params.hdr.cmdline_size = u32::try_from(line.len()).unwrap_or_default();
    params.hdr.kernel_alignment = 0x100_0000;
    if let Some((at, bytes)) = found.initrd {
        // Both are below 2 GiB: `initrd` sees to it.
        params.hdr.ramdisk_image = u32::try_from(at.0).unwrap_or_default();
        params.hdr.ramdisk_size = u32::try_from(bytes).unwrap_or_default();
    }
    params.acpi_rsdp_addr = found.rsdp.0;
    for (slot, (start, length)) in params
        .e820_table
        .iter_mut()
        .zip(ram_map(ram.memory().ram_bytes()))
    {
        *slot = boot_e820_entry {
            addr: start.0,
            size: length,
            r#type: E820_RAM,
        };
        params.e820_entries += 1;
    }
    let at = GuestAddress(layout::BOOT_PARAMS.0);
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&params, at), ram.map()).map_err(
        |_| LoadError::NoRoom {
            what: "boot_params",
            at: layout::BOOT_PARAMS,
        },
    )
}

/// The memory map: all RAM but the PC's legacy area. The window region is in no entry.
fn ram_map(ram_bytes: u64) -> Vec<(Gpa, u64)> {
    let mut map = vec![(Gpa(0), layout::LOW_RAM_END.0)];
    for (start, length) in layout::ram_ranges(ram_bytes) {
        let from = start.0.max(layout::HIGH_RAM_START.0);
        map.push((Gpa(from), (start.0 + length).saturating_sub(from)));
    }
    map
}

fn command_line(cmdline: &str, vcpus: u64) -> Result<Vec<u8>, LoadError> {
    if cmdline.bytes().any(|byte| byte == 0 || byte == b'\n') {
        return Err(LoadError::CommandLineBytes);
    }
    let mut line = format!("{cmdline} vcpus={vcpus}")
        .trim_start()
        .as_bytes()
        .to_vec();
    line.push(0);
    if line.len() > layout::CMDLINE_MAX {
        return Err(LoadError::CommandLineTooLong {
            bytes: line.len() - 1,
        });
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{GIB, MIB};

    #[test]
    fn the_memory_map_covers_ram_and_never_the_window() {
        for ram in [16 * MIB, 3 * GIB, 6 * GIB] {
            let window = layout::window_start(ram).0;
            for (start, length) in ram_map(ram) {
                assert!(start.0 + length <= window, "{start} +{length:#x}");
            }
            let total: u64 = ram_map(ram).iter().map(|(_, length)| length).sum();
            assert_eq!(
                total,
                ram - (layout::HIGH_RAM_START.0 - layout::LOW_RAM_END.0)
            );
        }
    }

    #[test]
    fn the_command_line_says_how_many_vcpus() {
        assert_eq!(command_line("ring=0", 2).unwrap(), b"ring=0 vcpus=2\0");
        assert_eq!(command_line("", 1).unwrap(), b"vcpus=1\0");
        assert!(matches!(
            command_line("a\0b", 1),
            Err(LoadError::CommandLineBytes)
        ));
        let long = "x".repeat(layout::CMDLINE_MAX);
        assert!(matches!(
            command_line(&long, 1),
            Err(LoadError::CommandLineTooLong { .. })
        ));
    }
}
