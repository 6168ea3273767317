//! Page tables, and a list of function sites, that a guest makes up.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("kernel"), |bytes: &[u8]| targets::kernel::run(bytes));
