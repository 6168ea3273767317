//! A probe's text.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("probe"), |bytes: &[u8]| targets::image::probe(bytes));
