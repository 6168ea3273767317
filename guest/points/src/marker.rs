//! Places in the middle of functions that are one nop, and a note that says where values are there, as USDT
//! has it (`.note.stapsdt`).

/// A marker in the middle of a function: one nop of five bytes, at which somebody outside can have the values
/// recorded. They are kept in registers up to there; nothing else is done for it. The name and the fields are in
/// notes of the image:
///
/// ```ignore
/// marker!(guest: queue_full, length: u32 = length, at: u64 = position);
/// ```
///
/// Types are `u16` to `u64` and `i16` to `i64`.
#[macro_export]
macro_rules! marker {
    ($provider:ident: $name:ident $(, $field:ident: $type:ident = $value:expr)+ $(,)?) => {
        // SAFETY: a nop, or a jump to code that keeps everything and comes back.
        unsafe {
            ::core::arch::asm!(
                "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                ".pushsection .note.stapsdt, \"\", @note",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b, 0, 0",
                concat!(".asciz \"", stringify!($provider), "\""),
                concat!(".asciz \"", stringify!($name), "\""),
                concat!(
                    ".asciz \"",
                    $($crate::marked_size!($type), "@{", stringify!($field), ":r} ",)+
                    "\"",
                ),
                "994: .balign 4",
                ".4byte 996f - 995f, 998f - 997f, 1",
                "995: .asciz \"exotrace\"",
                "996: .balign 4",
                "997: .8byte 990b",
                concat!(".asciz \"", $(stringify!($field), ",",)+ "\""),
                "998: .balign 4",
                ".popsection",
                $($field = in(reg) { let value: $type = $value; value },)+
                options(att_syntax, nostack),
            );
        }
    };
}

/// The size of a type as notes have it: negative with a sign.
#[doc(hidden)]
#[macro_export]
macro_rules! marked_size {
    (u16) => {
        "2"
    };
    (u32) => {
        "4"
    };
    (u64) => {
        "8"
    };
    (i16) => {
        "-2"
    };
    (i32) => {
        "-4"
    };
    (i64) => {
        "-8"
    };
}
