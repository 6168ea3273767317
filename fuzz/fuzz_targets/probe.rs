//! A probe's text: an error, or a request that is about nothing in an image without anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::image::Image;
use tracer::probe::{parse, resolve};

fuzz_target!(|text: &str| {
    if let Ok(request) = parse(text) {
        let _ = resolve(&Image::default(), None, &request);
    }
});
