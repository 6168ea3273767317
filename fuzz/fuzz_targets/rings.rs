//! Rings and cells as a guest makes them up, up to calls.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("rings"), |bytes: &[u8]| targets::rings::run(bytes));
