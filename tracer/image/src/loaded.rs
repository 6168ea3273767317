//! The bytes of an image as they are loaded.

use std::fmt;
use std::sync::{Arc, OnceLock};

use terms::addr::{Gva, Slide};

use super::branch_targets::BranchTargets;
use super::elf::Elf;
use super::owned::Owned;
use super::{Image, SymbolTable, TextRange};

/// Sections whose words point at text that nobody ever jumps to: how to unwind it (Linux).
const UNWINDING: [&str; 2] = [".orc_unwind_ip", ".orc_unwind"];
/// What bounds them where there are no sections.
const UNWINDING_BOUNDS: [(&str, &str); 2] = [
    ("__start_orc_unwind_ip", "__stop_orc_unwind_ip"),
    ("__start_orc_unwind", "__stop_orc_unwind"),
];
/// The section that says where exceptions of C++ and Rust are caught, by distances from functions.
const CAUGHT: &str = ".gcc_except_table";

/// One load segment's bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub start: Gva,
    pub bytes: Arc<[u8]>,
}

/// What an image loads.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// By address.
    pub(super) pieces: Vec<Piece>,
    pub(super) unwinding: Vec<TextRange>,
    catches: bool,
    branch_targets: OnceLock<Arc<BranchTargets>>,
    owned: OnceLock<Arc<Owned>>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.pieces.iter().map(|piece| piece.bytes.len()).sum();
        write!(f, "Loaded({bytes} bytes)")
    }
}

impl Loaded {
    /// What `elf`, which has these symbols, loads.
    pub(super) fn of(elf: &Elf<'_>, symbols: &SymbolTable) -> Self {
        let loaded = elf.loaded().filter(|(_, bytes)| !bytes.is_empty());
        let mut pieces: Vec<Piece> = loaded
            .map(|(start, bytes)| Piece {
                start,
                bytes: bytes.into(),
            })
            .collect();
        pieces.sort_by_key(|piece| piece.start);
        let unwinding = UNWINDING.iter().flat_map(|name| elf.sections_named(name));
        let unwinding = unwinding.map(|(start, data)| TextRange {
            start,
            end: start.wrapping_add(data.len() as u64),
        });
        let bounded = UNWINDING_BOUNDS.iter().filter_map(|(start, end)| {
            let (start, end) = (symbols.address_of(start)?, symbols.address_of(end)?);
            (elf.running && start < end).then_some(TextRange { start, end })
        });
        Self {
            pieces,
            unwinding: unwinding.chain(bounded).collect(),
            catches: elf
                .sections_named(CAUGHT)
                .iter()
                .any(|(_, data)| !data.is_empty()),
            branch_targets: OnceLock::new(),
            owned: OnceLock::new(),
        }
    }

    /// The same, said to lie elsewhere.
    pub(super) fn moved_by(self, slide: Slide) -> Self {
        let pieces = self.pieces.into_iter().map(|piece| Piece {
            start: slide.runs(piece.start),
            ..piece
        });
        let unwinding = self.unwinding.iter().map(|range| range.moved_by(slide));
        Self {
            pieces: pieces.collect(),
            unwinding: unwinding.collect(),
            catches: self.catches,
            branch_targets: OnceLock::new(),
            owned: OnceLock::new(),
        }
    }

    /// Whether there are places where exceptions are caught.
    #[must_use]
    pub const fn catches(&self) -> bool {
        self.catches
    }

    /// Up to `length` bytes at `address`.
    #[must_use]
    pub fn bytes_at(&self, address: Gva, length: u64) -> &[u8] {
        let end = self.pieces.partition_point(|piece| piece.start <= address);
        let found = end.checked_sub(1).and_then(|index| self.pieces.get(index));
        let cut = |piece: &Piece| {
            let into = usize::try_from(address.0 - piece.start.0).ok()?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let end = into.saturating_add(length).min(piece.bytes.len());
            Some(into..end)
        };
        found
            .and_then(|piece| piece.bytes.get(cut(piece)?))
            .unwrap_or_default()
    }
}

impl Image {
    /// Where execution may land in the text, found out when it is first asked for.
    #[must_use]
    pub fn branch_targets(&self) -> &BranchTargets {
        self.loaded
            .branch_targets
            .get_or_init(|| Arc::new(BranchTargets::of(self)))
    }

    /// The places that the image describes one by one, put in order when they are first asked for.
    #[must_use]
    pub fn owned(&self) -> &Owned {
        let owned = &self.loaded.owned;
        owned.get_or_init(|| Arc::new(Owned::of(self)))
    }

    /// The bytes of a function, up to the next one if they overlap.
    #[must_use]
    pub fn code(&self, id: terms::function::FunctionId) -> &[u8] {
        let Some(function) = self.function(id).filter(|one| self.is_text(one.address, 1)) else {
            return &[];
        };
        let next = self.functions.get(id.index() + 1);
        let room = next.map_or(u64::MAX, |next| {
            next.address.0.saturating_sub(function.address.0)
        });
        self.loaded
            .bytes_at(function.address, function.size.min(room))
    }
}
