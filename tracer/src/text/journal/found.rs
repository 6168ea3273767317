//! What is found where bytes of ours were written. The guest can have written there.

use insn::jump::{INT3, jump_target};
use terms::addr::Gva;
use terms::site::SiteBytes;

use super::Entry;

/// Whose the bytes are that are found at a place of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// What stood there before us.
    Original,
    /// What we put there. A breakpoint alone is none of ours: a guest in which text is changed by breakpoints ends with its tracer.
    Ours,
    /// A write of ours that was cut off.
    Cut,
    /// Ours, with a breakpoint of the guest's own over it (a kprobe), which keeps our byte below it.
    Covered,
    /// What somebody else has put there.
    Others {
        /// Where it jumps to, if it begins as a jump or a call does; also from below a breakpoint.
        leads_to: Option<Gva>,
    },
}

impl Entry {
    /// Whose `found` is, which stands at the place now.
    #[must_use]
    pub fn found(&self, found: SiteBytes) -> Found {
        if found == self.original {
            return Found::Original;
        }
        if self.is_ours(found) {
            return Found::Ours;
        }
        if self.is_cut(found) {
            return Found::Cut;
        }
        if self.is_covered(found) {
            return Found::Covered;
        }
        let leads_to = self.leads_to(found);
        Found::Others { leads_to }
    }

    fn is_ours(&self, found: SiteBytes) -> bool {
        [self.ours, self.before].contains(&found)
    }

    /// Whether `found` is a write of ours that was cut off: who is killed while he copies, at the end of a page above all, has written
    /// the first bytes of what was to stand there, and the others are as they were. Nobody else puts such bytes there.
    fn is_cut(&self, found: SiteBytes) -> bool {
        let Self {
            original,
            ours,
            before,
            ..
        } = self;
        // An aligned word is written by one store.
        let is_word = found.as_slice().len() == size_of::<u64>() && self.at.0.is_multiple_of(8);
        // What was to be there, and what was: the first that we put there, another one in its place or that one again, and what
        // stood there at first.
        let first = (ours == before).then_some((ours, original));
        let others = [(ours, before), (before, ours), (original, ours)];
        let others = others.into_iter().chain([(original, before)]);
        let is_cut = |(new, old): (&SiteBytes, &SiteBytes)| {
            let (new, old) = (new.as_slice(), old.as_slice());
            (1..new.len()).any(|cut| {
                let parts = found.as_slice().split_at_checked(cut);
                parts.is_some_and(|(there, still)| new.starts_with(there) && old.ends_with(still))
            })
        };
        !is_word && found != *original && first.into_iter().chain(others).any(is_cut)
    }

    /// Whether `found` is what we put there, all of it or its beginning, with a breakpoint of the guest's own over it (a kprobe), which
    /// keeps our byte below it. Over its own instruction it is no business of ours.
    fn is_covered(&self, found: SiteBytes) -> bool {
        let (Some(first), Some(rest)) = (found.as_slice().first(), found.as_slice().get(1..))
        else {
            return false;
        };
        let is_over_its_own = self.original.as_slice().get(1..) == Some(rest);
        let mut below = [self.ours, self.before, self.original].into_iter();
        *first == INT3
            && !is_over_its_own
            && below.any(|bytes| {
                let below = bytes.as_slice().first();
                let below = below.map(|first| found.with_start(&[*first]));
                below.is_some_and(|below| self.is_ours(below) || self.is_cut(below))
            })
    }

    /// Where `found` jumps to. A breakpoint keeps the byte that it is over, which may be that of a jump.
    fn leads_to(&self, found: SiteBytes) -> Option<Gva> {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        let [opcode, distance @ ..] = *found.as_slice().first_chunk::<5>()?;
        let jump = [JUMP, distance[0], distance[1], distance[2], distance[3]];
        let is_one = [CALL, JUMP, INT3].contains(&opcode);
        is_one.then(|| jump_target(self.at, jump)).flatten()
    }
}
