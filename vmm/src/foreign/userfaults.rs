//! Memory of which a VMM is told before somebody gets to it for the first time (userfaultfd): what is there then is what the VMM
//! hands out, as for a guest that is restored or migrated bit by bit.
//!
//! What nobody has touched yet is not zero there. And whoever reads it through a mapping of its own has the kernel put zeros into the
//! file: **the VMM is asked for nothing then, and the guest finds the zeros**. Read and written as the VMM's own memory (process_vm_readv(2))
//! it is as if the VMM had touched it.

use std::fs;
use std::io;

use super::memory::Range;
use super::process::{Mapping, mapping};

/// The VMM hands out what nobody has touched (proc_pid_smaps(5), `VmFlags`).
const MISSING: &str = "um";
/// It is also told of what is in the file already, and of what is written.
const ANY: [&str; 3] = [MISSING, "ui", "uw"];

/// The mappings of a process that are so.
#[derive(Debug, Default)]
pub(super) struct Userfaults {
    missing: Vec<Mapping>,
    any: Vec<Mapping>,
}

impl Userfaults {
    /// Those of process `pid` now.
    ///
    /// # Errors
    /// When `/proc/PID/smaps` cannot be read.
    pub fn of(pid: i32) -> io::Result<Self> {
        let smaps = fs::read(format!("/proc/{pid}/smaps"))?;
        let smaps = String::from_utf8_lossy(&smaps);
        let mut found = Self::default();
        let mut last = None;
        for line in smaps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                found.add(last.take(), flags);
            } else if let Some(mapping) = mapping(line, "") {
                last = Some(mapping);
            }
        }
        Ok(found)
    }

    fn add(&mut self, mapping: Option<Mapping>, flags: &str) {
        let has = |one: &str| flags.split_ascii_whitespace().any(|flag| flag == one);
        let Some(mapping) = mapping.filter(|_| ANY.into_iter().any(has)) else {
            return;
        };
        if has(MISSING) {
            self.missing.push(mapping.clone());
        }
        self.any.push(mapping);
    }

    /// Whether something in this range is handed out when it is touched first.
    pub fn hands_out(&self, range: &Range) -> bool {
        overlaps(range, &self.missing)
    }

    /// Whether the VMM is to be told of something in this range that others do.
    pub fn is_told_of(&self, range: &Range) -> bool {
        overlaps(range, &self.any)
    }
}

fn overlaps(&Range { guest, host }: &Range, mappings: &[Mapping]) -> bool {
    let end = |start: u64, bytes| start.saturating_add(bytes);
    mappings.iter().any(|mapping| {
        host < end(mapping.start, mapping.bytes) && mapping.start < end(host, guest.bytes)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use terms::addr::Gpa;
    use terms::region::Region;

    use super::super::process::Process;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process that hands out half of its memory of 8 MiB: its own, or that in a file that can never become shorter. It is ended
    /// when this goes.
    pub struct HalfServed {
        child: Child,
        at: u64,
    }

    impl HalfServed {
        /// Starts it.
        pub fn start(is_file: bool) -> Self {
            let ram = match is_file {
                false => "mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
                true => "mmap.mmap(file, 8 << 20)",
            };
            let vmm = format!(
                "import ctypes, fcntl, mmap, os, struct, sys\n\
                fd = ctypes.CDLL(None, use_errno=True).syscall(323, os.O_CLOEXEC | 1)\n\
                assert fd >= 0, os.strerror(ctypes.get_errno())\n\
                fcntl.ioctl(fd, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))\n\
                file = os.memfd_create('ram', os.MFD_ALLOW_SEALING)\n\
                os.truncate(file, 8 << 20)\n\
                fcntl.fcntl(file, 1033, 2)\n\
                ram = {ram}\n\
                at = ctypes.addressof(ctypes.c_char.from_buffer(ram))\n\
                part = bytearray(struct.pack('QQQQ', at, 4 << 20, 1, 0))\n\
                fcntl.ioctl(fd, 0xc020aa00, part)\n\
                print(at, flush=True)\n\
                sys.stdin.read()"
            );
            let mut child = Command::new("python3")
                .args(["-c", &vmm])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            output.read_line(&mut line).unwrap();
            let at = line.trim().parse().unwrap();
            Self { child, at }
        }

        /// The process.
        pub fn process(&self) -> Process {
            Process::open(self.child.id().cast_signed()).unwrap()
        }

        /// The half that is handed out, and the other one.
        pub fn halves(&self) -> [Range; 2] {
            [0, 4 * MIB].map(|offset| Range {
                guest: Region {
                    start: Gpa(offset),
                    bytes: 4 * MIB,
                },
                host: self.at + offset,
            })
        }

        /// Ends it.
        pub fn end(&mut self) {
            let _ = self.child.kill();
            self.child.wait().unwrap();
        }
    }

    impl Drop for HalfServed {
        fn drop(&mut self) {
            self.end();
        }
    }

    #[test]
    fn what_is_served_is_known_of_every_mapping() {
        for is_file in [false, true] {
            let mut vmm = HalfServed::start(is_file);
            let userfaults = Userfaults::of(vmm.process().pid()).unwrap();
            assert_eq!(
                vmm.halves().map(|half| userfaults.hands_out(&half)),
                [true, false]
            );
            assert_eq!(
                vmm.halves().map(|half| userfaults.is_told_of(&half)),
                [true, false]
            );
            vmm.end();
        }
    }

    #[test]
    fn what_is_only_told_of_is_zero_where_nobody_has_touched_it() {
        let mut served = Userfaults::default();
        let mapping = |start| Mapping {
            start,
            bytes: MIB,
            file: None,
            offset: 0,
            is_shared: true,
        };
        for (start, flags) in [
            (0, "rd wr sh um"),
            (MIB, "rd ui"),
            (2 * MIB, "uw rd"),
            (3 * MIB, "rd wr umx"),
        ] {
            served.add(Some(mapping(start)), flags);
        }
        let range = |host| Range {
            guest: Region {
                start: Gpa(0),
                bytes: MIB,
            },
            host,
        };
        let all = [0, MIB, 2 * MIB, 3 * MIB].map(range);
        assert_eq!(
            all.map(|one| served.hands_out(&one)),
            [true, false, false, false]
        );
        assert_eq!(
            all.map(|one| served.is_told_of(&one)),
            [true, true, true, false]
        );
    }
}
