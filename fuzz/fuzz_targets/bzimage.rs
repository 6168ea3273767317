//! A bzImage: an error, or no more than the kernel that it says it holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::image::bzimage::BzImage;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = BzImage::parse(bytes) {
        let _ = image.unpack();
    }
});
