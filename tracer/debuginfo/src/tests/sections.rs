//! Which sections are read, and which are not unpacked.

use super::*;

/// A unit with a structure, so that there is something to find.
fn with_structure() -> [(&'static str, Vec<u8>); 2] {
    let mut unit = Unit::new(&[]);
    let name = (dw::DW_AT_name, Form::Text("known"));
    unit.entry(dw::DW_TAG_structure_type, &[name]);
    unit.sections(1)
}

#[test]
fn of_sections_with_one_name_only_the_first_is_read() {
    let [(info, units), (abbrev, abbreviations)] = with_structure();
    let length = units.len() + abbreviations.len();
    let file = File::new([(abbrev, abbreviations)])
        .compressed(info, &units)
        .compressed(".debug_str", &vec![0x41; 1 << 20]);
    let file = Arc::new(file.build_with_copies(300));
    let debug = DebugInfo::read(file, None).unwrap();
    assert!(debug.structure_named(None, "known").is_some());
    let files = debug.sections.get().unwrap();
    assert_eq!(files.bytes(), (length + (1 << 20)) as u64);
}

#[test]
fn sections_that_nothing_reads_are_not_unpacked() {
    let [info, (abbrev, abbreviations)] = with_structure();
    let length = info.1.len() + abbreviations.len();
    let file = File::default()
        .packed(".debug_info_of_nobody", 1, 1 << 40, &[])
        .section(info.0, info.1)
        .section(abbrev, abbreviations)
        .compressed(".debug_macro", &[0; 5000])
        .packed(".debug_gnu_pubnames", 2, 1 << 40, &[]);
    let debug = opened(&file);
    assert!(debug.structure_named(None, "known").is_some());
    assert_eq!(debug.sections.get().unwrap().bytes(), length as u64);
}

fn refused(file: &File) -> String {
    let debug = opened(file);
    assert_eq!(debug.structure_named(None, "known"), None);
    let error = debug.unread_names().unwrap();
    assert!(error.is_absent());
    error.to_string()
}

#[test]
fn sections_that_unpack_to_far_more_than_the_file_are_not_unpacked() {
    const EACH: usize = 40 << 20;
    let zeros = vec![0; EACH];
    let one = File::new(with_structure()).compressed(".debug_str", &zeros);
    assert!(opened(&one).structure_named(None, "known").is_some());
    let two = one.compressed(".debug_line", &zeros);
    assert_eq!(
        refused(&two),
        "there is debug information for names, but it is not read: its sections together unpack to more than 67108864 \
         bytes, the most that is believed of a file of this size"
    );
}

#[test]
fn sections_that_cannot_be_unpacked_are_not_called_absent() {
    let file = || File::new(with_structure());
    for (kind, method) in [(2, "zstd"), (7, "an unknown method (7)")] {
        assert_eq!(
            refused(&file().packed(".debug_str", kind, 100, &[0; 50])),
            format!(
                "there is debug information for names, but it is not read: .debug_str is compressed with {method}, which is \
                 not supported: objcopy (binutils), told to decompress debug sections, writes a file that can be read"
            )
        );
    }
    let damaged = "there is debug information for names, but it is not read: .debug_str is damaged: it is compressed, and \
                   cannot be unpacked";
    assert_eq!(
        refused(&file().packed(".debug_str", 1, 100, &[0xff; 50])),
        damaged
    );
    // It says that it is longer than it is.
    let whole = file().compressed(".debug_str", b"text").build();
    let mut longer = whole.clone();
    let size = whole
        .windows(8)
        .position(|word| word == 4_u64.to_le_bytes());
    longer[size.unwrap()] = 5;
    let debug = DebugInfo::read(Arc::new(longer), None).unwrap();
    assert_eq!(debug.unread_names().unwrap().to_string(), damaged);
    let debug = DebugInfo::read(Arc::new(whole), None).unwrap();
    assert_eq!(debug.unread_names(), None);
}

#[test]
fn a_kernel_says_what_its_file_of_symbols_cannot() {
    let readable = || Arc::new(File::new(with_structure()).build());
    let unreadable = || {
        let file = File::new(with_structure()).packed(".debug_str", 2, 1, &[]);
        Arc::new(file.build())
    };
    let stripped = || Arc::new(File::default().build());
    let found = |kernel, symbols| {
        let debug = DebugInfo::read(kernel, Some(symbols)).unwrap();
        let is_there = debug.structure_named(None, "known").is_some();
        (is_there, debug.unread_names().is_some())
    };
    assert_eq!(found(readable(), unreadable()), (true, false));
    assert_eq!(found(readable(), stripped()), (true, false));
    assert_eq!(found(stripped(), readable()), (true, false));
    assert_eq!(found(stripped(), unreadable()), (false, true));
    assert_eq!(found(unreadable(), stripped()), (false, true));
    assert_eq!(found(stripped(), stripped()), (false, false));
}
