//! An ELF image.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::image::image(bytes));
