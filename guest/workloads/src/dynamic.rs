//! Functions of no to three parameters, each of which leads to one of three targets: the workload
//! `dynfunc`.

use points::dynamic_function;

use crate::opaque;

/// Bits of a result that tell the target; above them is what it computed.
pub const TARGET_BITS: u32 = 2;

dynamic_function! {
    /// No parameter.
    pub fn func0() -> u64 = func0_first | func0_second | func0_third;
    /// One.
    pub fn func1(a: u64) -> u64 = func1_first | func1_second | func1_third;
    /// Two.
    pub fn func2(a: u64, b: u64) -> u64 = func2_first | func2_second | func2_third;
    /// Three.
    pub fn func3(a: u64, b: u64, c: u64) -> u64 = func3_first | func3_second | func3_third;
}

macro_rules! targets {
    ($($name:ident: $number:literal ($($arg:ident * $factor:literal),*);)*) => {$(
        /// A weighted sum of its parameters, and its own number in the low bits.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name($($arg: u64),*) -> u64 {
            let sum = 0u64 $(.wrapping_add($arg.wrapping_mul($factor)))*;
            opaque(sum) << TARGET_BITS | $number
        }
    )*};
}

targets! {
    func0_first: 0 ();
    func0_second: 1 ();
    func0_third: 2 ();
    func1_first: 0 (a * 3);
    func1_second: 1 (a * 3);
    func1_third: 2 (a * 3);
    func2_first: 0 (a * 3, b * 5);
    func2_second: 1 (a * 3, b * 5);
    func2_third: 2 (a * 3, b * 5);
    func3_first: 0 (a * 3, b * 5, c * 7);
    func3_second: 1 (a * 3, b * 5, c * 7);
    func3_third: 2 (a * 3, b * 5, c * 7);
}
