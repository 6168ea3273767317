//! An ELF file with DWARF or BTF: an error, or places for everything that can be asked. The input is the file, so that
//! real ones are seeds: small programs, built with `-g`.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tracer::event::FunctionId;
use tracer::image::Image;
use tracer::image::debug::DebugInfo;
use tracer::probe::{parameters, parse, resolve, return_value};

fuzz_target!(|file: &[u8]| {
    let Ok(image) = Image::parse(file) else {
        return;
    };
    let Ok(debug) = DebugInfo::read(Arc::new(file.to_vec()), None) else {
        return;
    };
    for id in (0..).map(FunctionId).take(image.functions.len().min(16)) {
        let _ = parameters(&image, &debug, id);
        let _ = return_value(&image, &debug, id);
        let Some(function) = image.function(id) else {
            continue;
        };
        let at = function.address;
        for (offset, asked) in [
            (0, "$args"),
            (4, "$args"),
            (9, "s t k x q p->next->v[1] p->e p->f"),
            (20, "s t p->name:string *p q.a"),
        ] {
            let text = format!("{} {asked}", at.wrapping_add(offset));
            let _ = parse(&text).and_then(|request| resolve(&image, Some(&debug), &request));
        }
    }
    let _ = debug.line("s.c", 2);
});
