//! A file of symbols for a kernel: the first part of the input is the kernel, behind a length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::image::Image;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (kernel, symbols) = input;
    let _ = Image::parse_with_symbols(&kernel, &symbols);
});
