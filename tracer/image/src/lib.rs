//! What a guest image says about itself: symbols, function sites, text ranges.
//!
//! [`Image::parse`] reads an ELF file once, before the guest runs; every value in the file is
//! taken for hostile. What it holds afterwards is plain data, sorted, with ids that stay valid
//! for as long as the image does.

#![forbid(unsafe_code)]

mod added;
pub mod branch_targets;
pub mod bzimage;
mod claimed;
pub mod dynamic;
mod elf;
pub mod error;
pub mod given_module;
mod init_calls;
mod kallsyms;

pub mod linux;
mod lists;
pub mod loaded;
mod locate;
mod locks;
pub mod marker;
mod moved;
mod nm;
pub mod owned;
pub mod parts;
pub mod points;
pub mod range;
mod returns;
pub mod running;
pub mod site;
pub mod static_call;
pub mod symbol;
mod symbol_file;
mod symtab;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod text_tables;
pub mod tracepoint;
mod words;

use std::sync::Arc;

pub use added::Added;
pub use branch_targets::BranchTargets;
pub use dynamic::DynamicFunction;
pub use error::ImageError;
pub use kallsyms::UnreadSymbols;
pub use linux::{Identity, Linux};
pub use loaded::Loaded;
pub use locks::LockSite;
pub use marker::Marker;
pub use owned::Owned;
pub use parts::Part;
pub use range::{Segment, TextRange};
pub use returns::Unhookable;
pub use running::{Names, Running};
pub use site::{Site, SiteForm, SiteKind, SkipReason, SkippedSite, Untraceable, UntraceableReason};
pub use static_call::StaticCall;
pub use symbol::{Symbol, SymbolKind, SymbolTable};
pub use text_tables::{TableError, TextTables};
pub use tracepoint::Tracepoint;

use terms::addr::{Gpa, Gva};
use terms::event_format::{EventFormat, EventId};
use terms::function::{Function, FunctionId, Functions, Lots};

use self::elf::Elf;
use self::range::text_range;

/// A guest image, read and checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Where execution begins, as the ELF header says it.
    pub entry: u64,
    /// All symbols.
    pub symbols: SymbolTable,
    /// All functions, by address, and then those that came later, each time by address; [`FunctionId`] is an index into it.
    pub functions: Vec<Function>,
    /// Where those lie that came later.
    pub later: Lots,
    /// All load segments, in the order of the file.
    pub segments: Vec<Segment>,
    /// Executable ranges, by address, without overlap.
    pub text: Vec<TextRange>,
    /// All patch sites, by function (and so by address), at most one per function.
    pub sites: Vec<Site>,
    /// What comes or goes while the guest runs, and is announced.
    pub parts: Vec<Part>,
    /// The listed lock prefixes, by address.
    pub locks: Vec<LockSite>,
    /// Every function without a site.
    pub untraceable: Vec<Untraceable>,
    /// Every function with a site whose return cannot be hooked, ascending.
    pub unhookable: Vec<(FunctionId, Unhookable)>,
    /// Every listed place that did not become a site.
    pub skipped: Vec<SkippedSite>,
    /// Every function that is one jump which can be retargeted, in the order of their records.
    pub dynamic: Vec<DynamicFunction>,
    /// The static calls of a Linux kernel, by name.
    pub static_calls: Vec<StaticCall>,
    /// The functions that a Linux kernel lists as its init calls, ascending; none where that is not known.
    pub init_calls: Vec<FunctionId>,
    /// Every tracepoint that something passes, in the order of their records.
    pub tracepoints: Vec<Tracepoint>,
    /// What is particular to Linux, if the image is one.
    pub linux: Option<Linux>,
    /// Every marker, in the order of their first notes.
    pub markers: Vec<Marker>,
    /// The section in which a kernel describes its own types (BTF), if it has one.
    pub btf: Option<Arc<[u8]>>,
    /// Remarks on how the image was read, one line each.
    pub notes: Vec<String>,
    /// Why symbols that a Linux kernel carries were not read.
    pub unread_symbols: Option<UnreadSymbols>,
    /// What is loaded.
    pub loaded: Loaded,
    /// What its own tables say of its text.
    pub tables: TextTables,
}

impl Image {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// An [`ImageError`] that says what is wrong with the file. A well-formed file without
    /// symbols or sites is no error here, see [`Image::check_traceable`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let elf = Elf::parse(bytes)?;
        let mut image = Self::alone(&elf)?;
        parts::locate(&mut image, &elf);
        Ok(image)
    }

    /// The image without what is linked into it: a module has none of its own.
    fn alone(elf: &Elf<'_>) -> Result<Self, ImageError> {
        let mut notes = Vec::new();
        let (symbols, unread) = Self::own_symbols(elf, &mut notes)?;
        let image = Self::of(elf, symbols, notes, None)?;
        Ok(Self {
            unread_symbols: unread,
            ..image
        })
    }

    /// The symbols that the file itself has, and why others that it has were not read.
    fn own_symbols(
        elf: &Elf<'_>,
        notes: &mut Vec<String>,
    ) -> Result<(SymbolTable, Option<UnreadSymbols>), ImageError> {
        let symbols = symtab::read(elf)?;
        if symbols.is_empty() {
            let kallsyms::Read { symbols, unread } = kallsyms::read(elf, notes)?;
            return Ok((SymbolTable::new(symbols), unread));
        }
        Ok((symbols, None))
    }

    /// Why the return of a function is not hooked, if it is not.
    #[must_use]
    pub fn unhookable(&self, function: FunctionId) -> Option<Unhookable> {
        let found = self
            .unhookable
            .binary_search_by_key(&function, |(function, _)| *function)
            .ok()?;
        self.unhookable.get(found).map(|(_, why)| *why)
    }

    /// Reads an ELF file whose symbols are in a file of their own: another ELF file with a symbol
    /// table (an unstripped `vmlinux`), or a System.map.
    ///
    /// # Errors
    /// As [`Image::parse`]; [`ImageError::NotSymbols`] when `symbols` are none, and
    /// [`ImageError::OtherSymbols`] to [`ImageError::OtherSites`] when they are of another kernel.
    pub fn parse_with_symbols(bytes: &[u8], symbols: &[u8]) -> Result<Self, ImageError> {
        let elf = Elf::parse(bytes)?;
        let (own, _) = Self::own_symbols(&elf, &mut Vec::new())?;
        let symbols = symbol_file::read(symbols, &elf, &own)?;
        let image = Self::of(&elf, symbols, Vec::new(), None)?;
        symbol_file::check_sites(&image)?;
        Ok(image)
    }

    /// The image with these symbols, and with these sites if they are known already.
    fn of(
        elf: &Elf<'_>,
        symbols: SymbolTable,
        notes: Vec<String>,
        sites: Option<&[Gva]>,
    ) -> Result<Self, ImageError> {
        let mut image = Self {
            entry: elf.entry,
            functions: symtab::functions(&symbols),
            linux: Linux::find(elf, &symbols),
            btf: linux::btf(elf, &symbols).map(Into::into),
            loaded: Loaded::of(elf, &symbols),
            symbols,
            segments: elf.segments(),
            text: elf.text(),
            notes,
            ..Self::default()
        };
        if elf.position_independent {
            image
                .notes
                .push("position-independent: addresses are as linked".to_owned());
        }
        image.bound_functions();
        let listed = match sites {
            Some(sites) => lists::recorded(sites, &mut image.notes),
            None => lists::listed(elf, &image.symbols, &mut image.notes),
        };
        image.read_tables(elf, listed.iter().map(|(at, _)| *at));
        locate::locate(&mut image, elf, &listed);
        locks::locate(&mut image, elf);
        dynamic::read(elf, &mut image);
        static_call::read(elf, &mut image);
        init_calls::read(elf, &mut image);
        tracepoint::read(elf, &mut image);
        marker::read(elf, &mut image);
        Ok(image)
    }

    /// Reads what the image's own tables say of its text; `traced` are the call sites that the kernel's tracer has.
    fn read_tables(&mut self, elf: &Elf<'_>, traced: impl Iterator<Item = Gva>) {
        let is_linux = self.linux.is_some();
        self.tables = TextTables::read(elf, &self.symbols, &self.text, traced, is_linux);
        if let Some(error) = self.tables.missing() {
            let note = format!("nothing can be displaced in this kernel: {error}");
            self.notes.push(note);
        }
    }

    /// Gives functions without a size the room up to the next one, or to the end of their text.
    fn bound_functions(&mut self) {
        let mut next = u64::MAX;
        for function in self.functions.iter_mut().rev() {
            if function.size == 0 {
                let holder = text_range(&self.text, function.address);
                let end = holder.map_or(function.address.0, |range| range.end.0.min(next));
                function.size = end.saturating_sub(function.address.0);
            }
            next = function.address.0;
        }
    }

    /// Whether there is anything to trace.
    ///
    /// # Errors
    /// [`ImageError::NoSymbols`] or [`ImageError::NoSites`], of a Linux kernel
    /// [`ImageError::NoKallsyms`], [`ImageError::UnreadSymbols`] or [`ImageError::NoFunctionTracer`].
    pub fn check_traceable(&self) -> Result<(), ImageError> {
        if !self.has_lasting_functions() {
            return Err(match (&self.linux, self.unread_symbols) {
                (Some(Linux { version, .. }), Some(why)) => ImageError::UnreadSymbols {
                    version: version.clone(),
                    why,
                },
                (Some(Linux { version, .. }), None) => ImageError::NoKallsyms {
                    version: version.clone(),
                },
                (None, _) => ImageError::NoSymbols,
            });
        }
        if self.sites.is_empty() {
            let hint = match self.skipped.first() {
                Some(place) => format!(
                    " ({} listed places were skipped, the first at {}: {})",
                    self.skipped.len(),
                    place.address,
                    place.reason
                ),
                None => String::new(),
            };
            return Err(match &self.linux {
                Some(Linux { version, .. }) => ImageError::NoFunctionTracer {
                    version: version.clone(),
                    hint,
                },
                None => ImageError::NoSites { hint },
            });
        }
        Ok(())
    }

    /// Whether the guest itself makes its sites nops while it boots, as Linux' ftrace does: it checks that
    /// they are still as they were linked, so nobody else may touch them before.
    #[must_use]
    pub fn normalises_itself(&self) -> bool {
        self.linux
            .as_ref()
            .is_some_and(|linux| linux.prepares_sites)
    }

    /// Where `address` is loaded.
    #[must_use]
    pub fn physical(&self, address: Gva) -> Option<Gpa> {
        self.locate(address).map(|(at, _)| at)
    }

    /// Where `address` is loaded, and how many bytes follow it there in the same segment.
    #[must_use]
    pub fn locate(&self, address: Gva) -> Option<(Gpa, u64)> {
        let mut segments = self.segments.iter();
        segments.find_map(|segment| segment.locate(address))
    }

    /// The function with this id.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(id.index())
    }

    /// The patch site of this function, if it has one.
    #[must_use]
    pub fn site_of(&self, id: FunctionId) -> Option<&Site> {
        let index = self
            .sites
            .binary_search_by_key(&id, |site| site.function)
            .ok()?;
        self.sites.get(index)
    }

    /// Why this function has no site, if it has none.
    #[must_use]
    pub fn untraceable(&self, id: FunctionId) -> Option<&Untraceable> {
        let index = self
            .untraceable
            .binary_search_by_key(&id, |entry| entry.function)
            .ok()?;
        self.untraceable.get(index)
    }

    /// The functions, as they came.
    #[must_use]
    pub fn by_number(&self) -> Functions<'_> {
        Functions::new(&self.functions, &self.later)
    }

    /// The function that covers `address`: of modules that were there one after the other, of the last.
    #[must_use]
    pub fn function_at(&self, address: Gva) -> Option<FunctionId> {
        self.by_number().at(address)
    }

    /// What each event says, by number.
    pub fn events(&self) -> impl Iterator<Item = (EventId, &EventFormat)> {
        let formats = self.tracepoints.iter().map(|point| &point.format);
        let markers = self.markers.iter().map(|marker| &marker.format);
        (0..).map(EventId).zip(formats.chain(markers))
    }

    /// The marker of this number, if the event is one.
    #[must_use]
    pub fn marker(&self, id: EventId) -> Option<&Marker> {
        let index = id.index().checked_sub(self.tracepoints.len())?;
        self.markers.get(index)
    }

    /// What an event says.
    #[must_use]
    pub fn event(&self, id: EventId) -> Option<&EventFormat> {
        let tracepoint = self.tracepoints.get(id.index()).map(|point| &point.format);
        tracepoint.or_else(|| self.marker(id).map(|marker| &marker.format))
    }

    /// What people call the function that begins at `address`; the address itself when none does.
    #[must_use]
    pub fn name_at(&self, address: Gva) -> String {
        let function = self.function_at(address).and_then(|id| self.function(id));
        match function.filter(|function| function.address == address) {
            Some(function) => function.display.to_string(),
            None => address.to_string(),
        }
    }

    /// The ranges of text that are there for as long as the guest runs.
    pub fn lasting_text(&self) -> impl Iterator<Item = TextRange> {
        let within = self.linux.as_ref().and_then(|linux| linux.text);
        let lasting = self.text.iter().filter_map(move |range| {
            let Some(lasting) = within else {
                return Some(*range);
            };
            range.common(lasting)
        });
        lasting.flat_map(|range| self.without_parts(range))
    }

    /// Whether the kernel names functions itself. Those of a module have names of their own, also where
    /// the kernel is stripped.
    fn has_lasting_functions(&self) -> bool {
        let comes_and_goes = |address| self.parts.iter().any(|part| part.text.holds(address, 1));
        let mut addresses = self.functions.iter().map(|function| function.address);
        addresses.any(|address| !comes_and_goes(address))
    }

    /// What is left of a range without the parts that go.
    fn without_parts(&self, range: TextRange) -> Vec<TextRange> {
        let mut left = vec![range];
        for part in &self.parts {
            let TextRange { start, end } = part.text;
            let before = |range: TextRange| TextRange {
                end: range.end.min(start),
                ..range
            };
            let after = |range: TextRange| TextRange {
                start: range.start.max(end),
                ..range
            };
            let cut = left.iter().flat_map(|range| match range.common(part.text) {
                Some(_) => vec![before(*range), after(*range)],
                None => vec![*range],
            });
            left = cut.filter(|range| range.start < range.end).collect();
        }
        left
    }

    /// Whether every byte of `address..address+length` is executable and in the file.
    #[must_use]
    pub fn is_text(&self, address: Gva, length: u64) -> bool {
        text_range(&self.text, address).is_some_and(|range| range.holds(address, length))
    }
}
