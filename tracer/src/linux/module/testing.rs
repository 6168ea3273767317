//! A Linux with modules, made by hand in a mock target's memory.

use debuginfo::btf::Field;
use image::TextRange;
use insn::nop::NOP5;
use terms::addr::{Gpa, Gva};

use super::ModuleLayout;
use crate::linux::kernel_view::KernelTables;
use crate::mock::{MockTarget, Rights};
use crate::target::{TargetMemory, TextMemory};

/// Where the kernel's text is said to lie.
pub(crate) const KERNEL: TextRange = TextRange {
    start: Gva(0xffff_ffff_8100_0000),
    end: Gva(0xffff_ffff_8200_0000),
};
/// Where modules lie: 64 KiB for each, description first, text in the upper half.
pub(crate) const MODULES_AREA: u64 = 0xffff_ffff_c000_0000;
const MODULE_BYTES: u64 = 0x1_0000;
const TEXT_OFFSET: u64 = 0x8000;
const TEXT_BYTES: u64 = 0x4000;
const HEAD: u64 = 0xffff_ffff_8300_0000;
const AREA_PHYSICAL: u64 = 0x800_0000;
const PAGES: u64 = 0x4_0000;

// The layout of its `struct module`, in bytes.
const LIST: u64 = 8;
const NAME: u64 = 24;
const BASE: u64 = 80;
const SIZE: u64 = 88;
const SITES_COUNT: u64 = 96;
const SITES: u64 = 104;
const KALLSYMS: u64 = 112;
const SYMTAB: u64 = 120;
const SYMTAB_COUNT: u64 = 128;
const STRTAB: u64 = 136;
const SITES_AT: u64 = 0x400;
const SYMTAB_AT: u64 = 0x1000;
const STRTAB_AT: u64 = 0x3000;

/// The guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub target: MockTarget,
    pub layout: ModuleLayout,
    names: Vec<String>,
    loaded: u64,
}

impl Guest {
    /// Words of a module's description.
    pub const WORDS: u64 = 18;

    /// A machine of its own without modules.
    pub fn new() -> Self {
        Self::on(MockTarget::new(1, 64 << 20))
    }

    /// Without modules, on a machine that is there.
    pub fn on(mut target: MockTarget) -> Self {
        for (at, to, bytes) in [
            (MODULES_AREA, AREA_PHYSICAL, PAGES),
            (HEAD, AREA_PHYSICAL + PAGES, 4096),
        ] {
            for page in (0..bytes).step_by(4096) {
                target
                    .map(Gva(at + page), Gpa(to + page), 4096, Rights::ALL)
                    .unwrap();
            }
        }
        let field = |offset, size| Field { offset, size };
        let layout = ModuleLayout {
            head: Gva(HEAD),
            tables: KernelTables {
                top: target.root().table,
                five_levels: None,
            },
            list: LIST,
            state: field(0, 4),
            unformed: 3,
            live: 0,
            name: field(NAME, 56),
            text_base: field(BASE, 8),
            text_size: field(SIZE, 4),
            sites_count: field(SITES_COUNT, 4),
            sites: field(SITES, 8),
            kallsyms: field(KALLSYMS, 8),
            symtab: field(0, 8),
            symtab_count: field(SYMTAB_COUNT - SYMTAB, 4),
            strtab: field(STRTAB - SYMTAB, 8),
        };
        let mut guest = Self {
            target,
            layout,
            names: Vec::new(),
            loaded: 0,
        };
        guest.word(HEAD, HEAD);
        guest
    }

    /// Loads a module with these functions, one each 64 bytes; where its text begins.
    pub fn module(&mut self, name: &str, functions: &[&str]) -> Gva {
        let at = MODULES_AREA + self.loaded * MODULE_BYTES;
        self.loaded += 1;
        self.load_at(at, name, functions)
    }

    /// Loads it where another one has been.
    pub fn load_at(&mut self, at: u64, name: &str, functions: &[&str]) -> Gva {
        let text = at + TEXT_OFFSET;
        self.bytes(text, &vec![0xcc; usize::try_from(TEXT_BYTES).unwrap()]);
        let count = functions.len() as u64;
        let mut strings = vec![0];
        for (index, function) in (0..).zip(functions) {
            let address = text + 64 * index;
            self.bytes(address, &NOP5);
            self.word(at + SITES_AT + 8 * index, address);
            let symbol = at + SYMTAB_AT + 24 * index;
            // The name, then a section that is one.
            self.word(symbol, strings.len() as u64 | 1 << 48);
            self.word(symbol + 8, address);
            strings.extend(function.bytes());
            strings.push(0);
        }
        self.bytes(at + STRTAB_AT, &strings);
        let mut padded = name.as_bytes().to_vec();
        padded.resize(56, 0);
        self.bytes(at + NAME, &padded);
        for (offset, word) in [
            (0, 0),
            (BASE, text),
            (SIZE, TEXT_BYTES),
            (SITES_COUNT, count),
            (SITES, at + SITES_AT),
            (KALLSYMS, at + SYMTAB),
            (SYMTAB, at + SYMTAB_AT),
            (SYMTAB_COUNT, count),
            (STRTAB, at + STRTAB_AT),
            (LIST, HEAD),
        ] {
            self.word(at + offset, word);
        }
        let last = self.names.last().map_or(HEAD, |last| self.at(last) + LIST);
        self.word(last, at + LIST);
        self.names.push(name.to_owned());
        Gva(text)
    }

    /// Unloads the module that was loaded last, as Linux does it: out of the list, then its memory.
    pub fn unload_last(&mut self) -> u64 {
        let name = self.names.pop().unwrap();
        let at = self.at(&name);
        let last = self.names.last().map_or(HEAD, |last| self.at(last) + LIST);
        self.word(last, HEAD);
        self.bytes(at, &[0x5a; 0x4000]);
        at
    }

    pub fn set_state(&mut self, name: &str, state: u64) {
        self.set_word(name, 0, state);
    }

    pub fn set_text(&mut self, name: &str, base: u64, size: u64) {
        self.set_word(name, BASE / 8, base);
        self.set_word(name, SIZE / 8, size);
    }

    pub fn set_sites_count(&mut self, name: &str, count: u32) {
        self.set_word(name, SITES_COUNT / 8, u64::from(count));
    }

    /// Makes `to` follow `name` in the list.
    pub fn tie(&mut self, name: &str, to: &str) {
        let to = self.at(to) + LIST;
        self.tie_to(name, to);
    }

    pub fn tie_to(&mut self, name: &str, to: u64) {
        self.set_word(name, LIST / 8, to);
    }

    pub fn set_word(&mut self, name: &str, word: u64, value: u64) {
        let at = self.at(name);
        self.word(at + 8 * word, value);
    }

    fn at(&self, name: &str) -> u64 {
        (0..self.loaded)
            .map(|index| MODULES_AREA + index * MODULE_BYTES)
            .find(|at| {
                let mut found = vec![0; name.len() + 1];
                self.target.read(Gva(at + NAME), &mut found).unwrap();
                found.strip_suffix(&[0]) == Some(name.as_bytes())
            })
            .unwrap()
    }

    fn word(&mut self, at: u64, value: u64) {
        self.bytes(at, &value.to_le_bytes());
    }

    fn bytes(&mut self, at: u64, bytes: &[u8]) {
        let before = self.target.writes;
        for (index, chunk) in (0..).zip(bytes.chunks(4096)) {
            self.target.write(Gva(at + 4096 * index), chunk).unwrap();
        }
        // What the guest writes is none of ours.
        self.target.writes = before;
    }
}
