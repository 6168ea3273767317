//! A kernel, and a file of symbols for it.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("symbols"), |bytes: &[u8]| targets::image::symbols(bytes));
