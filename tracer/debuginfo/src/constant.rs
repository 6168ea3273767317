//! Numbers in attributes: enumerators, what tells variants apart, variables that are the same everywhere.
//!
//! A form says in how many bytes a number is written, and not what they mean. GCC writes what is not negative without a
//! sign, in as few bytes as hold it (`DW_FORM_data1` to `data8`, `implicit_const`), and what is negative as
//! `DW_FORM_sdata`; LLVM writes `udata` or `sdata`. Only what tells variants apart LLVM writes in few bytes also if it
//! has a sign, which is that of its type.
//!
//! Both extend the signs of numbers that have none: 0xffffffff of a type without a sign may be -1 in the file. So a number
//! is what its type has room for.

use gimli::AttributeValue as Value;

use super::sections::Bytes;

/// A number; in few bytes it is one without a sign.
pub(super) const fn unsigned(value: &Value<Bytes<'_>>) -> Option<u64> {
    Some(match *value {
        Value::Data1(number) => number as u64,
        Value::Data2(number) => number as u64,
        Value::Data4(number) => number as u64,
        Value::Data8(number) | Value::Udata(number) => number,
        Value::Sdata(number) => number.cast_unsigned(),
        _ => return None,
    })
}

/// A number; in few bytes it is one with a sign.
pub(super) const fn signed(value: &Value<Bytes<'_>>) -> Option<u64> {
    let number = match *value {
        Value::Data1(number) => number.cast_signed() as i64,
        Value::Data2(number) => number.cast_signed() as i64,
        Value::Data4(number) => number.cast_signed() as i64,
        _ => return unsigned(value),
    };
    Some(number.cast_unsigned())
}

/// What a type of so many bytes, with or without a sign, has room for.
pub(super) fn fitted(number: u64, bytes: u64, signed: bool) -> i64 {
    let unused = match bytes {
        1..8 => 64 - 8 * u32::try_from(bytes).unwrap_or(8),
        _ => 0,
    };
    let high = number << unused;
    match signed {
        true => high.cast_signed() >> unused,
        false => (high >> unused).cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_sign_where_its_form_or_its_type_has_one() {
        for (value, without, with) in [
            (Value::Data1(200), 200, -56),
            (Value::Data2(40_000), 40_000, -25_536),
            (Value::Data4(0x9000_0000), 0x9000_0000, -0x7000_0000),
            (Value::Data8(u64::MAX), -1, -1),
            (Value::Udata(200), 200, 200),
            (Value::Sdata(-56), -56, -56),
        ] {
            let all = (unsigned(&value), signed(&value));
            let all = (all.0.map(u64::cast_signed), all.1.map(u64::cast_signed));
            assert_eq!(all, (Some(without), Some(with)), "{value:?}");
        }
        assert_eq!(unsigned(&Value::Flag(true)), None);
        assert_eq!(signed(&Value::Flag(true)), None);
    }

    #[test]
    fn a_number_is_what_its_type_has_room_for() {
        let minus_one = u64::MAX;
        for (number, bytes, without, with) in [
            (minus_one, 1, 0xff, -1),
            (minus_one, 4, 0xffff_ffff, -1),
            (minus_one, 8, -1, -1),
            (200, 1, 200, -56),
            (200, 2, 200, 200),
            // Of what no number has, nothing is cut.
            (200, 0, 200, 200),
            (minus_one, 16, -1, -1),
        ] {
            let all = (fitted(number, bytes, false), fitted(number, bytes, true));
            assert_eq!(all, (without, with), "{number:#x} in {bytes} bytes");
        }
    }
}
