//! What arrives on the control socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::control::run(bytes));
