//! Whether what is being written stands: a disk that hangs takes nothing for ever, and says nothing either.

use std::time::Duration;

/// So many looks at a write that does not end, some four of which are made a second. Looks are counted, and no time: a
/// tracer that was stopped itself has seen nothing.
const LOOKS: u32 = 240;

/// What writes, as somebody sees it who only looks.
#[derive(Debug, Default)]
pub(super) struct StandingWrite {
    /// When the write began that was going on at the last look, and how far it was.
    busy: Option<(Duration, u64)>,
    looks: u32,
}

impl StandingWrite {
    /// One more look, at a write that began then and is so many steps further. Whether it turns out to stand.
    pub fn look(&mut self, busy: Option<(Duration, u64)>) -> bool {
        if busy.is_none() || busy != self.busy {
            *self = Self { busy, looks: 0 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks == LOOKS
    }

    /// Whether it stood at the last look.
    pub const fn is_so(&self) -> bool {
        self.looks >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_one_write_that_does_not_end_by_many_looks() {
        let mut standing = StandingWrite::default();
        let at = |second| Some((Duration::from_secs(second), 0));
        // Each is another one, however many there are.
        assert!((0..10 * u64::from(LOOKS)).all(|second| !standing.look(at(second))));
        // One that is slow moves, too.
        let slow = |step| Some((Duration::from_secs(1), step / u64::from(LOOKS / 2)));
        assert!((0..10 * u64::from(LOOKS)).all(|step| !standing.look(slow(step))));
        assert!((0..10 * LOOKS).all(|_| !standing.look(None)));
        let looks: Vec<_> = (0..3 * LOOKS).map(|_| standing.look(at(7))).collect();
        assert_eq!(looks.iter().position(|is| *is), Some(LOOKS as usize));
        assert_eq!(looks.iter().filter(|is| **is).count(), 1, "it is told once");
        assert!(standing.is_so());
        assert!(!standing.look(at(8)) && !standing.is_so());
    }
}
