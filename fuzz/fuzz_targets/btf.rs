//! A `.BTF` section.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("btf"), |bytes: &[u8]| targets::image::btf(bytes));
