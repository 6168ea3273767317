//! What arrives on the control socket.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("control"), |bytes: &[u8]| targets::control::run(bytes));
