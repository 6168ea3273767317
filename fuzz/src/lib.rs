//! The fuzz targets, for the programs that libFuzzer runs.

pub mod targets;

pub use targets::*;

/// Writes the seeds of a target into the folder that `SEEDS` names, and ends the process; nothing without one.
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
