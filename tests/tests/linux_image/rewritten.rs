//! What a distribution's kernel rewrites while it runs, read from its tables as its own source describes them
//! (`include/linux/jump_label.h`, `include/linux/static_call_types.h`), against what a tactic would take.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

use iced_x86::{Decoder, DecoderOptions};
use image::Image;
use serde_json::Value;
use terms::addr::Gva;
use tests::{Ended, Kernel, kernels, linux, vmm};
use tracer::points::tactic::{Tactic, choose};
use tracer::without_sites;

/// What reaches into an instruction from the one before: the longest displacement.
const BEFORE: u64 = 20;

/// A table: its name, what bounds it, and how far apart its entries are. Each begins with the distance of the
/// instruction from there.
struct Table {
    name: &'static str,
    start: &'static str,
    stop: &'static str,
    entry: usize,
    least: usize,
}

const TABLES: [Table; 2] = [
    Table {
        name: "jump labels",
        start: "__start___jump_table",
        stop: "__stop___jump_table",
        entry: 16,
        least: 4000,
    },
    Table {
        name: "static calls",
        start: "__start_static_call_sites",
        stop: "__stop_static_call_sites",
        entry: 8,
        least: 3000,
    },
];

fn kernel() -> Image {
    read(&linux().0)
}

fn read(kernel: &Path) -> Image {
    let file = fs::read(kernel).unwrap();
    let file = image::bzimage::BzImage::parse(&file).unwrap();
    Image::parse(&file.unpack().unwrap()).unwrap()
}

fn length_at(image: &Image, at: u64) -> u64 {
    let bytes = image.loaded.bytes_at(Gva(at), 15);
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let length = decoder.decode().len() as u64;
    assert!((2..=6).contains(&length), "{at:#x}: {bytes:x?}");
    length
}

/// The instructions that a table lists, each with its bytes.
fn listed(image: &Image, table: &Table) -> Vec<Range<u64>> {
    let at = |name| image.symbols.address_of(name).unwrap();
    let (start, stop) = (at(table.start), at(table.stop));
    let data = image.loaded.bytes_at(start, stop.0 - start.0);
    assert_eq!(data.len() as u64, stop.0 - start.0);
    let entries = (start.0..)
        .step_by(table.entry)
        .zip(data.chunks_exact(table.entry));
    let listed = entries.map(|(here, entry)| {
        let distance = i32::from_le_bytes(*entry.first_chunk().unwrap());
        let code = here.wrapping_add_signed(distance.into());
        code..code + length_at(image, code)
    });
    let listed: BTreeSet<_> = listed.map(|range| (range.start, range.end)).collect();
    assert!(
        listed.len() > table.least,
        "{}: {}",
        table.name,
        listed.len()
    );
    listed.into_iter().map(|(start, end)| start..end).collect()
}

/// Where instructions begin from `BEFORE` bytes before `at` on up to it, in its function.
fn beginnings(image: &Image, at: u64) -> Vec<u64> {
    let Some(id) = image.function_at(Gva(at)) else {
        return vec![at];
    };
    let start = image.function(id).unwrap().address.0;
    let decoder = Decoder::with_ip(64, image.code(id), start, DecoderOptions::NONE);
    let begins = decoder.into_iter().map(|one| one.ip());
    let begins = begins.take_while(|begin| *begin <= at);
    begins.filter(|begin| at - begin < BEFORE).collect()
}

/// How many of these instructions a tactic displaces, wholly or in part, from wherever it begins.
fn taken(image: &Image, listed: &[Range<u64>]) -> Vec<String> {
    let displacing = [
        Tactic::One,
        Tactic::Several,
        Tactic::Hop,
        Tactic::Breakpoint,
    ];
    let mut taken = Vec::new();
    for place in listed {
        let over = |begin: &u64| {
            displacing.iter().any(|tactic| {
                let chosen = choose(image, Gva(*begin), Some(tactic.number()));
                chosen.is_ok_and(|chosen| chosen.end().0 > place.start)
            })
        };
        if let Some(begin) = beginnings(image, place.start).into_iter().find(over) {
            let name = image.symbols.at(Gva(place.start));
            let name = name.map_or("", |(symbol, _)| &symbol.name);
            taken.push(format!("{:#x} in {name} from {begin:#x}", place.start));
        }
    }
    taken
}

#[test]
fn no_tactic_takes_a_jump_label_or_a_static_call() {
    let image = kernel();
    for table in &TABLES {
        let listed = listed(&image, table);
        let taken = taken(&image, &listed);
        println!("{} of {} {} taken", taken.len(), listed.len(), table.name);
        let first: Vec<&String> = taken.iter().take(5).collect();
        assert!(
            taken.is_empty(),
            "{} of {}: {first:?}",
            taken.len(),
            listed.len()
        );
    }
}

#[test]
fn no_entry_that_any_displaces_overlaps_one() {
    let image = kernel();
    let mut command = vmm();
    command.args(["sites", "--any", "--json"]).arg(linux().0);
    let ended = Ended::from(command.stdin(Stdio::null()).output().unwrap()).good();
    let listing: Value = serde_json::from_str(&ended.stdout).unwrap();
    let functions = listing["any"]["functions"].as_array().unwrap();
    let places = functions.iter().filter_map(|function| {
        let at = function["address"].as_str().unwrap();
        let bytes = function["bytes"].as_str()?;
        let at = u64::from_str_radix(at.trim_start_matches("0x"), 16).unwrap();
        Some(at..at + bytes.split_whitespace().count() as u64)
    });
    let places: Vec<Range<u64>> = places.collect();
    assert!(places.len() > 5000, "{} places", places.len());
    let listed: Vec<Range<u64>> = TABLES
        .iter()
        .flat_map(|table| listed(&image, table))
        .collect();
    let overlaps = |place: &&Range<u64>| {
        let mut listed = listed.iter();
        listed.any(|one| one.start < place.end && place.start < one.end)
    };
    let over: Vec<_> = places.iter().filter(overlaps).collect();
    println!("{} of {} places", over.len(), places.len());
    assert!(
        over.is_empty(),
        "{} of {}: {over:x?}",
        over.len(),
        places.len()
    );
}

#[test]
fn kernels_of_the_suite_are_displaced_and_not_where_that_would_be_their_end() {
    are_displaced(&kernels(Some("suite")));
}

/// `make test-long`.
#[test]
fn all_kernels_are_displaced_and_not_where_that_would_be_their_end() {
    are_displaced(&kernels(None));
}

/// Parts of names of what runs before a processor has its stack, at each return, and while text is changed.
const FATAL: [&str; 4] = [
    "startup_64",
    "_safe_ret",
    "untrain_ret",
    "poke_int3_handler",
];

fn are_displaced(kernels: &[Kernel]) {
    for kernel in kernels {
        let name = &kernel.name;
        let image = read(&kernel.image());
        assert_eq!(image.tables.missing(), None, "{name}");
        let early = ["secondary_startup_64", "verify_cpu"];
        let [from, to] = early.map(|name| image.symbols.address_of(name).unwrap());
        let is_fatal = |place: &Gva| {
            let function = image.function(image.function_at(*place)?)?;
            let mut names = function.names();
            let is_named = names.any(|name| FATAL.iter().any(|part| name.contains(part)));
            let is_early = (from..=to).contains(&function.address);
            (is_named || is_early).then(|| function.name.to_string())
        };
        let places = without_sites(&image).into_iter();
        let places: Vec<Gva> = places
            .filter_map(|(_, place)| Some(place.ok()?.at))
            .collect();
        println!("{name}: {} places", places.len());
        assert!(places.len() > 5000, "{name}: {}", places.len());
        let fatal: Vec<String> = places.iter().filter_map(is_fatal).collect();
        assert!(fatal.is_empty(), "{name}: {fatal:?}");
        let leads = image.static_calls.iter().filter_map(|call| call.default);
        let returns = leads.filter(|to| image.name_at(*to).ends_with("_return_thunk"));
        assert_eq!(returns.count(), 0, "{name}");
    }
}
