//! An ELF image.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("image"), |bytes: &[u8]| targets::image::image(bytes));
