//! The symbols of an image: by address, by name, by glob, and the names nearest to one that is
//! not there.

use std::sync::Arc;

use globset::GlobMatcher;
use terms::addr::Gva;
use terms::nearest::nearest;

/// What a symbol names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    /// Code that can be called.
    Function,
    /// Data.
    Object,
    /// A label, or anything else.
    Other,
}

/// One symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its address.
    pub address: Gva,
    /// Its size as the image says it; 0 if it does not.
    pub size: u64,
    /// Its raw name.
    pub name: Arc<str>,
    /// Its demangled name; the same as `name` when that is not mangled.
    pub display: Arc<str>,
    /// What it names.
    pub kind: SymbolKind,
    /// Whether it is visible to other object files (not a `static`).
    pub global: bool,
}

impl Symbol {
    /// Whether a glob matches the raw or the demangled name.
    #[must_use]
    pub fn matches(&self, glob: &GlobMatcher) -> bool {
        glob.is_match(&*self.name) || glob.is_match(&*self.display)
    }
}

/// All named symbols, sorted by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SymbolTable {
    by_address: Vec<Symbol>,
    /// Indices into `by_address`, sorted by raw name.
    by_name: Vec<u32>,
}

impl SymbolTable {
    /// A table of these symbols, in any order. More than `u32::MAX` cannot be looked up by name.
    #[must_use]
    pub fn new(mut symbols: Vec<Symbol>) -> Self {
        // Ties: the function first, then the global name, then the shorter one.
        symbols.sort_by(|a, b| {
            let rank = |s: &Symbol| (s.kind != SymbolKind::Function, !s.global, s.name.len());
            a.address
                .cmp(&b.address)
                .then_with(|| rank(a).cmp(&rank(b)))
                .then_with(|| a.name.cmp(&b.name))
        });
        let mut keyed: Vec<(&str, u32)> = symbols
            .iter()
            .zip(0u32..)
            .map(|(symbol, index)| (&*symbol.name, index))
            .collect();
        keyed.sort_unstable();
        let by_name = keyed.into_iter().map(|(_, index)| index).collect();
        Self {
            by_address: symbols,
            by_name,
        }
    }

    /// Number of symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// All symbols, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Symbol> {
        self.by_address.iter()
    }

    /// The symbol that covers `address`, and the offset in it. A symbol without a size covers
    /// everything up to the next one.
    #[must_use]
    pub fn at(&self, address: Gva) -> Option<(&Symbol, u64)> {
        let end = self
            .by_address
            .partition_point(|symbol| symbol.address <= address);
        let nearest = self.by_address.get(..end)?.last()?.address;
        let start = self
            .by_address
            .partition_point(|symbol| symbol.address < nearest);
        let offset = address.0.checked_sub(nearest.0)?;
        self.by_address
            .get(start..end)?
            .iter()
            .find(|symbol| symbol.size == 0 || offset < symbol.size)
            .map(|symbol| (symbol, offset))
    }

    /// Every symbol with exactly this raw name (statics may share one).
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Symbol> {
        let start = self
            .by_name
            .partition_point(|&index| self.name_at(index) < name);
        self.by_name
            .get(start..)
            .unwrap_or_default()
            .iter()
            .filter_map(|&index| self.by_address.get(index as usize))
            .take_while(move |symbol| *symbol.name == *name)
    }

    /// The address of the symbol with this raw name; of several, a global one first.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        self.named(name)
            .max_by_key(|symbol| symbol.global)
            .map(|symbol| symbol.address)
    }

    /// Every symbol whose raw or demangled name the glob matches.
    pub fn glob<'a>(&'a self, glob: &'a GlobMatcher) -> impl Iterator<Item = &'a Symbol> {
        self.iter().filter(move |symbol| symbol.matches(glob))
    }

    /// Up to `count` symbol names that look most like `name`, best first.
    #[must_use]
    pub fn near_misses(&self, name: &str, count: usize) -> Vec<String> {
        nearest(
            name,
            self.iter().flat_map(|s| [&*s.name, &*s.display]),
            count,
        )
    }

    fn name_at(&self, index: u32) -> &str {
        self.by_address
            .get(index as usize)
            .map_or("", |symbol| &symbol.name)
    }
}
