//! A marker in Rust: the workload `marks`.

use points::marker;

use crate::opaque;

/// One iteration: one marker is passed.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "fields of every width are made of one value"
)]
pub extern "C" fn rust_marks(value: u64) -> u64 {
    let turned = value.wrapping_neg() as i16;
    let low = value as u16;
    marker!(
        guest: rust_mark,
        value: u64 = value,
        less: i32 = value as i32,
        low: u16 = low,
        turned: i16 = turned,
        wide: u32 = (value >> 32) as u32,
        below: i64 = -(value as i64 >> 1),
    );
    opaque(value).rotate_left(7) ^ u64::from(low)
}
