//! What of a guest's RAM holds anything. What was never touched is zero; to read it would take as long as to read the rest, and
//! make the VMM's page tables larger, or the file in which it lies. Of memory that its VMM has from nobody else (no file, not
//! shared) `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst) tells, of that in a file the file.
//!
//! A guest that is restored bit by bit has pages that nobody has touched yet, and that are not zero: somebody hands them out when
//! they are first read (userfaultfd). `/proc/PID/smaps` says of which mappings that may be so.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use terms::region::Region;

use super::backing::Backing;
use super::memory::Range;
use super::process::{Mapping, mapping};

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
    let Ok(smaps) = fs::read(format!("/proc/{pid}/smaps")) else {
        return ranges.iter().map(|range| range.guest).collect();
    };
    let handed_out = handed_out(&String::from_utf8_lossy(&smaps));
    let mut parts = Vec::new();
    for range in ranges {
        if handed_out.iter().any(|mapping| overlap(range, mapping)) {
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

/// The mappings of which what nobody has touched yet is not zero, but what somebody hands out (proc_pid_smaps(5), `VmFlags`).
fn handed_out(smaps: &str) -> Vec<Mapping> {
    let mut found = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_one = flags.split_ascii_whitespace().any(|flag| flag == "um");
            found.extend(last.take().filter(|_| is_one));
        } else if let Some(mapping) = mapping(line, "") {
            last = Some(mapping);
        }
    }
    found
}

fn overlap(&Range { guest, host }: &Range, mapping: &Mapping) -> bool {
    let end = |start: u64, bytes| start.saturating_add(bytes);
    host < end(mapping.start, mapping.bytes) && mapping.start < end(host, guest.bytes)
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
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::foreign::process::Process;
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
        let vmm = "import ctypes, fcntl, mmap, os, struct, sys\n\
            fd = ctypes.CDLL(None, use_errno=True).syscall(323, os.O_CLOEXEC | 1)\n\
            assert fd >= 0, os.strerror(ctypes.get_errno())\n\
            fcntl.ioctl(fd, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))\n\
            ram = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
            at = ctypes.addressof(ctypes.c_char.from_buffer(ram))\n\
            part = bytearray(struct.pack('QQQQ', at, 4 << 20, 1, 0))\n\
            fcntl.ioctl(fd, 0xc020aa00, part)\n\
            print(at, flush=True)\n\
            sys.stdin.read()";
        let mut vmm = Command::new("python3")
            .args(["-c", vmm])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(vmm.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let at: u64 = line.trim().parse().unwrap();
        let process = Process::open(vmm.id().cast_signed()).unwrap();
        let mappings = process.mappings().unwrap();
        let range = |offset: u64| Range {
            guest: Region {
                start: Gpa(offset),
                bytes: 4 * MIB,
            },
            host: at + offset,
        };
        let ranges = [range(0), range(4 * MIB)];
        assert_eq!(
            touched(process.pid(), &ranges, &mappings),
            [ranges[0].guest]
        );
        vmm.kill().unwrap();
        vmm.wait().unwrap();
        // What cannot be asked holds something.
        let all = ranges.map(|range| range.guest);
        assert_eq!(touched(process.pid(), &ranges, &mappings), all);
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
