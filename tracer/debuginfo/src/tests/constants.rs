//! Numbers: enumerators, what tells variants apart, variables.

use gimli::DwAt;
use terms::expression::Expression;

use super::*;

/// Whether the numbers of an enumeration have a sign, and what they are.
fn numbers(bytes: u8, said: &[(DwAt, Form)], values: &[Form]) -> (bool, Vec<i64>) {
    let mut unit = Unit::new(&[]);
    let size = (dw::DW_AT_byte_size, Form::Data1(bytes));
    let all = [&[size], said].concat();
    let at = unit.parent(dw::DW_TAG_enumeration_type, &all);
    for value in values {
        let name = (dw::DW_AT_name, Form::Text("NAME"));
        let value = (dw::DW_AT_const_value, value.clone());
        unit.entry(dw::DW_TAG_enumerator, &[name, value]);
    }
    unit.end();
    match shape(&of(unit), at).unwrap() {
        Shape::Number { signed, names, .. } => {
            let names = names.unwrap();
            (
                signed,
                names.names.iter().map(|(value, _)| *value).collect(),
            )
        }
        other => panic!("{other:?}"),
    }
}

/// GCC writes them in as few bytes as hold them.
#[test]
fn large_enumerators_are_not_negative() {
    let values = [
        Form::Data1(132),
        Form::Data1(255),
        Form::Data2(40_000),
        Form::Data4(0x9000_0000),
        Form::ImplicitConst(0x9000_0000),
        Form::Udata(200),
    ];
    let expected = [132, 255, 40_000, 0x9000_0000, 0x9000_0000, 200];
    assert_eq!(numbers(4, &[], &values), (false, expected.to_vec()));
    // That of a type without a sign may be more than a number with one can be.
    let largest = [Form::Data8(0x9000_0000_0000_0000)];
    let expected = 0x9000_0000_0000_0000_u64.cast_signed();
    assert_eq!(numbers(8, &[], &largest), (false, vec![expected]));
}

#[test]
fn enumerators_have_a_sign_where_their_type_or_one_of_them_has() {
    let values = [Form::Sdata(-1), Form::Data1(132), Form::Sdata(-40_000)];
    assert_eq!(numbers(4, &[], &values), (true, vec![-1, 132, -40_000]));
    let encoded = |encoding: gimli::DwAte| [(dw::DW_AT_encoding, Form::Data1(encoding.0))];
    let signed = encoded(dw::DW_ATE_signed);
    assert_eq!(numbers(1, &signed, &[Form::Udata(5)]), (true, vec![5]));
    // Producers extend signs of what has none.
    let values = [Form::Sdata(-1), Form::Udata(u64::MAX)];
    let unsigned = encoded(dw::DW_ATE_unsigned);
    assert_eq!(numbers(1, &unsigned, &values), (false, vec![255, 255]));
    assert_eq!(
        numbers(4, &unsigned, &values),
        (false, vec![0xffff_ffff, 0xffff_ffff])
    );
}

#[test]
fn an_enumeration_has_the_sign_of_the_type_that_it_is_made_of() {
    for (encoding, expected) in [
        (dw::DW_ATE_signed, (true, vec![-56])),
        (dw::DW_ATE_unsigned, (false, vec![200])),
    ] {
        let mut unit = Unit::new(&[]);
        let of_type = unit.integer("byte", 1, encoding);
        let attributes = [
            (dw::DW_AT_byte_size, Form::Data1(1)),
            (dw::DW_AT_type, Form::Entry(of_type)),
        ];
        let at = unit.parent(dw::DW_TAG_enumeration_type, &attributes);
        let name = (dw::DW_AT_name, Form::Text("NAME"));
        let value = (dw::DW_AT_const_value, Form::Sdata(-56));
        unit.entry(dw::DW_TAG_enumerator, &[name, value]);
        unit.end();
        let Shape::Number { signed, names, .. } = shape(&self::of(unit), at).unwrap() else {
            panic!("no number");
        };
        let values = names
            .unwrap()
            .names
            .iter()
            .map(|(value, _)| *value)
            .collect();
        assert_eq!((signed, values), expected);
    }
}

/// By what number each variant is told, where a type of so many bytes tells them apart.
fn told(bytes: u8, encoding: gimli::DwAte, values: &[Form]) -> Vec<i64> {
    let mut unit = Unit::new(&[]);
    let tag = unit.integer("tag", bytes, encoding);
    let at = unit.parent(dw::DW_TAG_structure_type, &[]);
    // The member is the first child: an abbreviation of one byte, and a reference, come before it.
    let part = unit.next();
    let discriminant = (dw::DW_AT_discr, Form::Entry(part + 5));
    unit.parent(dw::DW_TAG_variant_part, &[discriminant]);
    let of_tag = (dw::DW_AT_type, Form::Entry(tag));
    assert_eq!(
        unit.entry(dw::DW_TAG_member, std::slice::from_ref(&of_tag)),
        part + 5
    );
    for value in values {
        let value = (dw::DW_AT_discr_value, value.clone());
        unit.parent(dw::DW_TAG_variant, &[value]);
        let name = (dw::DW_AT_name, Form::Text("Variant"));
        unit.entry(dw::DW_TAG_member, &[name, of_tag.clone()]);
        unit.end();
    }
    unit.end();
    unit.end();
    let Shape::Structure(structure) = shape(&of(unit), at).unwrap() else {
        panic!("no structure");
    };
    let (_, names) = structure.variant.unwrap();
    names.names.iter().map(|(value, _)| *value).collect()
}

/// LLVM writes these in as few bytes as hold them with the sign that their type has.
#[test]
fn variants_are_told_by_numbers_with_the_sign_of_their_type() {
    let bytes = [Form::Data1(0xff), Form::Data1(132), Form::Data1(3)];
    assert_eq!(told(1, dw::DW_ATE_unsigned, &bytes), [255, 132, 3]);
    assert_eq!(told(1, dw::DW_ATE_signed, &bytes), [-1, -124, 3]);
    let longer = [
        Form::Data1(0xff),
        Form::Data4(40_000),
        Form::Data4(0xffff_63c0),
    ];
    assert_eq!(told(4, dw::DW_ATE_signed, &longer), [-1, 40_000, -40_000]);
    assert_eq!(
        told(4, dw::DW_ATE_unsigned, &longer),
        [255, 40_000, 0xffff_63c0]
    );
}

/// The number that a variable is, whose type has so many bytes.
fn constant(bytes: u8, encoding: gimli::DwAte, value: Form) -> i64 {
    let mut unit = Unit::new(&code());
    let of_type = unit.integer("number", bytes, encoding);
    unit.parent(dw::DW_TAG_subprogram, &code());
    let attributes = [
        (dw::DW_AT_name, Form::Text("limit")),
        (dw::DW_AT_type, Form::Entry(of_type)),
        (dw::DW_AT_const_value, value),
    ];
    unit.entry(dw::DW_TAG_variable, &attributes);
    unit.end();
    let debug = of(unit);
    let found = debug.variable(Moment::At(Gva(CODE + 4)), "limit").unwrap();
    let Shape::Number { kind, signed, .. } = debug.shape(found.of.unwrap()).unwrap() else {
        panic!("no number");
    };
    let bits = u8::try_from(8 * kind.bytes()).unwrap();
    match found.place.number(0, bits, signed).unwrap() {
        Expression::Constant(number) => number.cast_signed(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn variables_that_are_constants_are_what_their_types_have_room_for() {
    let (signed, unsigned) = (dw::DW_ATE_signed, dw::DW_ATE_unsigned);
    for (bytes, encoding, value, expected) in [
        (4, signed, Form::Data1(200), 200),
        (4, signed, Form::Data2(40_000), 40_000),
        (8, signed, Form::Data4(0x9000_0000), 0x9000_0000),
        (4, signed, Form::Sdata(-56), -56),
        (1, signed, Form::Data1(0xff), -1),
        (1, unsigned, Form::Data1(0xff), 255),
        (1, unsigned, Form::Sdata(-1), 255),
        (4, unsigned, Form::Udata(0xffff_ffff_9000_0000), 0x9000_0000),
        (8, unsigned, Form::Data8(u64::MAX), -1),
    ] {
        let shown = format!("{value:?} in {bytes} bytes");
        assert_eq!(constant(bytes, encoding, value), expected, "{shown}");
    }
}
