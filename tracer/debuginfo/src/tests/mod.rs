//! DWARF as compilers write it, and as they never would.

mod constants;
mod limits;
mod sections;

use gimli::{DwAt, constants as dw};

use super::testing::{File, Form, Unit};
use super::*;

/// Where the code of the units lies.
const CODE: u64 = 0x10_0000;

fn opened(file: &File) -> DebugInfo {
    DebugInfo::read(Arc::new(file.build()), None).unwrap()
}

fn of(unit: Unit) -> DebugInfo {
    opened(&File::new(unit.sections(1)))
}

fn code() -> [(DwAt, Form); 2] {
    [
        (dw::DW_AT_low_pc, Form::Address(CODE)),
        (dw::DW_AT_high_pc, Form::Data4(0x100)),
    ]
}

fn shape(debug: &DebugInfo, at: u32) -> Result<Shape, DebugError> {
    debug.shape(TypeId::Dwarf(at as usize))
}

#[test]
fn types_that_are_made_of_themselves_are_no_end_of_the_world() {
    // A bit field of its own structure, counted from the top of a number.
    let mut unit = Unit::new(&[]);
    let at = unit.parent(dw::DW_TAG_structure_type, &[]);
    let attributes = [
        (dw::DW_AT_type, Form::Entry(at)),
        (dw::DW_AT_bit_size, Form::Data1(3)),
        (dw::DW_AT_bit_offset, Form::Data1(0)),
    ];
    unit.entry(dw::DW_TAG_member, &attributes);
    unit.end();
    assert!(matches!(shape(&of(unit), at), Ok(Shape::Structure(_))));

    // What looks like a slice, and has itself in the place of a pointer.
    let mut unit = Unit::new(&[]);
    let at = unit.parent(dw::DW_TAG_structure_type, &[]);
    for name in ["data_ptr", "length"] {
        let name = (dw::DW_AT_name, Form::Text(name));
        unit.entry(
            dw::DW_TAG_member,
            &[name, (dw::DW_AT_type, Form::Entry(at))],
        );
    }
    unit.end();
    let Ok(Shape::Structure(structure)) = shape(&of(unit), at) else {
        panic!("no structure");
    };
    assert_eq!(structure.slice, None);
}
