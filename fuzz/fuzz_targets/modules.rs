//! A list of modules that a guest makes up.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("modules"), |bytes: &[u8]| targets::modules::run(bytes));
