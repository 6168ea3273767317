use image::testing::kallsyms;
use insn::nop::NOP5;
use terms::addr::Slide;

use super::error::BrokenList;
use super::moved::OtherKernel;
use super::*;
use crate::mock::{MockTarget, Rights};
use crate::paging::PAGE_2M;
use crate::target::TextMemory;

const BASE: u64 = 0xffff_ffff_9120_0000;
const PHYSICAL: u64 = 0x400_0000;
const RODATA: u64 = BASE + PAGE_2M;
const DATA: u64 = RODATA + PAGE_2M;
const END: u64 = DATA + PAGE_2M;
const ENTRY: u64 = BASE + 0x4000;
/// As many as a table of names has to have.
const FUNCTIONS: u64 = 600;
const BANNER: &[u8] = b"Linux version 6.1.0-test (a@b) #1 SMP\n";
const STATE: u64 = DATA + 0x1000;
const PAGES: u64 = DATA + 0x2000;
const RECORDS: u64 = DATA + 0x3000;

const fn rights(write: bool, execute: bool) -> Rights {
    Rights {
        user: false,
        write,
        execute,
    }
}

const fn function(number: u64) -> u64 {
    BASE + 0x1000 + 16 * number
}

/// A kernel in three runs, as Linux maps itself.
struct Kernel(MockTarget);

impl Kernel {
    /// With text and a banner, and without names.
    fn nameless() -> Self {
        let mut target = MockTarget::new(1, 64 << 20);
        let runs = [
            (BASE, rights(false, true)),
            (RODATA, rights(false, false)),
            (DATA, rights(true, false)),
        ];
        for (at, rights) in runs {
            let physical = Gpa(PHYSICAL + (at - BASE));
            target.map(Gva(at), physical, PAGE_2M, rights).unwrap();
        }
        for number in 0..FUNCTIONS {
            target.write(Gva(function(number)), &NOP5).unwrap();
        }
        target.write(Gva(RODATA + 0x100), BANNER).unwrap();
        Self(target)
    }

    /// With names, and those of its data where `all` are there.
    fn named(all: bool) -> Self {
        let mut kernel = Self::nameless();
        let tables = kallsyms(&symbols(all), BASE);
        kernel.0.write(Gva(RODATA + 0x1000), &tables).unwrap();
        kernel.set(STATE, 3);
        kernel
    }

    /// That has started, with a list of every second function.
    fn whole() -> Self {
        let mut kernel = Self::named(true);
        let listed: Vec<u64> = (0..FUNCTIONS).step_by(2).map(function).collect();
        kernel.list(&listed);
        kernel
    }

    fn list(&mut self, sites: &[u64]) {
        self.set(DATA, PAGES);
        self.set(PAGES, 0);
        self.set(PAGES + 8, RECORDS);
        self.set(PAGES + 16, sites.len() as u64);
        for (site, at) in sites.iter().zip((RECORDS..).step_by(16)) {
            self.set(at, *site);
        }
    }

    fn set(&mut self, at: u64, word: u64) {
        self.0.write(Gva(at), &word.to_le_bytes()).unwrap();
    }

    fn read(&self) -> Result<FoundKernel, NoKernel> {
        let registers = self.registers();
        kernel_in_memory(&self.0, &registers, Gva(ENTRY))
    }

    fn map(&self) -> Result<KernelMap, NoKernel> {
        KernelMap::of(&self.0, &self.registers(), Gva(ENTRY))
    }

    fn registers(&self) -> VcpuRegisters {
        crate::target::StoppedTarget::vcpus(&self.0)[0]
    }
}

fn symbols(all: bool) -> Vec<(u8, String, u64)> {
    let entry = |letter, name: &str, at| (letter, name.to_owned(), at);
    let mut symbols = vec![entry(b'T', "_text", BASE), entry(b'T', "_stext", BASE)];
    let functions =
        (0..FUNCTIONS).map(|number| entry(b'T', &format!("f{number}"), function(number)));
    symbols.extend(functions);
    symbols.push(entry(b'T', "entry_SYSCALL_64", ENTRY));
    symbols.push(entry(b'T', "_etext", BASE + 0x5000));
    if all {
        symbols.extend([
            entry(b'R', "__start_rodata", RODATA),
            entry(b'R', "__end_rodata", RODATA + 0x10_0000),
            entry(b'D', "_sdata", DATA),
            entry(b'd', "ftrace_pages_start", DATA),
            entry(b'D', "system_state", STATE),
            entry(b'T', "__init_begin", DATA + 0x8000),
            entry(b'T', "__init_end", DATA + 0x10_0000),
            entry(b'B', "__bss_start", DATA + 0x10_1000),
            entry(b'B', "_end", DATA + 0x11_0000),
        ]);
    }
    symbols
}

fn says(refused: &impl std::fmt::Display, what: &[&str]) {
    let said = refused.to_string();
    assert!(what.iter().all(|what| said.contains(what)), "{said}");
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn a_running_kernel_is_read_with_its_names_and_its_own_list_of_sites() {
    let found = Kernel::whole().read().unwrap();
    assert_eq!(found.no_sites, None);
    let linux = found.image.linux.as_ref().unwrap();
    assert_eq!(linux.version, "6.1.0-test");
    assert_eq!(found.image.sites.len() as u64, FUNCTIONS / 2);
    assert_eq!(
        found
            .image
            .site_of(found.image.function_at(Gva(function(2))).unwrap())
            .unwrap()
            .address
            .0,
        function(2)
    );
    let left = PAGE_2M - 0x5000;
    let (at, bytes) = found.locate(Gva(BASE + 0x1000)).unwrap();
    assert_eq!(
        (at, bytes),
        (Gpa(PHYSICAL + 0x1000), PAGE_2M - 0x1000 - left)
    );
    // What it has freed is not kept, and what follows its image is not its own.
    assert!(
        found
            .image
            .loaded
            .bytes_at(Gva(DATA + 0x9000), 1)
            .is_empty()
    );
    assert_eq!(found.locate(Gva(DATA + 0x11_0000)), None);
}

#[test]
fn a_guest_that_is_not_there_yet_or_no_linux_is_refused() {
    let kernel = Kernel::whole();
    let refused = |change: fn(&mut VcpuRegisters), entry| {
        let mut registers = kernel.registers();
        change(&mut registers);
        kernel_in_memory(&kernel.0, &registers, Gva(entry)).unwrap_err()
    };
    // Real mode, and 32-bit protected mode.
    says(
        &refused(|to| to.cr0 = 0, 0),
        &["64-bit paging", "attach later"],
    );
    says(&refused(|to| to.efer = 0, ENTRY), &["64-bit paging"]);
    says(&refused(|_| {}, 0), &["IA32_LSTAR is 0", "try again"]);
    says(
        &refused(|_| {}, 0x40_0000),
        &["0x400000", "the kernel's file"],
    );
    says(
        &refused(|_| {}, DATA),
        &["nothing that can be executed", "3 runs"],
    );
    says(&refused(|_| {}, END), &["nothing that can be executed"]);
    let lost = refused(|to| to.cr3 = 0x7fff_f000_0000, ENTRY);
    assert!(matches!(lost, NoKernel::Tables(_)), "{lost}");
}

#[test]
fn a_kernel_without_names_or_a_banner_is_refused() {
    let nameless = Kernel::nameless();
    says(
        &nameless.read().unwrap_err(),
        &["6.1.0-test", "CONFIG_KALLSYMS"],
    );
    let mut silent = Kernel::nameless();
    silent
        .0
        .write(Gva(RODATA + 0x100), b"linux version")
        .unwrap();
    says(&silent.read().unwrap_err(), &["which Linux"]);
}

#[test]
fn a_kernel_that_starts_is_refused() {
    let mut kernel = Kernel::whole();
    kernel.set(STATE, 1);
    says(
        &kernel.read().unwrap_err(),
        &["6.1.0-test", "system_state is 1"],
    );
}

#[test]
fn a_kernel_that_is_too_large_is_refused_before_it_is_read() {
    let mut kernel = Kernel::whole();
    for number in 0..READ_MAX / PAGE_2M {
        let at = Gva(END + number * PAGE_2M);
        kernel
            .0
            .map(at, Gpa(PHYSICAL), PAGE_2M, rights(false, false))
            .unwrap();
    }
    says(&kernel.read().unwrap_err(), &["at most 134217728"]);
    for number in 0..=MAPPED_MAX / PAGE_2M {
        let at = Gva(MAP.start.0 + number * PAGE_2M);
        kernel
            .0
            .map(at, Gpa(PHYSICAL), PAGE_2M, rights(true, true))
            .unwrap();
    }
    says(&kernel.map().unwrap_err(), &["at most 536870912"]);
}

#[test]
fn text_that_is_no_memory_is_refused() {
    let mut kernel = Kernel::whole();
    let nowhere = Gpa(0xf000_0000);
    kernel
        .0
        .map(Gva(BASE), nowhere, PAGE_2M, rights(false, true))
        .unwrap();
    says(
        &kernel.read().unwrap_err(),
        &["cannot be read", "0xffffffff91200000"],
    );
}

#[test]
fn without_sites_there_is_an_image_all_the_same_and_a_reason() {
    let reason = |kernel: &Kernel| {
        let found = kernel.read().unwrap();
        assert!(found.image.sites.is_empty() && !found.image.functions.is_empty());
        found.no_sites.unwrap()
    };
    says(
        &reason(&Kernel::named(false)),
        &["ftrace_pages_start", "CONFIG_KALLSYMS_ALL"],
    );
    let mut kernel = Kernel::whole();
    kernel.list(&[function(1) + 0x1000_0000]);
    says(&reason(&kernel), &["none of 1 entries"]);
    kernel.set(PAGES, PAGES);
    says(&reason(&kernel), &["goes on after"]);
    kernel.set(PAGES + 16, 0xffff_ffff);
    says(&reason(&kernel), &["4294967295 entries"]);
    kernel.set(DATA, 0xdead_0000);
    says(&reason(&kernel), &["not mapped"]);
}

#[test]
fn the_list_goes_by_the_layout_and_keeps_what_lies_in_the_text() {
    let mut kernel = Kernel::whole();
    let text = [TextRange {
        start: Gva(BASE),
        end: Gva(BASE + 0x5000),
    }];
    kernel.list(&[function(3), function(1), BASE + 0x4ffc, function(1), 0]);
    let found = listed(&kernel.0, SitesLayout::USUAL, Gva(DATA), &text).unwrap();
    assert_eq!(found.sites, [Gva(function(1)), Gva(function(3))]);
    assert_eq!(found.entries, 5);
    // Entries of three words, with the address in the last.
    kernel.set(PAGES + 16, 1);
    kernel.set(RECORDS + 16, function(7));
    let layout = SitesLayout {
        entry: 24,
        ip: 16,
        ..SitesLayout::USUAL
    };
    let found = listed(&kernel.0, layout, Gva(DATA), &text).unwrap();
    assert_eq!(found.sites, [Gva(function(7))]);
    kernel.set(PAGES + 8, 0x10);
    let broken = listed(&kernel.0, layout, Gva(DATA), &text).unwrap_err();
    assert!(matches!(broken, BrokenList::Memory(_)), "{broken}");
}

#[test]
fn a_file_of_the_kernel_is_moved_and_one_of_another_is_refused() {
    let kernel = Kernel::whole();
    let map = kernel.map().unwrap();
    let slide = Slide(0x1020_0000);
    let back = Slide(0_u64.wrapping_sub(slide.0));
    let file = kernel.read().unwrap().image.moved_by(back).unwrap();
    let moved = map.moved(&kernel.0, file.clone()).unwrap();
    assert_eq!(moved.slide, slide);
    assert_eq!(moved.image.symbols.address_of("f7"), Some(Gva(function(7))));
    assert_eq!(moved.image.loaded.bytes_at(Gva(function(7)), 5), NOP5);
    assert_eq!(moved.image.physical(Gva(BASE)), Some(Gpa(PHYSICAL)));
    let refused = |change: &dyn Fn(&mut Image)| {
        let mut file = file.clone();
        change(&mut file);
        map.moved(&kernel.0, file).unwrap_err()
    };
    let identity = |file: &mut Image| {
        file.linux
            .as_mut()
            .map(|linux| linux.identity.clone())
            .unwrap()
    };
    let of = |file: &mut Image, identity| file.linux.as_mut().unwrap().identity = identity;
    let other = refused(&|file| {
        let mut other = identity(file);
        other.banner.as_mut().unwrap().1 = "Linux version 6.1.0-other".into();
        of(file, other);
    });
    says(&other, &["6.1.0-test", "6.1.0-other"]);
    let other = refused(&|file| {
        let mut other = identity(file);
        other.build_id = Some((back.runs(Gva(RODATA)), [1, 2].as_slice().into()));
        of(file, other);
    });
    says(&other, &["0102", "0000", "6.1.0-test"]);
    let silent = refused(&|file| file.linux = None);
    says(&silent, &["does not say", "6.1.0-test"]);
    let elsewhere = refused(&|file| {
        let mut other = identity(file);
        let (at, _) = other.banner.as_mut().unwrap();
        *at = at.wrapping_add(0x1000);
        of(file, other);
    });
    assert!(
        matches!(elsewhere, OtherKernel::Entry { .. }),
        "{elsewhere}"
    );
    says(&elsewhere, &["entry_SYSCALL_64", "0xffffffff91204000"]);
}

#[test]
fn symbols_of_a_file_are_moved_by_where_system_calls_enter() {
    let mut kernel = Kernel::nameless();
    let back = 0x1020_0000;
    let map_of = |skew: u64| -> String {
        let line = |(letter, name, at): &(u8, String, u64)| {
            let skew = if name == SYSTEM_CALLS { 0 } else { skew };
            format!("{:016x} {} {name}\n", at - back + skew, char::from(*letter))
        };
        let banner = (b'D', "linux_banner".to_owned(), RODATA + 0x100);
        symbols(true).iter().chain([&banner]).map(line).collect()
    };
    kernel.set(STATE, 3);
    kernel.list(&[function(2)]);
    let map = kernel.map().unwrap();
    let read = |file: &str| map.read_with_symbols(&kernel.0, file.as_bytes());
    let (found, slide) = read(&map_of(0)).unwrap();
    assert_eq!(slide, Slide(back));
    assert_eq!(found.image.symbols.address_of("f7"), Some(Gva(function(7))));
    assert_eq!(found.image.sites.len(), 1);
    says(
        &read(&map_of(0x40)).unwrap_err(),
        &["another kernel", "linux_banner"],
    );
    let without = map_of(0).replace(SYSTEM_CALLS, "entry");
    says(&read(&without).unwrap_err(), &[SYSTEM_CALLS]);
    says(&read("nonsense").unwrap_err(), &["nonsense"]);
}
