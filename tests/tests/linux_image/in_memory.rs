//! Kernels that run in a QEMU, with KASLR and without a file, against the files that they were booted from: what is
//! read out of the guest's memory is what the file says, moved.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use image::Image;
use image::bzimage::BzImage;
use insn::nop::NOP5;
use terms::addr::{Gva, Slide};
use tests::qemu::Qemu;
use tests::{Kernel, kernels, linux};
use tracer::target::PhysicalMemory;
use tracer::{KernelMap, OtherKernel, PageTableRoot, translate};

/// What handles the first entry of the table of interrupts, and what handles system calls.
const FIRST_INTERRUPT: &str = "asm_exc_divide_error";
const SYSTEM_CALLS: &str = "entry_SYSCALL_64";
/// Below it, addresses are offsets in the data of a processor, and stay.
const KERNEL: u64 = 0xffff_ffff_8000_0000;

fn file(kernel: &Path) -> Image {
    let file = fs::read(kernel).unwrap();
    let file = BzImage::parse(&file).unwrap().unpack().unwrap();
    Image::parse(&file).unwrap()
}

/// How far the running kernel was moved, by where its processor was told to handle interrupts.
fn slide(qemu: &mut Qemu, file: &Image) -> u64 {
    let (registers, interrupts) = qemu.registers();
    let root = PageTableRoot::of(&registers).unwrap();
    let entry = translate(qemu.memory(), root, Gva(interrupts)).unwrap();
    let mut gate = [0; 16];
    qemu.memory()
        .read_physical(entry.physical, &mut gate)
        .unwrap();
    let [a, b, _, _, _, _, c, d, e, f, g, h, ..] = gate;
    let handler = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    handler - file.symbols.address_of(FIRST_INTERRUPT).unwrap().0
}

/// The functions of text that stays: all their names, by address.
fn functions(image: &Image, slide: u64) -> BTreeMap<u64, Vec<String>> {
    let linux = image.linux.as_ref().unwrap();
    let lasting = image
        .functions
        .iter()
        .filter(|one| linux.lasts(one.address));
    let named = lasting.map(|one| {
        let names = [&one.name].into_iter().chain(&one.aliases);
        let names = names.map(ToString::to_string).collect();
        (one.address.0 + slide, names)
    });
    named.collect()
}

fn sites(image: &Image, slide: u64) -> BTreeMap<u64, String> {
    let linux = image.linux.as_ref().unwrap();
    let lasting = image.sites.iter().filter(|site| linux.lasts(site.address));
    let named = lasting.map(|site| (site.address.0 + slide, site.symbol.to_string()));
    named.collect()
}

fn differences<T: PartialEq + std::fmt::Debug>(
    file: &BTreeMap<u64, T>,
    memory: &BTreeMap<u64, T>,
) -> Vec<String> {
    let only = |one: &BTreeMap<u64, T>, other: &BTreeMap<u64, T>, what: &str| -> Vec<String> {
        let differing = one
            .iter()
            .filter(|(at, value)| other.get(at) != Some(value));
        differing
            .map(|(at, value)| format!("{what} {at:#x} {value:?}"))
            .collect()
    };
    [only(file, memory, "file"), only(memory, file, "memory")].concat()
}

fn are_the_same(file: &Image, memory: &Image, slide: u64) {
    println!("{:#?}", memory.notes);
    let pairs = (functions(file, slide), functions(memory, 0));
    println!("{} functions", pairs.1.len());
    let other = differences(&pairs.0, &pairs.1);
    assert!(
        other.is_empty(),
        "{} functions: {:#?}",
        other.len(),
        &other[..other.len().min(20)]
    );
    assert!(pairs.0.len() > 30_000);
    let pairs = (sites(file, slide), sites(memory, 0));
    println!("{} sites", pairs.1.len());
    let other = differences(&pairs.0, &pairs.1);
    assert!(
        other.is_empty(),
        "{} sites: {:#?}",
        other.len(),
        &other[..other.len().min(20)]
    );
    assert!(pairs.0.len() > 30_000);
    let symbols = |image: &Image, slide: u64| {
        let mut all: Vec<(u64, String)> = image
            .symbols
            .iter()
            .map(|one| {
                let at = one.address.0;
                (
                    if at >= KERNEL { at + slide } else { at },
                    one.name.to_string(),
                )
            })
            .collect();
        all.sort();
        all
    };
    assert!(symbols(file, slide) == symbols(memory, 0), "other symbols");
    assert!(file.btf == memory.btf, "other types");
    let version = |image: &Image| image.linux.as_ref().unwrap().version.clone();
    assert_eq!(version(file), version(memory));
    let calls = |image: &Image, slide: u64| -> Vec<(String, u64, usize)> {
        let calls = image.static_calls.iter();
        calls
            .map(|call| (call.name.to_string(), call.trampoline.0 + slide, call.sites))
            .collect()
    };
    assert_eq!(calls(file, slide), calls(memory, 0));
    assert_eq!(memory.tables.missing(), file.tables.missing());
}

/// The image of the file where the kernel runs: its names and sites are those of the file, moved, and the rest is the
/// memory's.
fn moves(map: &KernelMap, qemu: &Qemu, file: &Image, memory: &Image, slide: u64) {
    let began = std::time::Instant::now();
    let moved = map.moved(qemu.memory(), file.clone()).unwrap();
    println!("moved in {:?}", began.elapsed());
    assert_eq!(moved.slide, Slide(slide));
    let image = &moved.image;
    assert!(differences(&functions(file, slide), &functions(image, 0)).is_empty());
    assert!(differences(&sites(file, slide), &sites(image, 0)).is_empty());
    assert_eq!(image.tables.missing(), file.tables.missing());
    assert_eq!(image.static_calls.len(), memory.static_calls.len());
    for name in ["init_top_pgt", "system_state", "vfs_open"] {
        let at = memory.symbols.address_of(name).unwrap();
        assert_eq!(image.symbols.address_of(name), Some(at));
        assert_eq!(image.locate(at), memory.locate(at));
    }
    let site = image
        .sites
        .iter()
        .find(|site| &*site.symbol == "vfs_open")
        .unwrap();
    assert_eq!(image.loaded.bytes_at(site.address, 5), NOP5);
    let other_build = |bytes: &[u8]| {
        let mut file = file.clone();
        let (_, id) = file
            .linux
            .as_mut()
            .unwrap()
            .identity
            .build_id
            .as_mut()
            .unwrap();
        *id = bytes.into();
        map.moved(qemu.memory(), file).unwrap_err()
    };
    let refused = other_build(&[0x5a; 20]);
    assert!(matches!(refused, OtherKernel::BuildId { .. }), "{refused}");
}

/// The file of another kernel is refused, and both are named.
fn refuses(map: &KernelMap, qemu: &Qemu, running: &Image, other: Image) {
    let refused = map.moved(qemu.memory(), other.clone()).unwrap_err();
    assert!(matches!(refused, OtherKernel::Banner { .. }), "{refused}");
    let said = refused.to_string();
    for image in [running, &other] {
        let version = &image.linux.as_ref().unwrap().version;
        assert!(said.contains(version), "{said}");
    }
}

/// With the names of its System.map: those that it carries itself are the same, and the map of another kernel is refused.
fn takes_names(map: &KernelMap, qemu: &Qemu, memory: &Image, names: &Path, slide: u64) {
    let names = fs::read(names).unwrap();
    let (found, moved) = map.read_with_symbols(qemu.memory(), &names).unwrap();
    assert_eq!(moved, Slide(slide));
    let addresses = |image: &Image| functions(image, 0).into_keys().collect::<Vec<_>>();
    assert_eq!(addresses(&found.image), addresses(memory));
    assert_eq!(sites(&found.image, 0), sites(memory, 0));
    let all = kernels(Some("suite"));
    let mut others = all.iter().filter_map(Kernel::system_map);
    let other = others.find_map(|other| fs::read(other).ok().filter(|other| *other != names));
    let refused = map
        .read_with_symbols(qemu.memory(), &other.unwrap())
        .unwrap_err();
    assert!(refused.to_string().contains("another kernel"), "{refused}");
}

fn agrees(
    kernel: &Path,
    (processor, memory): (&str, u64),
    words: &str,
    other: Option<&Path>,
) -> u64 {
    let file = file(kernel);
    let mut qemu = Qemu::started(kernel, processor, memory, words);
    let slide = slide(&mut qemu, &file);
    println!("{} on {processor}: moved by {slide:#x}", kernel.display());
    let entry = Gva(file.symbols.address_of(SYSTEM_CALLS).unwrap().0 + slide);
    let (registers, _) = qemu.registers();
    let map = KernelMap::of(qemu.memory(), &registers, entry).unwrap();
    let began = std::time::Instant::now();
    let found = map.read(qemu.memory()).unwrap();
    println!("read in {:?}", began.elapsed());
    assert_eq!(found.no_sites, None);
    are_the_same(&file, &found.image, slide);
    moves(&map, &qemu, &file, &found.image, slide);
    if let Some(other) = other {
        refuses(&map, &qemu, &file, self::file(other));
    }
    let names = kernel.with_file_name("System.map");
    if names.exists() {
        takes_names(&map, &qemu, &found.image, &names, slide);
    }
    slide
}

#[test]
fn a_kernel_in_memory_is_that_of_its_file_wherever_it_was_moved() {
    let all = kernels(Some("suite"));
    let other = all.first().map(Kernel::image);
    let one = agrees(&linux().0, ("EPYC", 512), "", other.as_deref());
    // Five levels of page tables, page-table isolation, and RAM on both sides of the hole below 4 GiB.
    let other = || agrees(&linux().0, ("max", 3072), "pti=on", None);
    // There are some hundred places: now and then it is the same one.
    assert!((0..4).any(|_| other() != one), "KASLR");
}

#[test]
fn kernels_of_the_suite_are_found_in_memory() {
    for kernel in kernels(Some("suite")) {
        agrees(&kernel.image(), ("EPYC", 512), &kernel.boots_with, None);
    }
}
