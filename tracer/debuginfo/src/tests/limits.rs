//! Small files in which very many things mean the same bytes.

use super::*;

/// A list of so many ranges, each of one byte, from [`CODE`] on.
fn ranges(count: u64) -> Vec<u8> {
    let range = |number: u64| {
        let start = (CODE + 2 * number).to_le_bytes();
        [&[dw::DW_RLE_start_length.0][..], &start, &[1]].concat()
    };
    let all: Vec<u8> = (0..count).flat_map(range).collect();
    [all, vec![dw::DW_RLE_end_of_list.0]].concat()
}

/// What is asked of a function when there are so many ranges.
fn with_ranges(unit: Unit, units: usize, count: u64) -> Result<Variable, DebugError> {
    let file = File::new(unit.sections(units)).section(".debug_rnglists", ranges(count));
    opened(&file).variable(Moment::At(Gva(CODE)), "any")
}

const NO_RANGES: &str = "it lists more than 65536 ranges of code, the most that is believed of so much debug information";

#[test]
fn units_cannot_all_have_the_same_list_of_ranges() {
    let list = (dw::DW_AT_ranges, Form::Section(0));
    let asked =
        |units| with_ranges(Unit::new(std::slice::from_ref(&list)), units, 40_000).unwrap_err();
    assert!(matches!(asked(1), DebugError::Absent { .. }));
    assert_eq!(
        asked(2).to_string(),
        format!("there is debug information for `any`, but it is not read: {NO_RANGES}")
    );
}

#[test]
fn functions_cannot_all_have_the_same_list_of_ranges() {
    let asked = |functions: usize| {
        let mut unit = Unit::new(&code());
        let list = (dw::DW_AT_ranges, Form::Section(0));
        let function = unit.entry(dw::DW_TAG_subprogram, &[list]);
        unit.repeat(function, functions - 1);
        with_ranges(unit, 1, 4096).unwrap_err()
    };
    assert!(matches!(asked(15), DebugError::Variable { .. }));
    assert_eq!(
        asked(16).to_string(),
        format!(
            "there is debug information for the function at 0x100000, but it is not read: {NO_RANGES}"
        )
    );
}

/// So many structures that are called by ends of one long text of this character: no two have the same name.
fn with_names(character: u8, structures: u32) -> DebugInfo {
    let mut unit = Unit::new(&[]);
    for start in 0..structures {
        let name = (dw::DW_AT_name, Form::Shared(start));
        unit.entry(dw::DW_TAG_structure_type, &[name]);
    }
    let text = [vec![character; 1 << 20], vec![0]].concat();
    opened(&File::new(unit.sections(1)).section(".debug_str", text))
}

/// What is asked of a file of so many abbreviations, and as many units: what the first of them begin at is the whole table, what
/// others do is an end of it.
fn with_tables(count: u32) -> Option<Unread> {
    let mut unit = Unit::new(&[]);
    for _ in 1..count {
        unit.entry(dw::DW_TAG_structure_type, &[]);
    }
    let [(info, bytes), abbreviations] = unit.sections(1);
    // Each is five bytes: code, tag, whether there are children, and two zeros.
    let units = (0..count).flat_map(|number| {
        let mut unit = bytes.clone();
        unit[8..12].copy_from_slice(&(5 * number).to_le_bytes());
        unit
    });
    let file = File::new([(info, units.collect()), abbreviations]);
    match opened(&file).variable(Moment::At(Gva(CODE)), "any") {
        Err(DebugError::Unread { why, .. }) => Some(why),
        Err(DebugError::Absent { .. }) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_of_abbreviations_cannot_all_be_ends_of_one() {
    assert_eq!(with_tables(100), None);
    let limit = 1 << 16;
    assert_eq!(with_tables(200), Some(Unread::Abbreviations { limit }));
}

/// Once each unit had it parsed again, and again for each answer.
#[test]
fn a_table_of_abbreviations_that_units_share_is_parsed_once() {
    let file = File::new(Unit::new(&[]).sections(3));
    let same = opened(&file).dwarf("units", |dwarf| {
        let units = dwarf.index.units().map(|offset| dwarf.unit(offset));
        let units = units.collect::<Result<Vec<_>, _>>()?;
        let is_same =
            |unit: &&units::Unit<'_>| Arc::ptr_eq(&unit.abbreviations, &units[0].abbreviations);
        Ok(units.iter().filter(is_same).count())
    });
    assert_eq!(same, Ok(3));
}

const NO_NAMES: &str = "but it is not read: the names in it together are longer than 16777216 bytes, the most that is \
                        believed of so much debug information";

#[test]
fn names_cannot_all_be_ends_of_one() {
    let name = "a".repeat(1 << 20);
    let debug = with_names(b'a', 15);
    assert_eq!(debug.unread_names(), None);
    assert!(debug.structure_named(None, &name).is_some());
    let debug = with_names(b'a', 16);
    assert_eq!(debug.structure_named(None, &name), None);
    assert_eq!(
        debug.unread_names().unwrap().to_string(),
        format!("there is debug information for names, {NO_NAMES}")
    );
    // What is asked for something else has room for itself.
    assert!(matches!(
        debug.variable(Moment::At(Gva(CODE)), "any"),
        Err(DebugError::Absent { .. })
    ));
}

/// What is shown of them is several times as long.
#[test]
fn names_that_are_unprintable_are_as_long_as_they_are_shown() {
    assert_eq!(with_names(1, 3).unread_names(), None);
    assert!(with_names(1, 4).unread_names().is_some());
}

/// A file with so many units, each with the same lines of source files: they are called by ends of `texts` long paths, which
/// have this `end`.
fn with_paths(texts: u8, end: [u8; 2], units: usize) -> DebugInfo {
    let unit = Unit::new(&[(dw::DW_AT_stmt_list, Form::Section(0))]);
    let texts = (b'a'..).take(texts.into());
    let text = texts.flat_map(|first| [&[first; 4094][..], &end, &[0]].concat());
    let text: Vec<u8> = text.collect();
    let ends = 0..u32::try_from(text.len()).unwrap();
    let paths: Vec<u32> = ends.filter(|at| at % 4097 < 4096).collect();
    let file = File::new(unit.sections(units))
        .section(".debug_line", testing::lines(&paths, CODE))
        .section(".debug_line_str", text);
    opened(&file)
}

#[test]
fn paths_cannot_all_be_ends_of_one() {
    let asked = |units| with_paths(1, *b"/s", units).line("s", 1).unwrap_err();
    assert!(matches!(asked(1), DebugError::Files { .. }));
    let error = asked(2).to_string();
    assert_eq!(
        error,
        format!("there is debug information for s:1, {NO_NAMES}")
    );
}

#[test]
fn names_that_are_like_others_cannot_all_be_ends_of_a_few() {
    let asked = |texts, units| with_paths(texts, *b"ss", units).line("x", 1).unwrap_err();
    assert!(matches!(asked(1, 1), DebugError::File { .. }));
    // The same ones again.
    assert!(matches!(asked(1, 3), DebugError::File { .. }));
    let error = asked(3, 1).to_string();
    assert_eq!(
        error,
        format!("there is debug information for x:1, {NO_NAMES}")
    );
}

#[test]
fn a_path_is_no_longer_than_any_on_linux() {
    let of_length = |length: usize| {
        let unit = Unit::new(&[(dw::DW_AT_stmt_list, Form::Section(0))]);
        let path = [vec![b'a'; length - 2], b"/s\0".to_vec()].concat();
        let file = File::new(unit.sections(1))
            .section(".debug_line", testing::lines(&[0], CODE))
            .section(".debug_line_str", path);
        opened(&file).line("s", 1)
    };
    assert_eq!(of_length(4096), Ok(vec![Gva(CODE)]));
    assert!(matches!(of_length(4097), Err(DebugError::File { .. })));
}

#[test]
fn functions_cannot_all_come_from_ends_of_one_path() {
    let asked = |texts: u8| {
        let functions = (0..u64::from(texts) * 4096).map(|number| CODE + 2 * number);
        let functions = functions.map(|at| Gva(at)..Gva(at + 2));
        with_paths(texts, *b"/s", 1).sources("files", functions)
    };
    let found = asked(1).unwrap();
    assert_eq!(found.len(), 4096);
    assert!(found.iter().all(Option::is_some));
    let error = asked(3).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("there is debug information for files, {NO_NAMES}")
    );
}

#[test]
fn members_cannot_all_have_thousands_of_attributes() {
    let asked = |members: usize| {
        let mut unit = Unit::new(&[]);
        let of_type = unit.integer("byte", 1, dw::DW_ATE_unsigned);
        let at = unit.parent(dw::DW_TAG_structure_type, &[]);
        let flags = (1..1024).map(|_| (dw::DW_AT_artificial, Form::Flag));
        let of_type = (dw::DW_AT_type, Form::Entry(of_type));
        let attributes: Vec<_> = flags.chain([of_type]).collect();
        let member = unit.entry(dw::DW_TAG_member, &attributes);
        unit.repeat(member, members - 1);
        unit.end();
        shape(&of(unit), at)
    };
    assert!(matches!(asked(1024), Ok(Shape::Structure(_))));
    let error = asked(1025).unwrap_err().to_string();
    assert!(error.contains("more than 1048576 attributes"), "{error}");
}
