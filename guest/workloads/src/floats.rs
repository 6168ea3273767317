//! As c/floats.c, in Rust: arguments and results in every place that the ABI has.

use crate::opaque;

/// Returned in xmm0 and xmm1.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Reals {
    a: f64,
    b: f64,
}

/// Returned in rax and xmm0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Mixed {
    word: u64,
    real: f64,
}

/// Returned in memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Large {
    words: [u64; 3],
    reals: [f64; 2],
}

/// A number from 1 up to 2.
#[inline(always)]
fn unit(word: u64) -> f64 {
    f64::from_bits((word >> 12) | 0x3ff0_0000_0000_0000)
}

/// Eight arguments in xmm registers, two on the stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_ten_doubles(
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    e: f64,
    f: f64,
    g: f64,
    h: f64,
    i: f64,
    j: f64,
) -> f64 {
    f64::from_bits(opaque((a - b * c + d - e * f + g - h * i + j).to_bits()))
}

/// Two words, two reals and a flag, in one register file or the other.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_give_mixed(
    word: u64,
    real: f64,
    other: u64,
    scale: f32,
    flag: bool,
) -> Mixed {
    let word = opaque(word).wrapping_mul(3) ^ other;
    Mixed {
        word: if flag { word } else { !word },
        real: real * f64::from(scale),
    }
}

/// Two reals back.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_give_reals(a: f64, b: f64) -> Reals {
    let a = f64::from_bits(opaque(a.to_bits()));
    Reals { a: a + b, b: a - b }
}

/// 128 bits in two registers, in and out.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_wide(a: u128, b: u128) -> u128 {
    (a ^ u128::from(opaque(7))).wrapping_add(b.rotate_left(9))
}

/// The argument on the stack, the result through a hidden pointer.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_turn_large(large: Large, scale: f64) -> Large {
    let [a, b, c] = large.words;
    let [x, y] = large.reals;
    Large {
        words: [opaque(b), c, a],
        reals: [y * scale, x],
    }
}

/// One iteration: one call of each.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn rust_floats(value: u64) -> u64 {
    let r = unit(value);
    let mut sum = rust_ten_doubles(
        r,
        r + 1.0,
        r + 2.0,
        r + 3.0,
        r + 4.0,
        r + 5.0,
        r + 6.0,
        r + 7.0,
        r + 8.0,
        r + 9.0,
    )
    .to_bits();
    let mixed = rust_give_mixed(value, r, sum, 1.5, value & 1 == 0);
    let reals = rust_give_reals(r, mixed.real);
    sum = sum.wrapping_add(mixed.word) ^ mixed.real.to_bits();
    sum = sum.wrapping_add(reals.a.to_bits()) ^ reals.b.to_bits();
    let [low, high, ..] = words(rust_wide(u128::from(sum) << 40, u128::from(value) << 70));
    let large = Large {
        words: [low, high, sum],
        reals: [r, reals.a],
    };
    let large = rust_turn_large(large, 0.25);
    let [a, b, c] = large.words;
    let [x, y] = large.reals;
    sum ^ a ^ b.wrapping_add(c) ^ x.to_bits().wrapping_add(y.to_bits())
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves, one at a time"
)]
fn words(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}
