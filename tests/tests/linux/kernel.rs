//! The kernel of the suite as an image: where in it something can be displaced.

use std::fs;
use std::sync::LazyLock;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use image::Image;
use image::bzimage::BzImage;
use terms::addr::Gva;
use tests::linux;
use tracer::points::tactic::{Tactic, choose};

/// The kernel. It is read once: in the box that takes a minute.
pub fn kernel() -> &'static Image {
    static KERNEL: LazyLock<Image> = LazyLock::new(|| {
        let file = fs::read(linux().0).unwrap();
        let file = BzImage::parse(&file).unwrap();
        Image::parse(&file.unpack().unwrap()).unwrap()
    });
    &KERNEL
}

/// Where probes can sit in a function before its first branch, without its own site.
pub fn straight(image: &Image, name: &str) -> Vec<Gva> {
    let start = image.symbols.address_of(name).unwrap();
    let id = image.function_at(start).unwrap();
    let decoder = Decoder::with_ip(64, image.code(id), start.0, DecoderOptions::NONE);
    let straight = decoder.into_iter().take_while(|one| {
        let flow = one.flow_control();
        flow == FlowControl::Next || flow == FlowControl::Call || flow == FlowControl::IndirectCall
    });
    let mut end = start;
    let mut found = Vec::new();
    for at in straight.map(|one| Gva(one.ip())) {
        let chosen = choose(image, at, None)
            .ok()
            .filter(|one| at >= end && one.tactic < Tactic::Hop);
        if let Some(chosen) = chosen.filter(|one| one.tactic != Tactic::Site) {
            end = chosen.end();
            found.push(at);
        }
    }
    found
}
