//! What of a guest's RAM holds anything. What was never touched is zero; to read it would take as long as to read the rest, and
//! make the VMM's page tables larger, or the file in which it lies. Of memory that its VMM has from nobody else (no file, not
//! shared) `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst) tells, of that in a file the file.
//!
//! Pages that nobody has touched yet are not zero where somebody hands them out when they are first read ([`super::userfaults`]).

use std::fs::File;
use std::os::unix::fs::FileExt;

use terms::region::Region;

use super::backing::Backing;
use super::memory::Range;
use super::process::Mapping;
use super::userfaults::Userfaults;

const PAGE: u64 = 4096;
/// A word for each page.
const ENTRY: u64 = 8;
/// A page is in memory, or was put elsewhere.
const TOUCHED: u64 = 0b11 << 62;

/// What is looked at together: as much as a large page.
const STEP: u64 = 2 << 20;

/// The parts of `ranges`, of a VMM with these mappings, that hold anything. All of those of which that cannot be told.
pub(super) fn touched(pid: i32, ranges: &[Range], mappings: &[Mapping]) -> Vec<Region> {
    let pages = File::open(format!("/proc/{pid}/pagemap")).ok();
    let Ok(userfaults) = Userfaults::of(pid) else {
        return ranges.iter().map(|range| range.guest).collect();
    };
    let mut parts = Vec::new();
    for range in ranges {
        if userfaults.hands_out(range) {
            parts.push(range.guest);
            continue;
        }
        let own = pages.as_ref().filter(|_| is_own(range, mappings));
        match (own, Backing::of(pid, *range, mappings)) {
            (Some(pages), _) => in_steps(range, &mut parts, |host, bytes| {
                is_touched(pages, host, bytes)
            }),
            (None, Some(backing)) => parts.extend(backing.parts()),
            (None, None) => parts.push(range.guest),
        }
    }
    parts
}

/// Whether nobody but the VMM has it: then what it has not touched is zero.
fn is_own(&Range { guest, host }: &Range, mappings: &[Mapping]) -> bool {
    let end = host.saturating_add(guest.bytes);
    let holds = |mapping: &&Mapping| {
        mapping.start <= host && end <= mapping.start.saturating_add(mapping.bytes)
    };
    let all = mappings.iter().find(holds);
    all.is_some_and(|mapping| mapping.file.is_none())
}

/// The parts of a range for whose steps `is_touched` holds, those that follow each other as one.
fn in_steps(
    &Range { guest, host }: &Range,
    parts: &mut Vec<Region>,
    is_touched: impl Fn(u64, u64) -> bool,
) {
    let mut offset = 0;
    while offset < guest.bytes {
        let bytes = STEP.min(guest.bytes - offset);
        let start = guest.start.wrapping_add(offset);
        if is_touched(host.saturating_add(offset), bytes) {
            match parts.last_mut().filter(|last| last.end() == start.0) {
                Some(last) => last.bytes += bytes,
                None => parts.push(Region { start, bytes }),
            }
        }
        offset += bytes;
    }
}

/// Whether any page there was ever touched; it was where that cannot be read.
fn is_touched(pages: &File, host: u64, bytes: u64) -> bool {
    let count = bytes.div_ceil(PAGE) * ENTRY;
    let mut entries = vec![0; usize::try_from(count).unwrap_or_default()];
    let read = pages.read_exact_at(&mut entries, host / PAGE * ENTRY);
    let (words, _) = entries.as_chunks::<8>();
    read.is_err()
        || words
            .iter()
            .any(|word| u64::from_ne_bytes(*word) & TOUCHED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::userfaults::tests::HalfServed;
    use crate::memory::Ram;
    use terms::addr::Gpa;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_written_is_touched_and_little_else() {
        let ram = Ram::create(64, 0x1000).unwrap();
        ram.write(Gpa(33 * MIB + 5), &[1]).unwrap();
        let (start, bytes, host) = ram.memory().regions().next().unwrap();
        let guest = Region { start, bytes };
        let range = Range { guest, host };
        let pid = std::process::id().cast_signed();
        let mapping = |file: Option<&str>| Mapping {
            start: host,
            bytes,
            file: file.map(Into::into),
            offset: 0,
            is_shared: false,
        };
        let parts = touched(pid, &[range], &[mapping(None)]);
        assert!(
            parts.iter().any(|part| part.holds(Gpa(33 * MIB + 5), 1)),
            "{parts:?}"
        );
        assert!(
            parts.iter().map(|part| part.bytes).sum::<u64>() <= 4 * MIB,
            "{parts:?}"
        );
        // Others may have touched what is a file's.
        assert_eq!(
            touched(pid, &[range], &[mapping(Some("/memfd:ram"))]),
            [guest]
        );
        assert_eq!(touched(pid, &[range], &[]), [guest]);
    }

    /// A restored guest's saved addresses lie in pages that nobody has touched yet.
    #[test]
    fn what_somebody_hands_out_when_it_is_touched_is_not_zero() {
        let mut vmm = HalfServed::start(false);
        let process = vmm.process();
        let mappings = process.mappings().unwrap();
        let halves = vmm.halves();
        assert_eq!(
            touched(process.pid(), &halves, &mappings),
            [halves[0].guest]
        );
        vmm.end();
        // What cannot be asked holds something.
        let all = halves.map(|half| half.guest);
        assert_eq!(touched(process.pid(), &halves, &mappings), all);
    }

    #[test]
    fn steps_that_follow_each_other_are_one_part() {
        let guest = Region {
            start: Gpa(MIB),
            bytes: 7 * MIB,
        };
        let range = Range { guest, host: 0 };
        let mut parts = Vec::new();
        in_steps(&range, &mut parts, |host, _| host != 2 * MIB);
        let ends: Vec<_> = parts
            .iter()
            .map(|part| (part.start.0 / MIB, part.end() / MIB))
            .collect();
        assert_eq!(ends, [(1, 3), (5, 8)]);
    }
}
