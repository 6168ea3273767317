//! A Linux in a QEMU that nothing of ours has launched: emulated, so that it needs no KVM, with the RAM in a file, from
//! which its memory is read as from a process. It boots with KASLR, and is stopped by its monitor once it has printed
//! what it was told to.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};

use serde_json::json;
use tempfile::TempDir;
use terms::addr::Gpa;
use tracer::target::{MemoryError, PhysicalMemory, VcpuRegisters};

use crate::monitor::Monitor;
use crate::place::{outlived, patience};

/// How often one is begun that stands still.
const ATTEMPTS: u32 = 3;
/// What it prints when it has started.
const STARTED: &str = "the guest has started";
/// Where q35 puts what does not fit below its hole, how much then does, and from which size of RAM on.
const HIGH: u64 = 1 << 32;
const LOW: u64 = 2 << 30;
const SPLIT_FROM: u64 = 0xb000_0000;

/// One that runs, or is stopped.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    monitor: Monitor,
    ram: QemuMemory,
    _folder: TempDir,
}

/// Its RAM.
#[derive(Debug)]
pub struct QemuMemory {
    file: File,
    bytes: u64,
}

impl Qemu {
    /// A machine of `memory` MiB and with this processor in which `kernel` has started; `words` are for its command
    /// line. It is stopped. One that stands still is begun again: the emulator can lose an interrupt (images/README.md).
    ///
    /// # Panics
    /// When there is no QEMU, or the kernel does not start.
    #[must_use]
    pub fn started(kernel: &Path, processor: &str, memory: u64, words: &str) -> Self {
        for attempt in 1..=ATTEMPTS {
            if let Some(qemu) = Self::start(kernel, processor, memory, words) {
                return qemu;
            }
            println!("{} stands still, for the {attempt}. time", kernel.display());
        }
        panic!("{} has stood still {ATTEMPTS} times", kernel.display());
    }

    /// None of one that stands still.
    fn start(kernel: &Path, processor: &str, memory: u64, words: &str) -> Option<Self> {
        let (shm, temporary) = (PathBuf::from("/dev/shm"), std::env::temp_dir());
        let touched = memory.min(TOUCHED_MAX) << 20;
        let folder = folder_with(touched, &[shm, temporary]);
        let folder =
            folder.unwrap_or_else(|why| panic!("{memory} MiB for a guest's memory: {why}"));
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (initrd, ram) = (crate::linux().1, at("ram"));
        let mut child = outlived("qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", "q35,memory-backend=ram"])
            .args(["-cpu", processor, "-m", &format!("{memory}M")])
            .args(["-display", "none", "-nodefaults", "-no-user-config"])
            .arg("-no-reboot")
            .arg("-object")
            .arg(format!("memory-backend-file,id=ram,size={memory}M,share=on,mem-path={ram}"))
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initrd)
            .arg("-append")
            .arg(format!(
                "console=ttyS0 panic=-1 tsc=reliable no_timer_check {words} run=\"echo {STARTED}; sleep 100000\""
            ))
            .args(["-serial", "stdio", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", at("monitor")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("setpriv, of util-linux");
        let Some(said) = wait(&mut child) else {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        };
        let Some(mut monitor) = Monitor::connect(&folder.path().join("monitor")) else {
            let _ = child.kill();
            panic!(
                "{} has not started, or there is no qemu-system-x86_64 (images/packages box): {said}",
                kernel.display()
            );
        };
        let ram = QemuMemory {
            file: File::open(&ram).expect("the file with the guest's memory"),
            bytes: memory << 20,
        };
        assert!(
            said.ends_with(STARTED),
            "{} has not started: {said}",
            kernel.display()
        );
        monitor.command("stop", &json!({}));
        Some(Self {
            child,
            monitor,
            ram,
            _folder: folder,
        })
    }

    /// Its memory.
    #[must_use]
    pub const fn memory(&self) -> &QemuMemory {
        &self.ram
    }

    /// The registers of its processor, and where its table of interrupts lies.
    ///
    /// # Panics
    /// When the monitor does not say.
    pub fn registers(&mut self) -> (VcpuRegisters, u64) {
        let command = json!({"command-line": "info registers"});
        let said = self.monitor.command("human-monitor-command", &command);
        let said = said.as_str().expect("text").to_owned();
        let word = |name: &str| {
            let after = said.split(name).nth(1).map(str::trim_start);
            let digits = after.and_then(|rest| rest.split_whitespace().next());
            let word = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            word.unwrap_or_else(|| panic!("no {name} in {said}"))
        };
        let registers = VcpuRegisters {
            online: true,
            rip: word("RIP="),
            rsp: word("RSP="),
            cr0: word("CR0="),
            cr3: word("CR3="),
            cr4: word("CR4="),
            efer: word("EFER="),
            ..VcpuRegisters::default()
        };
        (registers, word("IDT="))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// MiB of its memory that a guest which boots and waits touches, at most; of the rest the file has nothing.
const TOUCHED_MAX: u64 = 1024;

/// A folder in the first of these places that has room for so many bytes: what does not fit would end QEMU when it is written.
fn folder_with(bytes: u64, places: &[PathBuf]) -> Result<TempDir, String> {
    let mut why = Vec::new();
    for place in places {
        let room = rustix::fs::statvfs(place).map(|there| there.f_bavail * there.f_frsize);
        match room.map(|room| (room, tempfile::tempdir_in(place))) {
            Ok((room, Ok(folder))) if room >= bytes => return Ok(folder),
            Ok((room, Ok(_))) => why.push(format!("{} has room for {room} bytes", place.display())),
            Ok((_, Err(error))) => why.push(format!("{}: {error}", place.display())),
            Err(error) => why.push(format!("{}: {error}", place.display())),
        }
    }
    Err(why.join("; "))
}

/// Waits until it has started or has ended; what it has said until then. None when it has said nothing for long.
fn wait(child: &mut Child) -> Option<String> {
    let console = child.stdout.take().expect("its console");
    let (line, lines) = channel();
    // Somebody reads on, for nothing may wait for that.
    std::thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut bytes = Vec::new();
        while console.read_until(b'\n', &mut bytes).unwrap_or_default() > 0 {
            let _ = line.send(String::from_utf8_lossy(&bytes).into_owned());
            bytes.clear();
        }
    });
    let mut said = String::new();
    loop {
        match lines.recv_timeout(patience()) {
            Ok(line) => said.push_str(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return None,
        }
        let there = said.trim_end();
        if there.ends_with(STARTED) && !there.ends_with("echo") {
            break;
        }
    }
    Some(said.trim_end().to_owned())
}

impl QemuMemory {
    /// Where `length` bytes at `at` lie in the file.
    fn offset(&self, at: Gpa, length: u64) -> Option<u64> {
        let is_split = self.bytes >= SPLIT_FROM;
        let low = if is_split { LOW } else { self.bytes };
        let end = at.0.checked_add(length)?;
        if end <= low {
            return Some(at.0);
        }
        let offset = low.checked_add(at.0.checked_sub(HIGH)?)?;
        (offset.checked_add(length)? <= self.bytes).then_some(offset)
    }
}

impl PhysicalMemory for QemuMemory {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let length = into.len();
        let offset = self.offset(at, length as u64);
        let read = offset.and_then(|offset| self.file.read_exact_at(into, offset).ok());
        read.ok_or(MemoryError::NotMemory {
            address: at,
            length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_memory_lies_where_there_is_room_for_it() {
        let here = tempfile::tempdir().unwrap();
        let (small, none) = (PathBuf::from("/proc"), PathBuf::from("/nowhere"));
        let there = here.path().to_owned();
        let folder = folder_with(4096, &[none.clone(), small.clone(), there.clone()]).unwrap();
        assert_eq!(folder.path().parent(), Some(here.path()));
        let why = folder_with(u64::MAX, &[there, small, none]).unwrap_err();
        for words in [
            here.path().to_str().unwrap(),
            "has room for",
            "/proc",
            "/nowhere",
        ] {
            assert!(why.contains(words), "{why}");
        }
    }
}
