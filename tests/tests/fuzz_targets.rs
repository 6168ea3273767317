//! The fuzz targets, on the ordinary compiler: over their seeds and damaged copies of them, the same ones each time. What
//! libFuzzer finds in hours is not found here, but a target that is broken, or fails on its own seeds, is noticed.
#![cfg(test)]

#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use std::path::Path;

use tests::Random;

use self::targets::TARGETS;

/// Damaged copies of each seed.
const COPIES: usize = 24;

fn below(random: &mut Random, end: usize) -> usize {
    let number = random.next_u64() % end as u64;
    usize::try_from(number).unwrap_or_default()
}

fn damaged(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut copy = seed.to_vec();
    for _ in 0..=below(random, 4) {
        let at = below(random, copy.len() + 1);
        let end = (at + below(random, 9)).min(copy.len());
        match below(random, 4) {
            0 => copy.truncate(at),
            1 => drop(copy.drain(at..end)),
            2 => drop(copy.splice(at..at, copy[at..end].to_vec())),
            _ => copy[at..end].iter_mut().for_each(|byte| *byte ^= 0x41),
        }
    }
    copy
}

#[test]
fn every_target_takes_its_seeds_and_damaged_copies_of_them() {
    for target in TARGETS {
        println!("fuzz target {}", target.name);
        let mut random = Random::of_seed(0x5eed);
        for seed in (target.seeds)() {
            (target.run)(&seed);
            for _ in 0..COPIES {
                (target.run)(&damaged(&seed, &mut random));
            }
        }
    }
}

/// A target that is killed cannot remove the directory that it reads.
#[test]
fn what_a_killed_target_has_left_is_removed_by_the_next_one() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let left = format!("exotrace-fuzz-{}-0", child.id());
    let left = std::env::temp_dir().join(left);
    std::fs::create_dir_all(left.join("a")).unwrap();
    child.wait().unwrap();
    let own = format!("exotrace-fuzz-{}", std::process::id());
    let own = std::env::temp_dir().join(own);
    std::fs::create_dir_all(&own).unwrap();
    let target = TARGETS.iter().find(|target| target.name == "directory");
    (target.unwrap().run)(&[]);
    assert!(!left.exists());
    assert!(own.exists(), "its process is there");
    std::fs::remove_dir(own).unwrap();
}

#[test]
fn every_target_has_a_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    for target in TARGETS {
        let program = format!("fuzz_targets/{}.rs", target.name);
        assert!(manifest.contains(&program), "no {program} in the manifest");
        assert!(folder.join(&program).exists(), "no {program}");
    }
}
