//! The list of modules of a guest that makes it up, and what its modules say that they have.

use debuginfo::btf::Field;
use image::TextRange;
use terms::addr::{Gpa, Gva};
use tracer::linux::kernel_view::KernelTables;
use tracer::linux::module::{ModuleLayout, contents, loaded};
use tracer::module::Module;

use super::guest_memory::{GuestMemory, image};

const HEAD: u64 = 0xffff_ffff_8300_f000;
/// A module's description; its low bits are its place in the memory.
const ONE: u64 = 0xffff_ffff_c000_0000;
const KERNEL: TextRange = TextRange {
    start: Gva(0xffff_ffff_8100_0000),
    end: Gva(0xffff_ffff_8200_0000),
};
/// A walk along the longest list.
const WALK_MAX: u64 = 1 << 14;
/// The names of as many symbols as are believed, each in steps.
const CONTENTS_MAX: u64 = 1 << 21;

fn layout() -> ModuleLayout {
    let field = |offset, size| Field { offset, size };
    ModuleLayout {
        head: Gva(HEAD),
        tables: KernelTables {
            top: Gpa(0),
            five_levels: None,
        },
        list: 8,
        state: field(0, 4),
        unformed: 3,
        live: 0,
        name: field(24, 56),
        text_base: field(80, 8),
        text_size: field(88, 4),
        sites_count: field(96, 4),
        sites: field(104, 8),
        kallsyms: field(112, 8),
        symtab: field(0, 8),
        symtab_count: field(8, 4),
        strtab: field(16, 8),
    }
}

/// Follows the list, and reads what the first modules have.
pub fn run(bytes: &[u8]) {
    let layout = layout();
    let Ok(found) = loaded(&GuestMemory::new(bytes, WALK_MAX), &layout, &[KERNEL]) else {
        return;
    };
    let mut before: Vec<TextRange> = vec![KERNEL];
    for one in &found {
        let text = one.module.text;
        assert!(text.start < text.end && text.start >= Gva(0xffff_ffff_8000_0000));
        let is_apart = |other: &TextRange| text.end <= other.start || other.end <= text.start;
        assert!(before.iter().all(is_apart), "modules overlap");
        before.push(text);
        assert!(is_name(&one.module.name), "{:?}", one.module.name);
    }
    for one in found.iter().take(2) {
        check(&GuestMemory::new(bytes, CONTENTS_MAX), &layout, &one.module);
    }
}

fn check(memory: &GuestMemory<'_>, layout: &ModuleLayout, module: &Module) {
    let Ok(found) = contents(memory, layout, module) else {
        return;
    };
    let holds = |at: Gva, bytes: u64| at >= module.text.start && at.0 + bytes <= module.text.end.0;
    let sites = || found.sites.iter().map(|(site, _)| *site);
    assert!(sites().is_sorted() && sites().all(|site| holds(site, 5)));
    let addresses = || found.functions.iter().map(|(address, _)| *address);
    assert!(addresses().is_sorted_by(|one, next| one < next) && addresses().all(|at| holds(at, 1)));
    assert!(found.functions.iter().all(|(_, name)| is_name(name)));
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 1024 && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// No module; one with two functions and their sites; one that follows itself.
pub fn seeds() -> Vec<Vec<u8>> {
    let text = ONE + 0x8000;
    let none = [(HEAD, HEAD)];
    let mut words = vec![
        (HEAD, ONE + 8),
        (ONE + 8, HEAD),
        (ONE + 80, text),
        (ONE + 88, 0x1000),
        (ONE + 96, 2),
        (ONE + 104, ONE + 0x400),
        (ONE + 112, ONE + 120),
        (ONE + 120, ONE + 0x1000),
        (ONE + 128, 2),
        (ONE + 136, ONE + 0x2000),
        (ONE + 0x400, text),
        (ONE + 0x408, text + 64),
        // Names, then a section that is one.
        (ONE + 0x1000, 1 | 1 << 48),
        (ONE + 0x1008, text),
        (ONE + 0x1018, 10 | 1 << 48),
        (ONE + 0x1020, text + 64),
    ];
    let texts = [(ONE + 24, "one"), (ONE + 0x2000, "\0one_init\0one_exit\0")];
    let one = image(&words, &texts);
    words.push((ONE + 8, ONE + 8));
    vec![image(&none, &[]), one, image(&words, &texts)]
}
