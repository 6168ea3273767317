//! The cgroups of a Linux, by their paths: read out of its memory, from the root of the one hierarchy of all (version 2) down.
//!
//! Facts: `struct cgroup`, `struct cgroup_subsys_state` and `struct kernfs_node` of Linux 5.10 to 6.15.

use debuginfo::btf::Btf;
use image::symbol::SymbolTable;
use terms::addr::Gva;

use super::kernel_view::{KernelTables, KernelView};
use crate::current_task::Cgroup;
use crate::introspection::CgroupError;
use crate::target::{MemoryError, PhysicalMemory, TargetMemory};

/// Cgroups that are looked at on the way to one, at most.
const STEPS_MAX: usize = 1 << 15;
/// The flag of one that has not been removed (`CSS_ONLINE`). A removed one stays in the list for as long as something of it is
/// charged, by then beside another of its name.
const ONLINE: u32 = 1 << 1;
/// Bytes of a name, at most (`NAME_MAX`).
const NAME_MAX: usize = 255;

/// Where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLayout {
    tables: KernelTables,
    /// The one that all are below.
    root: Gva,
    /// `cgroup.self.children`: the list of those right below one.
    children: u64,
    /// `cgroup.self.sibling`: where one is in that list.
    sibling: u64,
    /// `cgroup.self.flags`, if it is there.
    flags: Option<u64>,
    /// `cgroup.level`.
    level: u64,
    /// `cgroup.kn`: its node.
    node: u64,
    /// `kernfs_node.name`.
    name: u64,
    /// `kernfs_node.id`.
    number: u64,
}

impl CgroupLayout {
    /// What the kernel's types and symbols say.
    pub(crate) fn find(btf: &Btf<'_>, symbols: &SymbolTable, tables: KernelTables) -> Option<Self> {
        let cgroup = |path| btf.field("cgroup", path).map(|field| field.offset);
        let node = |path| btf.field("kernfs_node", path).map(|field| field.offset);
        let root = symbols.address_of("cgrp_dfl_root")?;
        Some(Self {
            tables,
            root: root.wrapping_add(btf.field("cgroup_root", "cgrp")?.offset),
            children: cgroup("self.children")?,
            sibling: cgroup("self.sibling")?,
            flags: cgroup("self.flags"),
            level: cgroup("level")?,
            node: cgroup("kn")?,
            name: node("name")?,
            number: node("id")?,
        })
    }

    /// The cgroup at this path; the guest may run meanwhile.
    ///
    /// # Errors
    /// A [`CgroupError`].
    pub fn find_path(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        path: &str,
    ) -> Result<Cgroup, CgroupError> {
        let view = KernelView::new(memory, self.tables);
        let mut steps = 0;
        let mut at = self.root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let below = self.below(&view, at, name, &mut steps)?;
            at = below.ok_or_else(|| CgroupError::Missing {
                path: path.to_owned(),
            })?;
        }
        let mut level = [0; 4];
        view.read(at.wrapping_add(self.level), &mut level)?;
        let node = view.read_address(at.wrapping_add(self.node))?;
        Ok(Cgroup {
            level: u32::from_le_bytes(level),
            number: view.read_word(node.wrapping_add(self.number))?,
        })
    }

    /// Whether one has not been removed; where nobody knows, it has not.
    fn is_there(&self, view: &impl TargetMemory, cgroup: Gva) -> Result<bool, MemoryError> {
        let Some(flags) = self.flags else {
            return Ok(true);
        };
        let mut bytes = [0; 4];
        view.read(cgroup.wrapping_add(flags), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes) & ONLINE != 0)
    }

    /// The one of this name right below another.
    fn below(
        &self,
        view: &impl TargetMemory,
        above: Gva,
        name: &str,
        steps: &mut usize,
    ) -> Result<Option<Gva>, CgroupError> {
        let head = above.wrapping_add(self.children);
        let mut entry = view.read_address(head)?;
        while entry != head {
            if *steps == STEPS_MAX {
                return Err(CgroupError::Endless(STEPS_MAX));
            }
            *steps += 1;
            let cgroup = Gva(entry.0.wrapping_sub(self.sibling));
            let node = view.read_address(cgroup.wrapping_add(self.node))?;
            let at = view.read_address(node.wrapping_add(self.name))?;
            if is_text(view, at, name)? && self.is_there(view, cgroup)? {
                return Ok(Some(cgroup));
            }
            entry = view.read_address(entry)?;
        }
        Ok(None)
    }
}

/// Whether this text is there, and ends there.
fn is_text(view: &impl TargetMemory, at: Gva, wanted: &str) -> Result<bool, MemoryError> {
    for (offset, byte) in (0..).zip(wanted.bytes().take(NAME_MAX).chain([0])) {
        let mut there = [0];
        view.read(at.wrapping_add(offset), &mut there)?;
        if there != [byte] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::target::TextMemory;

    const AREA: u64 = 0xffff_8880_0000_0000;
    const BYTES: u64 = 0x100;

    /// Cgroups at `AREA`, each with its node and its name in its 256 bytes.
    struct Guest(MockTarget);

    impl Guest {
        /// Each with the place of the one above it, and its name; all right below one are a list.
        fn new(all: &[(usize, &str)]) -> Self {
            let mut target = MockTarget::new(1, 64 << 20);
            target
                .map(Gva(AREA), Gpa(0x800_0000), 4096, Rights::ALL)
                .unwrap();
            let mut guest = Self(target);
            for (place, (above, name)) in all.iter().enumerate() {
                let at = Self::at(place);
                let level = if place == 0 {
                    0
                } else {
                    1 + (*above > 0) as u64
                };
                guest.word(at + 0x20, level);
                guest.flags(place, !0);
                guest.word(at + 0x28, at + 0x40);
                guest.word(at + 0x40, at + 0x80);
                guest.word(at + 0x48, 1000 + place as u64);
                let text = [name.as_bytes(), &[0]].concat();
                guest.0.write(Gva(at + 0x80), &text).unwrap();
                let below = (1..all.len()).filter(|one| all[*one].0 == place);
                let entries = below.map(|one| Self::at(one) + 0x10);
                let list: Vec<u64> = [at].into_iter().chain(entries).collect();
                for (entry, next) in list.iter().zip(list.iter().skip(1).chain([&at])) {
                    guest.word(*entry, *next);
                }
            }
            guest
        }

        const fn at(place: usize) -> u64 {
            AREA + place as u64 * BYTES
        }

        fn word(&mut self, at: u64, value: u64) {
            self.0.write(Gva(at), &value.to_le_bytes()).unwrap();
        }

        fn flags(&mut self, place: usize, flags: u32) {
            let at = Gva(Self::at(place) + 0x30);
            self.0.write(at, &flags.to_le_bytes()).unwrap();
        }

        fn find(&self, path: &str) -> Result<Cgroup, CgroupError> {
            self.find_by(path, Some(0x30))
        }

        fn find_by(&self, path: &str, flags: Option<u64>) -> Result<Cgroup, CgroupError> {
            let layout = CgroupLayout {
                tables: KernelTables {
                    top: self.0.root().table,
                    five_levels: None,
                },
                root: Gva(AREA),
                children: 0,
                sibling: 0x10,
                flags,
                level: 0x20,
                node: 0x28,
                name: 0,
                number: 8,
            };
            layout.find_path(&self.0, path)
        }
    }

    fn guest() -> Guest {
        // The longer one comes first.
        Guest::new(&[(0, ""), (0, "ab"), (0, "a"), (1, "b"), (2, "b")])
    }

    #[test]
    fn a_cgroup_is_found_by_its_path() {
        let guest = guest();
        for (path, level, number) in [
            ("/", 0, 1000),
            ("/ab", 1, 1001),
            ("/a", 1, 1002),
            ("/ab/b/", 2, 1003),
            ("/a/b", 2, 1004),
        ] {
            assert_eq!(guest.find(path), Ok(Cgroup { level, number }), "{path}");
        }
        for path in ["/b", "/a/b/b", "/a/bb", "/abc"] {
            let path = path.to_owned();
            assert_eq!(guest.find(&path), Err(CgroupError::Missing { path }));
        }
    }

    /// The kernel keeps what was removed in its lists, before what came later.
    #[test]
    fn what_was_removed_is_passed_over() {
        let all = [
            (0, ""),
            (0, "a"),
            (0, "a"),
            (1, "b"),
            (2, "b"),
            (2, "b"),
            (2, "c"),
        ];
        let mut guest = Guest::new(&all);
        for dead in [1, 4, 6] {
            guest.flags(dead, !ONLINE);
        }
        let number = |path| guest.find(path).map(|found| found.number);
        assert_eq!(number("/a"), Ok(1002));
        assert_eq!(number("/a/b"), Ok(1005));
        let path = "/a/c".to_owned();
        assert_eq!(number("/a/c"), Err(CgroupError::Missing { path }));
        // Where nobody knows, the first one is it.
        let found = guest.find_by("/a/b", None).map(|found| found.number);
        assert_eq!(found, Ok(1003));
    }

    #[test]
    fn lists_that_lead_nowhere_or_round_and_round_end() {
        let mut endless = guest();
        let entry = Guest::at(2) + 0x10;
        endless.word(entry, entry);
        assert_eq!(endless.find("/b"), Err(CgroupError::Endless(STEPS_MAX)));
        for broken in [Guest::at(0), Guest::at(1) + 0x28, Guest::at(1) + 0x40] {
            let mut guest = guest();
            guest.word(broken, 0x1234_0000_0000);
            let found = guest.find("/b");
            assert!(matches!(found, Err(CgroupError::Memory(_))), "{found:?}");
        }
    }
}
