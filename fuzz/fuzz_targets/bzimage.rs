//! A bzImage.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("bzimage"), |bytes: &[u8]| targets::image::bzimage(bytes));
