//! Checks of the kernel's ELF headers, before linux-loader copies anything: each way in which a
//! file can lie gets an error that names the header, the value and the limit.

use terms::addr::{Gpa, Gva};

use crate::layout;

const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// Why a file is no kernel that we can load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadElf {
    /// The first four bytes are something else.
    #[error(
        "neither an ELF file nor a bzImage: build the kernel as a 64-bit x86 ELF, or give a vmlinuz"
    )]
    NotElf,
    /// A 32-bit file.
    #[error("a 32-bit ELF file; the guest is entered in 64-bit mode, so build it for x86-64")]
    Not64Bit,
    /// Another byte order.
    #[error("not a little-endian ELF file (data encoding {order}): build the kernel for x86-64")]
    OtherOrder {
        /// What the header says.
        order: u8,
    },
    /// Another architecture.
    #[error(
        "an ELF file for another machine (e_machine {machine}): build the kernel for x86-64 ({MACHINE_X86_64})"
    )]
    OtherMachine {
        /// What the header says.
        machine: u16,
    },
    /// Headers end before they should.
    #[error(
        "truncated or damaged: {what} needs bytes {from:#x}..+{length:#x}, the file has {file:#x}; \
         copy or link it again"
    )]
    Truncated {
        /// What was to be read.
        what: String,
        /// Its file offset.
        from: u64,
        /// Its size.
        length: u64,
        /// Size of the file.
        file: u64,
    },
    /// Program headers of a strange size, or none.
    #[error(
        "damaged: {count} program headers of {bytes} bytes each (expected {PROGRAM_HEADER_BYTES}); copy or link it again"
    )]
    ProgramHeaders {
        /// e_phnum.
        count: u16,
        /// e_phentsize.
        bytes: u16,
    },
    /// Nothing to load.
    #[error("no loadable segment: this is no linked kernel (an object file or debug data?)")]
    NothingToLoad,
    /// More bytes in the file than in memory.
    #[error(
        "damaged: segment {index} has {file_bytes:#x} bytes in the file, only {memory_bytes:#x} in memory; \
         copy or link it again"
    )]
    FileLargerThanMemory {
        /// Which program header.
        index: usize,
        /// p_filesz.
        file_bytes: u64,
        /// p_memsz.
        memory_bytes: u64,
    },
    /// It is meant to be run by a kernel.
    #[error(
        "a program for an operating system (it asks for an interpreter), and no kernel: give a vmlinux, a \
         vmlinuz or another kernel that is linked to run on the bare machine"
    )]
    Program,
    /// A segment below the memory that kernels are loaded to.
    #[error(
        "segment {index} ({at}..+{bytes:#x}) is loaded below {}, where no kernel can be: is it one? If so, \
         link it higher",
        layout::HIGH_RAM_START
    )]
    TooLow {
        /// Which program header.
        index: usize,
        /// p_paddr.
        at: Gpa,
        /// p_memsz.
        bytes: u64,
    },
    /// A segment past the guest's RAM.
    #[error(
        "segment {index} ({at}..+{bytes:#x}) does not fit the guest's RAM from {} to {end}; \
         raise --memory if the kernel is large, else its headers lie",
        layout::HIGH_RAM_START
    )]
    OutsideRam {
        /// Which program header.
        index: usize,
        /// p_paddr.
        at: Gpa,
        /// p_memsz.
        bytes: u64,
        /// End of the RAM that a kernel may use.
        end: Gpa,
    },
    /// Two segments want the same memory.
    #[error(
        "segments {first} and {second} overlap at {at}: correct its linker script, or copy it again"
    )]
    Overlap {
        /// A program header.
        first: usize,
        /// Another one.
        second: usize,
        /// Where.
        at: Gpa,
    },
    /// The entry point is in no segment.
    #[error(
        "entry point {entry:#x} lies in no loadable segment: correct its linker script, or copy it again"
    )]
    EntryOutside {
        /// e_entry.
        entry: u64,
    },
}

/// One loadable segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it is loaded.
    pub physical: Gpa,
    /// Where the kernel will see it.
    pub address: Gva,
    /// Its size in memory.
    pub bytes: u64,
}

/// What the checked headers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElfLayout {
    /// The entry point, physical.
    pub entry: Gpa,
    /// The loadable segments, by physical address.
    pub segments: Vec<Segment>,
}

impl ElfLayout {
    /// The end of the highest segment in memory.
    #[must_use]
    pub fn end(&self) -> Gpa {
        let end = |segment: &Segment| segment.physical.wrapping_add(segment.bytes);
        self.segments.last().map_or(Gpa(0), end)
    }

    /// The physical address of a kernel virtual one, by the program headers, and how many bytes of
    /// the segment follow from there.
    #[must_use]
    pub fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        self.segments.iter().find_map(|segment| {
            let offset = at.0.checked_sub(segment.address.0)?;
            let left = segment.bytes.checked_sub(offset).filter(|left| *left > 0)?;
            Some((segment.physical.wrapping_add(offset), left))
        })
    }
}

/// Checks the headers of `file` against a guest whose RAM below the hole ends at `ram_end`.
///
/// # Errors
/// The first lie found, as a [`BadElf`].
pub fn check(file: &[u8], ram_end: Gpa) -> Result<ElfLayout, BadElf> {
    let header = Header::read(file)?;
    let mut found = Vec::new();
    for index in 0..usize::from(header.program_headers) {
        let program = ProgramHeader::read(file, header.program_header_offset, index)?;
        if program.kind == PT_INTERP {
            return Err(BadElf::Program);
        }
        if program.kind == PT_LOAD || program.kind == PT_NOTE {
            program.check_file_range(file, index)?;
        }
        // linux-loader copies what is in the file, whatever size in memory the header claims.
        if program.kind == PT_LOAD && (program.memory_bytes > 0 || program.file_bytes > 0) {
            program.check_memory_range(index, ram_end)?;
            found.push((index, program.segment()));
        }
    }
    found.sort_by_key(|(_, segment)| segment.physical);
    check_overlap(&found)?;
    let segments: Vec<Segment> = found.into_iter().map(|(_, segment)| segment).collect();
    if segments.is_empty() {
        return Err(BadElf::NothingToLoad);
    }
    let mut layout = ElfLayout {
        entry: Gpa(header.entry),
        segments,
    };
    layout.entry = entry_point(&layout, header.entry)?;
    Ok(layout)
}

/// The entry point is physical by the boot protocol; kernels linked with a virtual one are meant
/// all the same, so that is taken through the program headers.
fn entry_point(layout: &ElfLayout, entry: u64) -> Result<Gpa, BadElf> {
    let physical = layout.segments.iter().any(|segment| {
        entry
            .checked_sub(segment.physical.0)
            .is_some_and(|offset| offset < segment.bytes)
    });
    if physical {
        return Ok(Gpa(entry));
    }
    layout
        .locate(Gva(entry))
        .map(|(at, _)| at)
        .ok_or(BadElf::EntryOutside { entry })
}

fn check_overlap(sorted: &[(usize, Segment)]) -> Result<(), BadElf> {
    for pair in sorted.windows(2) {
        let [(first, low), (second, high)] = pair else {
            continue;
        };
        if high.physical.0 < low.physical.0.saturating_add(low.bytes) {
            return Err(BadElf::Overlap {
                first: *first,
                second: *second,
                at: high.physical,
            });
        }
    }
    Ok(())
}

struct Header {
    entry: u64,
    program_header_offset: u64,
    program_headers: u16,
}

impl Header {
    fn read(file: &[u8]) -> Result<Self, BadElf> {
        if !file.starts_with(b"\x7fELF") {
            return Err(BadElf::NotElf);
        }
        let bytes = range(
            file,
            0,
            ELF_HEADER_BYTES as u64,
            "the ELF header".to_owned(),
        )?;
        let mut fields = Fields(bytes.get(4..).unwrap_or_default());
        let [class, order] = fields.take();
        if class != CLASS_64 {
            return Err(BadElf::Not64Bit);
        }
        let _version_abi_padding_type: [u8; 12] = fields.take();
        let machine = u16::from_le_bytes(fields.take());
        if order != LITTLE_ENDIAN {
            return Err(BadElf::OtherOrder { order });
        }
        if machine != MACHINE_X86_64 {
            return Err(BadElf::OtherMachine { machine });
        }
        let _version: [u8; 4] = fields.take();
        let entry = u64::from_le_bytes(fields.take());
        let program_header_offset = u64::from_le_bytes(fields.take());
        let _sections_flags_size: [u8; 14] = fields.take();
        let size = u16::from_le_bytes(fields.take());
        let count = u16::from_le_bytes(fields.take());
        if count == 0 || usize::from(size) != PROGRAM_HEADER_BYTES {
            return Err(BadElf::ProgramHeaders { count, bytes: size });
        }
        Ok(Self {
            entry,
            program_header_offset,
            program_headers: count,
        })
    }
}

struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

impl ProgramHeader {
    fn read(file: &[u8], table: u64, index: usize) -> Result<Self, BadElf> {
        let from = table.saturating_add((index * PROGRAM_HEADER_BYTES) as u64);
        let what = format!("program header {index}");
        let bytes = range(file, from, PROGRAM_HEADER_BYTES as u64, what)?;
        let mut fields = Fields(bytes);
        let kind = u32::from_le_bytes(fields.take());
        let _flags: [u8; 4] = fields.take();
        Ok(Self {
            kind,
            offset: u64::from_le_bytes(fields.take()),
            address: u64::from_le_bytes(fields.take()),
            physical: u64::from_le_bytes(fields.take()),
            file_bytes: u64::from_le_bytes(fields.take()),
            memory_bytes: u64::from_le_bytes(fields.take()),
        })
    }

    fn check_file_range(&self, file: &[u8], index: usize) -> Result<(), BadElf> {
        range(
            file,
            self.offset,
            self.file_bytes,
            format!("segment {index}"),
        )
        .map(|_| ())
    }

    fn check_memory_range(&self, index: usize, ram_end: Gpa) -> Result<(), BadElf> {
        let (file_bytes, memory_bytes) = (self.file_bytes, self.memory_bytes);
        if file_bytes > memory_bytes {
            return Err(BadElf::FileLargerThanMemory {
                index,
                file_bytes,
                memory_bytes,
            });
        }
        let at = Gpa(self.physical);
        let bytes = memory_bytes;
        if at < layout::HIGH_RAM_START {
            return Err(BadElf::TooLow { index, at, bytes });
        }
        let end = at.checked_add(bytes);
        if end.is_some_and(|end| end <= ram_end) {
            return Ok(());
        }
        Err(BadElf::OutsideRam {
            index,
            at,
            bytes,
            end: ram_end,
        })
    }

    fn segment(&self) -> Segment {
        Segment {
            physical: Gpa(self.physical),
            address: Gva(self.address),
            bytes: self.memory_bytes,
        }
    }
}

/// Little-endian fields taken one after the other; zeros after the end, which callers have checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

fn range(file: &[u8], from: u64, length: u64, what: String) -> Result<&[u8], BadElf> {
    let truncated = || BadElf::Truncated {
        what,
        from,
        length,
        file: file.len() as u64,
    };
    let bytes = usize::try_from(from)
        .ok()
        .zip(usize::try_from(length).ok())
        .and_then(|(from, length)| file.get(from..from.checked_add(length)?));
    bytes.ok_or_else(truncated)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RAM_END: Gpa = Gpa(64 << 20);

    /// A correct ELF with the given (physical, file bytes, memory bytes) segments.
    fn elf(entry: u64, segments: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend(2u16.to_le_bytes());
        file.extend(MACHINE_X86_64.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        for word in [entry, 64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0u32.to_le_bytes());
        for half in [64, 56, u16::try_from(segments.len()).unwrap(), 0, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        let data = 64 + 56 * segments.len() as u64;
        for (physical, file_bytes, memory_bytes) in segments {
            file.extend(PT_LOAD.to_le_bytes());
            file.extend(5u32.to_le_bytes());
            let high = 0xffff_ffff_8000_0000 + physical;
            for word in [data, high, *physical, *file_bytes, *memory_bytes, 0x1000] {
                file.extend(word.to_le_bytes());
            }
        }
        file.resize(usize::try_from(data).unwrap() + 0x100, 0x90);
        file
    }

    #[test]
    fn a_good_file_gives_entry_and_segments() {
        let file = elf(
            0x20_0010,
            &[(0x30_0000, 0, 0x1000), (0x20_0000, 0x100, 0x200)],
        );
        let layout = check(&file, RAM_END).unwrap();
        assert_eq!(layout.entry, Gpa(0x20_0010));
        assert_eq!(layout.segments.len(), 2);
        assert_eq!(
            layout.locate(Gva(0xffff_ffff_8020_0123)),
            Some((Gpa(0x20_0123), 0xdd))
        );
        assert_eq!(layout.locate(Gva(0xffff_ffff_8020_0200)), None);
    }

    #[test]
    fn a_virtual_entry_point_is_taken_through_the_headers() {
        let file = elf(0xffff_ffff_8020_0010, &[(0x20_0000, 0x100, 0x200)]);
        assert_eq!(check(&file, RAM_END).unwrap().entry, Gpa(0x20_0010));
    }

    #[test]
    fn files_that_are_something_else_are_named() {
        assert_eq!(check(b"#!/bin/sh\n", RAM_END), Err(BadElf::NotElf));
        assert_eq!(check(b"", RAM_END), Err(BadElf::NotElf));
        let good = elf(0x20_0000, &[(0x20_0000, 0x100, 0x200)]);
        let mut narrow = good.clone();
        narrow[4] = 1;
        assert_eq!(check(&narrow, RAM_END), Err(BadElf::Not64Bit));
        let mut arm = good.clone();
        arm[18..20].copy_from_slice(&183u16.to_le_bytes());
        assert_eq!(
            check(&arm, RAM_END),
            Err(BadElf::OtherMachine { machine: 183 })
        );
        assert!(matches!(
            check(&good[..40], RAM_END),
            Err(BadElf::Truncated { .. })
        ));
        assert!(matches!(
            check(&good[..100], RAM_END),
            Err(BadElf::Truncated { .. })
        ));
    }

    /// A program of the host was said to need more memory.
    #[test]
    fn a_program_is_no_kernel() {
        let mut program = elf(0x20_0000, &[(0x20_0000, 0, 0), (0x20_0000, 0x100, 0x200)]);
        program[64..68].copy_from_slice(&PT_INTERP.to_le_bytes());
        assert_eq!(check(&program, RAM_END), Err(BadElf::Program));
        let low = elf(0, &[(0, 0x100, 0x200)]);
        let refused = check(&low, RAM_END).unwrap_err();
        assert!(matches!(refused, BadElf::TooLow { .. }), "{refused}");
        assert!(!refused.to_string().contains("--memory"), "{refused}");
    }

    #[test]
    fn lying_segments_are_refused() {
        let cases: [&[(u64, u64, u64)]; 5] = [
            &[(0x20_0000, 0x101, 0x200)],
            &[(0x20_0000, 0x100, 0x80)],
            &[(0x1000, 0x100, 0x200)],
            &[(0x20_0000, 0x100, u64::MAX)],
            &[(RAM_END.0 - 0x100, 0x100, 0x101)],
        ];
        for segments in cases {
            let entry = segments[0].0;
            assert!(
                check(&elf(entry, segments), RAM_END).is_err(),
                "{segments:x?}"
            );
        }
        let nowhere = [(0x30_0000, 0x100, 0x200), (0x20_0000, 0x100, 0)];
        assert_eq!(
            check(&elf(0x30_0000, &nowhere), RAM_END),
            Err(BadElf::FileLargerThanMemory {
                index: 1,
                file_bytes: 0x100,
                memory_bytes: 0
            })
        );
        let overlapping = elf(0x20_0000, &[(0x20_0000, 0, 0x2000), (0x20_1fff, 0, 0x1000)]);
        assert!(matches!(
            check(&overlapping, RAM_END),
            Err(BadElf::Overlap { .. })
        ));
        let elsewhere = elf(0x50_0000, &[(0x20_0000, 0, 0x2000)]);
        assert_eq!(
            check(&elsewhere, RAM_END),
            Err(BadElf::EntryOutside { entry: 0x50_0000 })
        );
    }

    proptest! {
        #[test]
        fn damaged_headers_never_panic(at in 0usize..176, value: u8, cut in 0usize..400) {
            let mut file = elf(0x20_0000, &[(0x20_0000, 0x100, 0x200), (0x30_0000, 0, 0x1000)]);
            file[at] = value;
            file.truncate(cut);
            if let Ok(layout) = check(&file, RAM_END) {
                for segment in layout.segments {
                    prop_assert!(segment.physical.0 + segment.bytes <= RAM_END.0);
                }
            }
        }
    }
}
