//! How many bytes of a file its headers claim, all in all. A header is small, and any number of them may mean the same
//! bytes: whoever reads each section of a name would read thousands of times what the file has. Such a file is refused
//! before anything in it is read, so that no reader has to think of it.

use super::ImageError;

/// So many times the bytes of their file are too many. Linkers lay nothing over each other; a tool may have described
/// bytes once more.
const TIMES: u64 = 2;

/// Refuses a file in which headers claim more than that; `what` they are of, and how many bytes each claims.
pub(super) fn check(
    bytes: &[u8],
    what: &'static str,
    sizes: impl Iterator<Item = u64>,
) -> Result<(), ImageError> {
    let file = bytes.len() as u64;
    let claimed = sizes.fold(0, u64::saturating_add);
    match claimed > file.saturating_mul(TIMES) {
        true => Err(ImageError::AbsurdClaims {
            what,
            claimed,
            file,
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use insn::nop::NOP5;

    use super::*;
    use crate::Image;
    use crate::testing::{ElfFile, TEXT, body};

    /// Where in the header of a file its tables begin, how many entries they have, and how many bytes one has.
    const PROGRAMS: (usize, usize, usize) = (32, 56, 56);
    const SECTIONS: (usize, usize, usize) = (40, 60, 64);
    /// Bytes of the section in question.
    const BYTES: usize = 1 << 16;

    /// The sections of which all of a name are read.
    const NAMES: [&str; 15] = [
        ".smp_locks",
        "__ex_table",
        "__bug_table",
        ".note.stapsdt",
        "__mcount_loc",
        "__patchable_function_entries",
        "__jump_table",
        ".static_call_sites",
        ".altinstructions",
        ".parainstructions",
        ".orc_unwind_ip",
        ".gcc_except_table",
        "__dynamic_functions",
        "__tracepoints",
        ".module.one",
    ];

    fn file(name: &'static str) -> Vec<u8> {
        ElfFile::new()
            .text(TEXT, &body(&NOP5))
            .data(name, TEXT - 0x8_0000, &[0x41; BYTES])
            .function("f", TEXT, 16)
            .build()
    }

    /// The file with `count` more entries at the end of a table: each is entry `index`, changed by `change`.
    fn with_copies(
        mut file: Vec<u8>,
        (start_at, count_at, size): (usize, usize, usize),
        index: usize,
        count: u16,
        change: impl Fn(&mut [u8], u64),
    ) -> Vec<u8> {
        let start = u64::from_le_bytes(*file[start_at..].first_chunk().unwrap());
        let start = usize::try_from(start).unwrap();
        let known = u16::from_le_bytes(*file[count_at..].first_chunk().unwrap());
        let mut table = file[start..][..usize::from(known) * size].to_vec();
        let entry = table[index * size..][..size].to_vec();
        for number in 1..=u64::from(count) {
            let mut copy = entry.clone();
            change(&mut copy, number);
            table.extend(copy);
        }
        let end = file.len() as u64;
        file[start_at..start_at + 8].copy_from_slice(&end.to_le_bytes());
        file[count_at..count_at + 2].copy_from_slice(&(known + count).to_le_bytes());
        file.extend(table);
        file
    }

    /// The file whose second section is there `count` times more.
    fn with_sections(name: &'static str, count: u16) -> Vec<u8> {
        with_copies(file(name), SECTIONS, 2, count, |_, _| {})
    }

    #[test]
    fn sections_that_all_mean_the_same_bytes_are_refused() {
        for name in NAMES {
            let error = Image::parse(&with_sections(name, 2000)).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("the sections together hold 0x7d1") && error.contains("twice"),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn bytes_that_are_described_once_more_are_no_harm() {
        for name in NAMES {
            let image = Image::parse(&with_sections(name, 1));
            image.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// They can be as long as the file, and many can share one.
    #[test]
    fn names_of_sections_are_not_longer_than_names_are() {
        let is_read = |length: usize| {
            let name = format!(".module.{}", "n".repeat(length));
            let image = Image::parse(&file(name.leak())).unwrap();
            image.notes.iter().any(|note| note.contains("module nnn"))
        };
        assert!(is_read(254));
        assert!(!is_read(255));
    }

    /// Their headers say nothing.
    #[test]
    fn sections_that_are_not_in_use_hold_nothing() {
        let unused = |header: &mut [u8], number: u64| {
            header[4..8].fill(0);
            header[16..24].copy_from_slice(&number.to_le_bytes());
        };
        let file = with_copies(file(".smp_locks"), SECTIONS, 2, 20, unused);
        let notes = Image::parse(&file).unwrap().notes.join("\n");
        let count = BYTES / 4;
        assert!(
            notes.contains(&format!("{count} entries are no locked")),
            "{notes}"
        );
    }

    #[test]
    fn segments_that_all_mean_the_same_bytes_are_refused() {
        // Each at an address of its own, virtual and physical.
        let elsewhere = |header: &mut [u8], number: u64| {
            for at in [16, 24] {
                let address = u64::from_le_bytes(*header[at..].first_chunk().unwrap());
                let address = address + number * 0x10_0000;
                header[at..at + 8].copy_from_slice(&address.to_le_bytes());
            }
        };
        let copies = |count| with_copies(file(".data"), PROGRAMS, 1, count, elsewhere);
        Image::parse(&copies(1)).unwrap();
        let error = Image::parse(&copies(1000)).unwrap_err();
        assert!(
            matches!(error, ImageError::AbsurdClaims { what, .. } if what == "load segments"),
            "{error}"
        );
    }
}
