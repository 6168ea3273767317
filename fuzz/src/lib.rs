//! What each fuzz target does with its input. No libFuzzer here, so that the same code runs in `make test`, over the
//! seeds and some damaged copies of each (`tests/tests/fuzz_targets.rs` takes this file in).
//!
//! A target panics where a promise is broken; what it is given is otherwise taken or refused.

pub mod control;
pub mod directory;
pub mod guest_memory;
pub mod image;
pub mod input;
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
pub const TARGETS: [Target; 12] = [
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
    target("directory", directory::run, directory::seeds),
    target("control", control::run, control::seeds),
];

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds }
}

/// Writes the seeds of a target into the folder that `SEEDS` names, and ends the process; nothing without one.
#[cfg(fuzzing)]
pub fn write_seeds(name: &str) {
    let Some(folder) = std::env::var_os("SEEDS").map(std::path::PathBuf::from) else {
        return;
    };
    let target = TARGETS.iter().find(|target| target.name == name);
    let seeds = target.map_or_else(Vec::new, |target| (target.seeds)());
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed).expect("a folder for seeds");
    }
    std::process::exit(0);
}
