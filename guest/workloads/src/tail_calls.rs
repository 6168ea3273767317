//! Functions that end in a jump to the next one (build.sh looks at the machine code).

use crate::opaque;

/// The end of the chain.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tail_calls_end(value: u64, step: u64) -> u64 {
    opaque(value).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ step
}

macro_rules! jump {
    ($($(#[$doc:meta])* $name:ident => $next:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(value: u64, step: u64) -> u64 {
            $next(opaque(value).rotate_left(5), step.wrapping_add(1))
        }
    )*};
}

jump! {
    /// Third of the chain.
    tail_calls_third => tail_calls_end;
    /// Second of the chain.
    tail_calls_second => tail_calls_third;
    /// First of the chain.
    tail_calls_first => tail_calls_second;
}

/// Calls itself by a jump, `left` times in all: must not grow the stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tail_calls_even(left: u64, value: u64) -> u64 {
    if left == 0 {
        return opaque(value);
    }
    tail_calls_odd(left - 1, opaque(value) ^ left)
}

/// The other half of [`tail_calls_even`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tail_calls_odd(left: u64, value: u64) -> u64 {
    if left == 0 {
        return opaque(value);
    }
    tail_calls_even(left - 1, opaque(value).wrapping_add(left))
}
