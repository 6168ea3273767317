//! Kernels of every age: what `vmm sites` says of each against the System.map of its debug package and against the
//! kernel's own list of call sites, read here by that map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use image::bzimage::BzImage;
use serde_json::Value;
use tests::{Kernel, kernels, vmm_says};

/// Letters of symbols that are functions, where they lie in text.
const CODE: &str = "tTwW";
/// What stands before functions and is none.
const PADDING: [&str; 2] = ["__pfx_", "__cfi_"];
/// The length of `endbr64`, which can stand before a site.
const LANDING_PAD: u64 = 4;

#[test]
fn kernels_of_the_suite_are_read_as_their_maps_have_them() {
    compare(&kernels(Some("suite")));
}

/// `make test-long`.
#[test]
fn all_kernels_are_read_as_their_maps_have_them() {
    compare(&kernels(None));
}

fn compare(kernels: &[Kernel]) {
    assert!(kernels.len() >= 3, "{kernels:?}");
    let mut with_map = 0;
    for kernel in kernels {
        let ours = Ours::of(&kernel.image());
        println!(
            "{}: {} functions, {} sites, {} left out",
            kernel.name,
            ours.functions.len(),
            ours.sites.len(),
            ours.skipped.len()
        );
        assert!(ours.sites.len() > 30_000, "{}", kernel.name);
        let Some(map) = kernel.system_map() else {
            continue;
        };
        with_map += 1;
        let map = Map::read(&map);
        ours.agree_with(&map, &kernel.name);
        let listed = map.listed(&unpacked(&kernel.image()));
        ours.are_the_listed(&listed, &kernel.name);
    }
    assert!(with_map >= 3, "{with_map} of them with a System.map");
}

fn unpacked(kernel: &Path) -> Vec<u8> {
    let file = fs::read(kernel).unwrap();
    BzImage::parse(&file).unwrap().unpack().unwrap()
}

/// What `vmm sites` says.
struct Ours {
    /// The name at each address of a site.
    sites: BTreeMap<u64, String>,
    /// The name at each address of a function without a site.
    untraceable: BTreeMap<u64, String>,
    /// Places that were left out; each has a reason.
    skipped: BTreeSet<u64>,
    /// Where functions begin, or may: a site can lie after a landing pad.
    functions: BTreeSet<u64>,
}

impl Ours {
    fn of(kernel: &Path) -> Self {
        let said = vmm_says(&["sites", kernel.to_str().unwrap(), "--json"]).good();
        let said: Value = serde_json::from_str(&said.stdout).unwrap();
        let address = |entry: &Value| hex(entry["address"].as_str().unwrap());
        let named = |list: &str| -> BTreeMap<u64, String> {
            let entries = said[list].as_array().unwrap().iter();
            entries
                .map(|entry| (address(entry), entry["symbol"].as_str().unwrap().to_owned()))
                .collect()
        };
        let (sites, untraceable) = (named("sites"), named("untraceable"));
        let places = said["skipped"].as_array().unwrap().iter();
        let skipped = places
            .map(|place| {
                assert!(!place["reason"].as_str().unwrap().is_empty(), "{place}");
                address(place)
            })
            .collect();
        let after_pads = sites.keys().map(|at| at - LANDING_PAD);
        let functions = sites.keys().chain(untraceable.keys()).copied();
        let functions = functions.chain(after_pads).collect();
        Self {
            sites,
            untraceable,
            skipped,
            functions,
        }
    }

    /// Each name is where the map has it, and each function of the map is known.
    fn agree_with(&self, map: &Map, kernel: &str) {
        let is_wrong = |(at, name): &(&u64, &String)| {
            !map.has(**at, name) && !map.has(**at - LANDING_PAD, name)
        };
        let wrong: Vec<_> = self.sites.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{kernel}: sites elsewhere: {wrong:x?}");
        let is_wrong = |(at, name): &(&u64, &String)| !map.has(**at, name);
        let wrong: Vec<_> = self.untraceable.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{kernel}: names elsewhere: {wrong:x?}");
        let missing: Vec<_> = map
            .functions()
            .filter(|(at, _)| !self.functions.contains(at))
            .collect();
        assert!(missing.is_empty(), "{kernel}: not known: {missing:x?}");
    }

    /// The sites are those that the kernel lists, and those that are not have a reason.
    fn are_the_listed(&self, listed: &BTreeSet<u64>, kernel: &str) {
        let unlisted: Vec<_> = self
            .sites
            .keys()
            .filter(|at| !listed.contains(at))
            .collect();
        assert!(unlisted.is_empty(), "{kernel}: not listed: {unlisted:x?}");
        let is_missing = |at: &&u64| !self.sites.contains_key(at) && !self.skipped.contains(at);
        let missing: Vec<_> = listed.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{kernel}: listed: {missing:x?}");
    }
}

/// A System.map.
struct Map {
    by_address: BTreeMap<u64, Vec<(char, String)>>,
    by_name: BTreeMap<String, u64>,
}

impl Map {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let (mut by_address, mut by_name) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new());
        for line in text.lines() {
            let mut fields = line.split(' ');
            let mut field = || fields.next().unwrap();
            let (at, letter, name) = (hex(field()), field(), field());
            let letter = letter.chars().next().unwrap();
            by_address
                .entry(at)
                .or_default()
                .push((letter, name.to_owned()));
            by_name.entry(name.to_owned()).or_insert(at);
        }
        Self {
            by_address,
            by_name,
        }
    }

    fn has(&self, at: u64, name: &str) -> bool {
        let names = self.by_address.get(&at).into_iter().flatten();
        names.into_iter().any(|(_, known)| known == name)
    }

    /// Every function in the text that stays, and in init text.
    fn functions(&self) -> impl Iterator<Item = (u64, &str)> {
        let bounds = |start, end| self.by_name[start]..self.by_name[end];
        let (text, init) = (
            bounds("_stext", "_etext"),
            bounds("_sinittext", "_einittext"),
        );
        let there = self
            .by_address
            .iter()
            .filter(move |(at, _)| text.contains(at) || init.contains(at));
        let named = there.flat_map(|(at, names)| names.iter().map(|name| (*at, name)));
        named.filter_map(|(at, (letter, name))| {
            let is_code = CODE.contains(*letter);
            let is_padding = PADDING.iter().any(|start| name.starts_with(start));
            (is_code && !is_padding).then_some((at, &**name))
        })
    }

    /// The kernel's list of call sites, without the zeros that its build leaves.
    fn listed(&self, kernel: &[u8]) -> BTreeSet<u64> {
        let [start, end] =
            ["__start_mcount_loc", "__stop_mcount_loc"].map(|name| self.by_name[name]);
        let bytes = loaded(kernel, start, usize::try_from(end - start).unwrap());
        let (words, _) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let listed: BTreeSet<u64> = words.filter(|at| *at != 0).collect();
        assert!(listed.len() > 30_000, "{} listed", listed.len());
        listed
    }
}

/// What an ELF file loads at `at`.
fn loaded(file: &[u8], at: u64, length: usize) -> &[u8] {
    let word = |offset: usize| u64::from_le_bytes(file[offset..offset + 8].try_into().unwrap());
    let index = |value: u64| usize::try_from(value).unwrap();
    let count = usize::from(u16::from_le_bytes([file[56], file[57]]));
    let headers = (0..count).map(|number| index(word(32)) + 56 * number);
    let mut loads = headers.filter(|header| file[*header..header + 4] == [1, 0, 0, 0]);
    let holder = loads.find(|header| {
        let (from, held) = (word(header + 16), word(header + 32));
        (from..from + held).contains(&at)
    });
    let header = holder.expect("a segment holds the list");
    let offset = index(word(header + 8) + at - word(header + 16));
    &file[offset..offset + length]
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}
