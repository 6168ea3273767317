//! A trace directory that may come from anywhere.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::directory::run(bytes));
