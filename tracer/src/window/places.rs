//! Where in a guest's address space its window may be.
//!
//! That an entry of the guest's page tables is zero says that nothing is there now. What comes there later (a module,
//! memory that is mapped when it is needed) depends on the kind of kernel: one that is known says in which ranges
//! nothing can come. Of others no more is known than what their image takes up.

use image::{Image, Site, SiteKind, TextRange};
use terms::addr::Gva;

use crate::guest_kind;
use crate::personality::Spare;

/// The text that is traced, and where the window for it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// From the first thing that is traced to the last, less what comes later: stubs must be near to it. The window gets
    /// the rights of its beginning.
    pub text: TextRange,
    /// Ranges for entries of 2 MiB, the best first.
    pub pages: Vec<TextRange>,
    /// Ranges for entries of 1 GiB.
    pub giants: Vec<TextRange>,
    /// Where the topmost table lies that all others of the guest's are made from; none where nobody says.
    pub tables: Option<Gva>,
    /// Which entries are as good as those that are zero, where there are none of these.
    pub others: Others,
}

/// Entries that are not zero and can be used all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// None. A kernel of a known kind says where nothing of its own is, and what it has elsewhere (devices) it may need.
    None,
    /// Those that are not present, which a kernel that starts has not cleared yet. It will: then they are put back.
    Absent,
    /// Those that lead to no memory, of a kernel of which no more is known than what its image takes up.
    Idle,
}

/// All of the address space.
const ALL: TextRange = TextRange {
    start: Gva(0),
    end: Gva(u64::MAX),
};

impl Places {
    /// Those of a guest with this image, which may still be in front of its borders; nothing
    /// when it has nothing to trace.
    #[must_use]
    pub fn of(image: &Image, starts: bool) -> Option<Self> {
        let text = text(image)?;
        let spare = guest_kind::of(image).spare(image);
        if let Some(Spare {
            pages,
            giants,
            tables,
        }) = spare
        {
            return Some(Self {
                text,
                pages,
                giants,
                tables,
                others: match starts {
                    true => Others::Absent,
                    false => Others::None,
                },
            });
        }
        let segments = image.segments.iter().map(|segment| TextRange {
            start: segment.vaddr,
            end: Gva(segment.vaddr.0.saturating_add(segment.memsz)),
        });
        Some(Self {
            pages: around(text, segments.collect()),
            ..Self::from(text)
        })
    }
}

/// Anywhere but in the text.
impl From<TextRange> for Places {
    fn from(text: TextRange) -> Self {
        Self {
            text,
            pages: around(text, Vec::new()),
            giants: vec![ALL],
            tables: None,
            others: Others::Idle,
        }
    }
}

/// The image's own text, from its first site on. Modules are not in it, whether they are loaded or were.
fn text(image: &Image) -> Option<TextRange> {
    // What was made to be traced says in which ring text is executed.
    let is_made = |site: &&Site| site.kind != SiteKind::Displaced;
    let sites = &image.sites;
    let first = sites.iter().find(is_made).or(sites.first())?.address;
    let end = image.text.iter().map(|range| range.end).max();
    Some(TextRange {
        start: first,
        end: end.unwrap_or(first).max(first),
    })
}

/// What is after `text`, then what is before it, without what is `taken`.
fn around(text: TextRange, taken: Vec<TextRange>) -> Vec<TextRange> {
    let after = (text.end, ALL.end);
    let before = (ALL.start, text.start);
    let ranges = [after, before].map(|(start, end)| TextRange { start, end });
    let free = ranges.iter().flat_map(|range| without(*range, &taken));
    free.collect()
}

/// The parts of `range` that none of `taken` has, ascending.
fn without(range: TextRange, taken: &[TextRange]) -> Vec<TextRange> {
    let mut taken: Vec<TextRange> = taken.iter().filter_map(|one| one.common(range)).collect();
    taken.sort_by_key(|one| one.start);
    let mut parts = Vec::new();
    let mut start = range.start;
    for one in taken {
        if one.start > start {
            parts.push(TextRange {
                start,
                end: one.start,
            });
        }
        start = start.max(one.end);
    }
    if start < range.end {
        let end = range.end;
        parts.push(TextRange { start, end });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> TextRange {
        TextRange {
            start: Gva(start),
            end: Gva(end),
        }
    }

    #[test]
    fn what_is_after_the_text_comes_before_what_is_before_it() {
        let text = range(100, 200);
        assert_eq!(
            Places::from(text).pages,
            [range(200, u64::MAX), range(0, 100)]
        );
        let taken = vec![
            range(300, 400),
            range(150, 250),
            range(320, 350),
            range(0, 10),
            range(90, 120),
        ];
        assert_eq!(
            around(text, taken),
            [range(250, 300), range(400, u64::MAX), range(10, 90)]
        );
        assert_eq!(around(text, vec![ALL]), []);
    }
}
