//! A trace directory that may come from anywhere.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("directory"), |bytes: &[u8]| targets::directory::run(bytes));
