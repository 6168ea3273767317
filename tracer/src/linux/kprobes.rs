//! The guest's own probes (Linux' kprobes), read out of its memory.
//!
//! A kprobe keeps a copy of the instruction that it sits on, from when it was made, and needs not be in the text:
//! switched off, it is nowhere to be seen. When it is switched on, it puts a breakpoint over whatever stands there,
//! or a jump of five bytes, and continues after the instruction of which it has the copy. A jump of ours that was put
//! there meanwhile would be cut in two. So before something is displaced the guest is asked, while it is
//! stopped, where it has kprobes.
//!
//! Facts: `kernel/kprobes.c` of Linux 5.10 to 7.3: `kprobe_table`, 64 lists of `struct kprobe`; `kprobe_mutex` is held
//! by whoever makes one, from before the copy is made until it is in its list.

use debuginfo::btf::{Btf, Field};
use image::symbol::SymbolTable;
use terms::addr::Gva;

use crate::introspection::KprobesError;
use crate::linux::kernel_view::{KernelTables, KernelView};
use crate::linux::mutex::{KernelMutex, NoOwner};
use crate::target::{PhysicalMemory, TargetMemory};

/// Lists in the table.
const LISTS: u64 = 64;
/// More kprobes than that are none.
const KPROBES_MAX: usize = 1 << 16;
/// How far from its own address a kprobe that has become a jump continues: a jump's first four bytes, and a whole
/// instruction.
const REACH: u64 = 4 + 15;

/// Where a kernel keeps its kprobes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KprobeLayout {
    tables: KernelTables,
    table: Gva,
    /// Held by who makes or removes one.
    busy: Option<KernelMutex>,
    /// `kprobe.hlist`.
    list: Field,
    /// `kprobe.addr`.
    address: Field,
}

impl KprobeLayout {
    /// What the kernel's types and symbols say; nothing when it has no kprobes.
    ///
    /// # Errors
    /// [`KprobesError::Unknown`] when it has some and keeps them in a way that is not known: whoever took that for a kernel
    /// without any would displace what they have a copy of.
    pub(crate) fn find(
        btf: &Btf<'_>,
        symbols: &SymbolTable,
        tables: KernelTables,
    ) -> Result<Option<Self>, KprobesError> {
        if !can_have_any(symbols) {
            return Ok(None);
        }
        let table = symbols.address_of("kprobe_table");
        let of_kprobe = |member| btf.field("kprobe", member);
        let unknown = KprobesError::Unknown;
        let busy = KernelMutex::find("kprobe_mutex", btf, symbols, tables);
        let busy = busy.map_err(|NoOwner| unknown("who holds a `struct mutex`"))?;
        Ok(Some(Self {
            tables,
            table: table.ok_or(unknown("where `kprobe_table` is"))?,
            busy,
            list: of_kprobe("hlist").ok_or(unknown("where `kprobe.hlist` is"))?,
            address: of_kprobe("addr").ok_or(unknown("where `kprobe.addr` is"))?,
        }))
    }

    /// Where the guest, which is stopped, has kprobes, switched on or off; sorted.
    ///
    /// # Errors
    /// A [`KprobesError`].
    pub fn read(&self, memory: &(impl PhysicalMemory + ?Sized)) -> Result<Vec<Gva>, KprobesError> {
        let view = KernelView::new(memory, self.tables);
        if let Some(busy) = self.busy
            && busy.is_held(memory)?
        {
            return Err(KprobesError::Busy);
        }
        let mut found = Vec::new();
        for list in 0..LISTS {
            let mut node = view.read_word(self.table.wrapping_add(8 * list))?;
            while node != 0 {
                if found.len() == KPROBES_MAX {
                    return Err(KprobesError::Endless(KPROBES_MAX));
                }
                let kprobe = Gva(node.wrapping_sub(self.list.offset));
                found.push(view.read_address(kprobe.wrapping_add(self.address.offset))?);
                node = view.read_word(Gva(node))?;
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Whether a kernel with these symbols can have kprobes at all.
#[must_use]
pub fn can_have_any(symbols: &SymbolTable) -> bool {
    let mut names = ["kprobe_table", "register_kprobe"].into_iter();
    names.any(|name| symbols.address_of(name).is_some())
}

/// The first of `kprobes`, which are sorted, that would be in the way of what is displaced between `at` and `end`.
#[must_use]
pub fn in_the_way(kprobes: &[Gva], at: Gva, end: Gva) -> Option<Gva> {
    let lowest = Gva(at.0.saturating_sub(REACH));
    let first = kprobes.partition_point(|one| *one < lowest);
    kprobes.get(first).copied().filter(|one| *one < end)
}

#[cfg(test)]
mod tests {
    use debuginfo::btf::testing::Builder;
    use image::testing::{ElfFile, TEXT};
    use image::{Identity, Image, Linux};
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::target::TextMemory;

    const TABLE: Gva = Gva(0xffff_ffff_8300_0000);
    const BUSY: Gva = Gva(TABLE.0 + 0x400);
    const FIRST: Gva = Gva(TABLE.0 + 0x800);
    const SECOND: Gva = Gva(TABLE.0 + 0x900);
    const LIST: u64 = 8;
    const TABLES: KernelTables = KernelTables {
        top: Gpa(0),
        five_levels: None,
    };
    const ADDRESS: u64 = 40;

    fn guest() -> (MockTarget, KprobeLayout) {
        let mut target = MockTarget::new(1, 64 << 20);
        target
            .map(TABLE, Gpa(0x800_0000), 4096, Rights::ALL)
            .unwrap();
        let field = |offset| Field { offset, size: 8 };
        let tables = KernelTables {
            top: target.root().table,
            five_levels: None,
        };
        let layout = KprobeLayout {
            tables,
            table: TABLE,
            busy: Some(KernelMutex::at(BUSY, tables)),
            list: field(LIST),
            address: field(ADDRESS),
        };
        (target, layout)
    }

    /// `struct kprobe`, and a mutex with that member, which is a structure where its name has two parts.
    fn section(owner: &str) -> Vec<u8> {
        let mut btf = Builder::new();
        let long = btf.int("unsigned long", 8);
        match owner.split_once('.') {
            None => btf.structure("mutex", 32, &[("wait", long, 0), (owner, long, 8)]),
            Some((lock, owner)) => {
                let base = btf.structure("base", 32, &[("waiters", long, 0), (owner, long, 24)]);
                btf.structure("mutex", 40, &[(lock, base, 0)])
            }
        };
        btf.structure("kprobe", 64, &[("hlist", long, 0), ("addr", long, 40)]);
        btf.build()
    }

    /// An image with these symbols, one after the other at [`TEXT`].
    fn image(names: &[&'static str]) -> Image {
        let file = ElfFile::new().text(TEXT, &[0xc3; 64]);
        let names = names.iter().zip((TEXT..).step_by(0x10));
        let file = names.fold(file, |file, (name, at)| file.label(name, at));
        Image::parse(&file.build()).unwrap()
    }

    /// What is found with these symbols.
    fn found(section: &[u8], names: &[&'static str]) -> Result<Option<KprobeLayout>, KprobesError> {
        let image = image(names);
        KprobeLayout::find(&Btf::parse(section).unwrap(), &image.symbols, TABLES)
    }

    /// Under `PREEMPT_RT` a mutex is made of another one.
    #[test]
    fn who_makes_a_kprobe_is_seen_whatever_a_mutex_is_made_of() {
        let names = ["kprobe_table", "register_kprobe", "kprobe_mutex"];
        let busy = |owner| found(&section(owner), &names).unwrap().unwrap().busy;
        let mutex = TEXT + 0x20;
        let at = |offset| Some(KernelMutex::at(Gva(mutex + offset), TABLES));
        assert_eq!(busy("owner"), at(8));
        assert_eq!(busy("rtmutex.owner"), at(24));
        assert_eq!(busy("lock.owner"), at(24));
        let unknown = |found| matches!(found, Err(KprobesError::Unknown(_)));
        assert!(unknown(found(&section("holder"), &names)));
        // Without the table, or the types; and where there are no kprobes.
        assert!(unknown(found(&section("owner"), &names[1..])));
        assert!(unknown(found(&Builder::new().build(), &names)));
        assert_eq!(found(&section("owner"), &["kprobe_mutex"]), Ok(None));
    }

    /// A Linux with these symbols and no types.
    #[test]
    fn a_kernel_without_types_hides_the_kprobes_that_it_can_have() {
        let hides = |names: &[&'static str]| {
            let mut image = image(names);
            image.linux = Some(Linux {
                version: "4.19.0".to_owned(),
                text: None,
                init_text: None,
                rodata: None,
                identity: Identity::default(),
                prepares_sites: true,
            });
            crate::linux::kernel::Kernel::of(&image)
                .unwrap()
                .hides_kprobes
        };
        assert!(hides(&["kprobe_table"]) && hides(&["register_kprobe"]));
        assert!(!hides(&["kprobe_mutex"]));
    }

    fn set(target: &mut MockTarget, at: Gva, word: u64) {
        target.write(at, &word.to_le_bytes()).unwrap();
    }

    /// A kprobe at `kprobe` for the instruction at `of`, before `next`.
    fn kprobe(target: &mut MockTarget, kprobe: Gva, of: u64, next: u64) -> u64 {
        set(target, kprobe.wrapping_add(ADDRESS), of);
        set(target, kprobe.wrapping_add(LIST), next);
        kprobe.0 + LIST
    }

    #[test]
    fn kprobes_are_read_from_all_lists() {
        let (mut target, layout) = guest();
        assert_eq!(layout.read(&target), Ok(Vec::new()));
        let second = kprobe(&mut target, SECOND, 0x20, 0);
        let first = kprobe(&mut target, FIRST, 0x30, second);
        set(&mut target, TABLE.wrapping_add(8 * 63), first);
        assert_eq!(layout.read(&target), Ok(vec![Gva(0x20), Gva(0x30)]));
        // The second leads to the first again, to nowhere; and somebody holds the mutex.
        set(&mut target, Gva(second), first);
        assert_eq!(
            layout.read(&target),
            Err(KprobesError::Endless(KPROBES_MAX))
        );
        set(&mut target, Gva(second), 0xdead_0000);
        assert!(matches!(layout.read(&target), Err(KprobesError::Memory(_))));
        set(&mut target, BUSY, 1);
        assert_eq!(layout.read(&target), Err(KprobesError::Busy));
    }

    #[test]
    fn a_kprobe_is_in_the_way_from_before_what_is_displaced_up_to_its_end() {
        let kprobes = [Gva(100), Gva(200)];
        let way = |at, end| in_the_way(&kprobes, Gva(at), Gva(end));
        assert_eq!(way(100, 105), Some(Gva(100)));
        assert_eq!(way(119, 124), Some(Gva(100)));
        assert_eq!(way(120, 125), None);
        assert_eq!(way(195, 201), Some(Gva(200)));
        assert_eq!(way(195, 200), None);
        assert_eq!(way(220, 1000), None);
    }
}
