//! A list of tasks that a guest makes up.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("tasks"), |bytes: &[u8]| targets::tasks::run(bytes));
