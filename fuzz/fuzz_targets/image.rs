//! An ELF image with its symbols, kallsyms, lists of sites and types: an error, or an image that can
//! be listed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::image::Image;
use tracer::image::listing::Listing;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::parse(bytes) {
        let _ = image.check_traceable();
        let _ = Listing::of(&image, "image").table(std::io::sink());
    }
});
