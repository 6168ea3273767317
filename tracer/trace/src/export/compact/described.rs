//! What describes a trace: blocks without which the records after them say less, or nothing.

use super::blocks::Kind;
use crate::stream::Origin;

/// Bytes that are said of threads, at most: the guest makes more and more of them.
const THREADS_MAX: usize = 256 << 10;

/// Such blocks, in their order.
#[derive(Debug, Default)]
pub(super) struct Described(Vec<(Kind, Vec<u8>)>);

impl Described {
    /// Whether this is what blocks of this kind do.
    pub const fn is_done_by(kind: Kind) -> bool {
        match kind {
            Kind::Functions
            | Kind::Metadata
            | Kind::Points
            | Kind::Probes
            | Kind::Values
            | Kind::Threads => true,
            Kind::Begin | Kind::Records | Kind::Looks | Kind::Round | Kind::End => false,
        }
    }

    /// Another block comes after these.
    pub fn add(&mut self, kind: Kind, block: Vec<u8>) {
        match kind {
            // Each stands for those before it.
            Kind::Metadata | Kind::Points | Kind::Probes | Kind::Values => {
                self.0.retain(|(before, _)| *before != kind);
            }
            Kind::Functions | Kind::Threads => {}
            Kind::Begin | Kind::Records | Kind::Looks | Kind::Round | Kind::End => return,
        }
        self.0.push((kind, block));
    }

    /// Whether so much more of this kind can wait here.
    pub fn has_room(&self, kind: Kind, bytes: usize) -> bool {
        let of_kind = self.0.iter().filter(|(before, _)| *before == kind);
        let before: usize = of_kind.map(|(_, block)| block.len()).sum();
        kind != Kind::Threads || before.saturating_add(bytes) <= THREADS_MAX
    }

    /// Whether there is one of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.0.iter().any(|(one, _)| *one == kind)
    }

    /// Whether a block of this kind has to come after one of these.
    pub fn is_before(&self, kind: Kind) -> bool {
        // Functions are numbered as they come, and values are those of functions.
        self.has(kind) || kind == Kind::Values && self.has(Kind::Functions)
    }

    /// Whether what this ring brings cannot be read without them.
    pub fn is_of(&self, origin: Origin) -> bool {
        match origin {
            Origin::Calls(_) | Origin::Points(_) => {
                let needed = [Kind::Functions, Kind::Points, Kind::Values];
                needed.into_iter().any(|kind| self.has(kind))
            }
            Origin::Clock | Origin::Host(_) => false,
        }
    }

    /// All of them.
    pub fn take(&mut self) -> Vec<(Kind, Vec<u8>)> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_threads_does_not_grow_as_the_guest_makes_them() {
        let mut described = Described::default();
        let block = || vec![0; 1 << 10];
        let mut most = 0;
        while described.has_room(Kind::Threads, block().len()) {
            described.add(Kind::Threads, block());
            most += 1;
        }
        assert_eq!(most, THREADS_MAX >> 10);
        assert!(described.has_room(Kind::Functions, usize::MAX));
    }

    #[test]
    fn what_is_needed_comes_before_what_needs_it() {
        let mut described = Described::default();
        let calls = Origin::Calls(0);
        for kind in [Kind::Metadata, Kind::Probes, Kind::Threads] {
            described.add(kind, Vec::new());
            assert!(described.is_before(kind) && !described.is_of(calls));
        }
        assert!(!described.is_before(Kind::Values));
        described.add(Kind::Functions, Vec::new());
        assert!(described.is_before(Kind::Values) && !described.is_before(Kind::Points));
        assert!(described.is_of(calls) && !described.is_of(Origin::Host(0)));
    }
}
