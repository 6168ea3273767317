//! Instructions to be moved.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("relocate"), |bytes: &[u8]| targets::image::relocate(bytes));
