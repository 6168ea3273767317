//! Kernels that run in a QEMU, with KASLR and without a file, against the files that they were booted from: what is
//! read out of the guest's memory is what the file says, moved.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use image::Image;
use image::bzimage::BzImage;
use terms::addr::Gva;
use tests::qemu::Qemu;
use tests::{kernels, linux};
use tracer::target::PhysicalMemory;
use tracer::{FoundKernel, PageTableRoot, kernel_in_memory, translate};

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

fn found(qemu: &mut Qemu, file: &Image, slide: u64) -> FoundKernel {
    let entry = file.symbols.address_of(SYSTEM_CALLS).unwrap();
    let (registers, _) = qemu.registers();
    let began = std::time::Instant::now();
    let found = kernel_in_memory(qemu.memory(), &registers, Gva(entry.0 + slide)).unwrap();
    println!("read in {:?}", began.elapsed());
    found
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
    // A kernel that does not name its list of lock prefixes has it in a section alone, and memory has no sections.
    let names_all = file.symbols.address_of("__smp_locks").is_some();
    assert_eq!(memory.tables.missing().is_none(), names_all);
}

fn agrees(kernel: &Path, processor: &str, words: &str) -> u64 {
    let file = file(kernel);
    let mut qemu = Qemu::started(kernel, processor, 512, words);
    let slide = slide(&mut qemu, &file);
    println!("{} on {processor}: moved by {slide:#x}", kernel.display());
    let found = found(&mut qemu, &file, slide);
    assert_eq!(found.no_sites, None);
    are_the_same(&file, &found.image, slide);
    slide
}

#[test]
fn a_kernel_in_memory_is_that_of_its_file_wherever_it_was_moved() {
    let one = agrees(&linux().0, "EPYC", "");
    let other = agrees(&linux().0, "max", "");
    assert_ne!(one, other, "KASLR");
}

#[test]
fn kernels_of_the_suite_are_found_in_memory() {
    for kernel in kernels(Some("suite")) {
        agrees(&kernel.image(), "EPYC", &kernel.boots_with);
    }
}
