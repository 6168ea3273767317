//! The init calls of a Linux kernel: the functions that it calls one after another when it starts, by its own lists of
//! them. One list has those of all levels, the early ones first; those of consoles have another.
//!
//! An entry is the distance from itself to the function, 32 bits (`CONFIG_HAVE_ARCH_PREL32_RELOCATIONS`, x86-64 since
//! 4.19), or before that its address. Nothing in a kernel says which, but only one of them leads to text throughout: half
//! of an address that is read as a distance leads into the list itself.
//!
//! The lists lie in what a kernel frees when it has started: one that is found running has none any more.

use terms::addr::Gva;
use terms::function::FunctionId;

use super::elf::Elf;
use super::{Image, TableError};

/// What bounds the lists.
const LISTS: [(&str, &str); 2] = [
    ("__initcall_start", "__initcall_end"),
    ("__con_initcall_start", "__con_initcall_end"),
];
const WHAT: &str = "init calls";

/// Every function that a list has, ascending: all lists are read, or none.
pub(super) fn read(elf: &Elf<'_>, image: &mut Image) {
    if image.linux.is_none() {
        return;
    }
    let mut all = Vec::new();
    for bounds in LISTS {
        match listed(elf, image, bounds) {
            Ok(calls) => all.extend(calls),
            Err(error) => {
                let note = format!("init calls are not told from other calls: {error}");
                image.notes.push(note);
                return;
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    image.notes.push(format!("{} {WHAT}", all.len()));
    image.init_calls = all;
}

/// The functions of one list.
fn listed(
    elf: &Elf<'_>,
    image: &Image,
    (start, stop): (&'static str, &'static str),
) -> Result<Vec<FunctionId>, TableError> {
    let bound = |name| image.symbols.address_of(name);
    let (Some(at), Some(end)) = (bound(start), bound(stop)) else {
        let what = WHAT;
        return Err(TableError::NotNamed { what, start, stop });
    };
    let length = end.0.checked_sub(at.0);
    let data = length.map(|length| elf.bytes_at(at, length));
    let data = data.filter(|data| Some(data.len() as u64) == length);
    let entries = data.and_then(|data| entries(image, at, data));
    let entries = entries.ok_or(TableError::NotUnderstood { what: WHAT, at })?;
    let function = |at: &Gva| {
        let found = image.functions.binary_search_by_key(at, |one| one.address);
        found.ok().and_then(|index| u32::try_from(index).ok())
    };
    // What no symbol names is in no trace.
    Ok(entries
        .iter()
        .filter_map(function)
        .map(FunctionId)
        .collect())
}

/// Where the entries lead, if one kind of them leads to text throughout.
fn entries(image: &Image, start: Gva, data: &[u8]) -> Option<Vec<Gva>> {
    let (distances, more) = data.as_chunks::<4>();
    let places = (0..).map(|number: u64| start.wrapping_add(4 * number));
    let distances = places.zip(distances).map(|(here, distance)| {
        let distance = i64::from(i32::from_le_bytes(*distance));
        Gva(here.0.wrapping_add_signed(distance))
    });
    let (addresses, rest) = data.as_chunks::<8>();
    let addresses = addresses.iter().map(|at| Gva(u64::from_le_bytes(*at)));
    let is_text = |at: &Gva| image.is_text(*at, 1);
    if more.is_empty() && distances.clone().all(|at| is_text(&at)) {
        return Some(distances.collect());
    }
    (rest.is_empty() && addresses.clone().all(|at| is_text(&at))).then(|| addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    const LIST: u64 = TEXT + 0x10_0000;
    const CONSOLES: u64 = LIST + 0x1000;

    /// Three functions, of which the lists have what they are given, in a kernel that says that it is a Linux.
    fn kernel(list: &[u8], consoles: &[u8]) -> ElfFile {
        ElfFile::new()
            .text(
                TEXT,
                &[body(&[0xc3]), body(&[0xc3]), body(&[0xc3])].concat(),
            )
            .data(
                ".banner",
                TEXT + 0x20_0000,
                b"Linux version 6.1.0 (a@b)\n\0",
            )
            .data(".list", LIST, list)
            .data(".consoles", CONSOLES, consoles)
            .function("first", TEXT, 16)
            .function("second", TEXT + 16, 16)
            .function("console", TEXT + 32, 16)
    }

    fn bounded(file: ElfFile, list: (u64, u64), consoles: (u64, u64)) -> Image {
        let file = file
            .label("__initcall_start", list.0)
            .label("__initcall_end", list.1)
            .label("__con_initcall_start", consoles.0)
            .label("__con_initcall_end", consoles.1);
        Image::parse(&file.build()).unwrap()
    }

    /// With both lists as long as they are.
    fn image(list: &[u8], consoles: &[u8]) -> Image {
        let ends = (LIST + list.len() as u64, CONSOLES + consoles.len() as u64);
        bounded(kernel(list, consoles), (LIST, ends.0), (CONSOLES, ends.1))
    }

    fn distances(at: u64, to: &[u64]) -> Vec<u8> {
        let places = (at..).step_by(4).zip(to);
        let distances = places.map(|(here, to)| to.wrapping_sub(here).cast_signed());
        let words = distances.map(|distance| i32::try_from(distance).unwrap().to_le_bytes());
        words.flatten().collect()
    }

    fn addresses(to: &[u64]) -> Vec<u8> {
        to.iter().flat_map(|to| to.to_le_bytes()).collect()
    }

    fn names(image: &Image) -> Vec<&str> {
        let functions = image
            .init_calls
            .iter()
            .map(|id| image.function(*id).unwrap());
        functions.map(|function| &*function.name).collect()
    }

    fn said(image: &Image) -> String {
        let notes = image.notes.iter();
        let about = notes.filter(|note| note.contains("init calls"));
        about.map(String::as_str).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn init_calls_are_listed_by_distance_or_by_address() {
        let (list, console) = ([TEXT + 16, TEXT, TEXT + 16], [TEXT + 32]);
        let by_distance = image(&distances(LIST, &list), &distances(CONSOLES, &console));
        let by_address = image(&addresses(&list), &addresses(&console));
        for image in [by_distance, by_address] {
            assert_eq!(names(&image), ["first", "second", "console"]);
            assert_eq!(said(&image), "3 init calls");
        }
        // Without consoles, and of what no symbol names.
        let without = image(&distances(LIST, &[TEXT, TEXT + 4]), &[]);
        assert_eq!(names(&without), ["first"]);
    }

    #[test]
    fn lists_that_lead_elsewhere_are_none() {
        let good = distances(CONSOLES, &[TEXT + 32]);
        let outside = TEXT + 0x1000;
        for list in [
            distances(LIST, &[TEXT, outside]),
            addresses(&[TEXT, outside]),
            // Not of whole entries.
            distances(LIST, &[TEXT, TEXT])[..6].to_vec(),
            [addresses(&[TEXT]), vec![0; 4]].concat(),
        ] {
            let image = image(&list, &good);
            assert_eq!(names(&image), [""; 0], "{list:x?}");
            let why = "its list of init calls at 0xffffffff80200000 is not in the image, or of an unknown layout";
            assert!(said(&image).ends_with(why), "{}", said(&image));
        }
        let image = image(&distances(LIST, &[TEXT]), &distances(CONSOLES, &[outside]));
        assert_eq!(names(&image), [""; 0]);
    }

    #[test]
    fn bounds_that_make_no_sense_bound_no_list() {
        let (list, consoles) = (distances(LIST, &[TEXT]), distances(CONSOLES, &[TEXT + 32]));
        let good = (CONSOLES, CONSOLES + 4);
        for bounds in [
            (LIST + 4, LIST),
            (LIST, u64::MAX),
            (0, u64::MAX),
            (LIST, LIST + 8),
            (LIST + 0x800, LIST + 0x804),
        ] {
            let image = bounded(kernel(&list, &consoles), bounds, good);
            assert_eq!(names(&image), [""; 0], "{bounds:x?}");
            assert!(said(&image).contains("unknown layout"), "{}", said(&image));
        }
        let unnamed = Image::parse(&kernel(&list, &consoles).build()).unwrap();
        assert_eq!(names(&unnamed), [""; 0]);
        assert!(said(&unnamed).contains("without the symbols __initcall_start"));
    }

    #[test]
    fn other_kernels_have_none() {
        let file = ElfFile::new()
            .text(TEXT, &body(&[0xc3]))
            .data(".list", LIST, &distances(LIST, &[TEXT]))
            .data(".consoles", CONSOLES, &distances(CONSOLES, &[TEXT]))
            .function("first", TEXT, 16);
        let other = bounded(file, (LIST, LIST + 4), (CONSOLES, CONSOLES + 4));
        assert_eq!(names(&other), [""; 0]);
        assert_eq!(said(&other), "");
    }
}
