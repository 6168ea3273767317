//! All of the guest's memory, as an alias in the window shows it to code that walks page tables.

use terms::addr::{Gpa, Gva};

/// Where a walk begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Where CR3 says: what traced code of ring 0 sees.
    Cr3,
    /// At this table: ring 3 cannot read CR3.
    Table(Gpa),
}

/// A piece of RAM, and where the alias shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Where it starts; a multiple of 4 KiB.
    pub start: Gpa,
    /// Its size; a multiple of 4 KiB.
    pub bytes: u64,
    /// Where the alias shows its first byte.
    pub at: Gva,
}

/// What code that reads a guest's memory needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestMemory {
    /// Where a walk begins.
    pub root: Root,
    /// How many levels of tables there are: 4 or 5.
    pub levels: u8,
    /// All RAM.
    pub ram: Vec<Shown>,
}
