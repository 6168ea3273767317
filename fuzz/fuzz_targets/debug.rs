//! An ELF file with DWARF or BTF: an error, or places for everything that can be asked. The first part of the input is
//! the file; the second what is asked.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tracer::event::FunctionId;
use tracer::image::Image;
use tracer::image::debug::DebugInfo;
use tracer::probe::{parameters, parse, resolve, return_value};

fuzz_target!(|input: (Vec<u8>, String)| {
    let (file, text) = input;
    let Ok(image) = Image::parse(&file) else {
        return;
    };
    let Ok(debug) = DebugInfo::read(Arc::new(file), None) else {
        return;
    };
    let _ = parse(&text).and_then(|request| resolve(&image, Some(&debug), &request));
    for id in (0..).map(FunctionId).take(image.functions.len().min(64)) {
        let _ = parameters(&image, &debug, id);
        let _ = return_value(&image, &debug, id);
    }
    let _ = debug.line("main.c", 7);
});
