//! A compact trace that may come from anywhere.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("compact"), |bytes: &[u8]| targets::compact::run(bytes));
