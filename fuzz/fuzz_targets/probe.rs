//! A probe's text.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::image::probe(bytes));
