//! What each fuzz target does with its input. No libFuzzer here, so that the same code runs in `make test`, over the
//! seeds and some damaged copies of each (`tests/tests/fuzz_targets.rs` takes this file in).
//!
//! A target panics where a promise is broken; what it is given is otherwise taken or refused.

pub mod compact;
pub mod control;
pub mod directory;
pub mod guest_memory;
pub mod image;
pub mod input;
pub mod kernel;
pub mod modules;
pub mod rings;
pub mod tasks;

/// A target.
pub struct Target {
    /// Its name, which is that of its program, too.
    pub name: &'static str,
    /// What it does with its input.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every one.
pub const TARGETS: [Target; 14] = [
    target("bzimage", image::bzimage, image::none),
    target("image", image::image, image::none),
    target("btf", image::btf, image::none),
    target("debug", image::debug, image::none),
    target("symbols", image::symbols, image::none),
    target("relocate", image::relocate, image::code),
    target("probe", image::probe, image::probes),
    target("rings", rings::run, rings::seeds),
    target("tasks", tasks::run, tasks::seeds),
    target("modules", modules::run, modules::seeds),
    target("kernel", kernel::run, kernel::seeds),
    target("directory", directory::run, directory::seeds),
    target("compact", compact::run, compact::seeds),
    target("control", control::run, control::seeds),
];

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds }
}
