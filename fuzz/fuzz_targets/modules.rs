//! A list of modules that a guest makes up.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::modules::run(bytes));
