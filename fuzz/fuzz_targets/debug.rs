//! An ELF file with DWARF or BTF.
#![no_main]

libfuzzer_sys::fuzz_target!(init: targets::write_seeds("debug"), |bytes: &[u8]| targets::image::debug(bytes));
