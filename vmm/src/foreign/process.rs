//! The process of another VMM, as `/proc` shows it. All of it is input from a stranger: it may end, or be another one, at
//! any moment, and what it calls itself is its own choice.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::error::ForeignError;
use super::same_file::{Descriptor, are_same};

/// A descriptor of a virtual machine, or of one of its vCPUs, in its VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VcpuDescriptor {
    /// The vCPU's number.
    pub vcpu: u16,
    /// The descriptor's number in that process.
    pub fd: i32,
}

/// How the descriptor of a virtual machine is called.
const VM: &str = "anon_inode:kvm-vm";
/// How the descriptor of a vCPU is called, before its number.
const VCPU: &str = "anon_inode:kvm-vcpu:";

/// Whether what `link` leads to is the vCPU with this number.
pub(super) fn is_vcpu(link: &Path, number: u16) -> bool {
    let target = fs::read_link(link);
    target.is_ok_and(|target| target.to_str() == Some(&format!("{VCPU}{number}")))
}

/// A writable part of the process's address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The file that is mapped, if it is one.
    pub file: Option<PathBuf>,
    /// Where in the file it begins.
    pub offset: u64,
    /// Whether others that map the file see what is written here.
    pub is_shared: bool,
}

/// A process, held by a descriptor: no other one with its number is taken for it.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// The process with this number.
    ///
    /// # Errors
    /// [`ForeignError::NoProcess`].
    pub fn open(pid: i32) -> Result<Self, ForeignError> {
        let gone = || ForeignError::NoProcess { pid };
        // What is no number of a process is none that can be asked for.
        let number = if pid > 0 { Pid::from_raw(pid) } else { None };
        let number = number.ok_or_else(gone)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|_| gone())?;
        Ok(Self { pid, pidfd })
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it executes the same program as we do.
    pub(super) fn is_this_program(&self) -> bool {
        let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
        let (its, own) = (file(&self.path("exe")), file(Path::new("/proc/self/exe")));
        its.is_ok_and(|its| own.is_ok_and(|own| own == its))
    }

    /// Where to find `name` of it.
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// The descriptor of its virtual machine, the first of those that it has of that.
    ///
    /// # Errors
    /// [`ForeignError::NotVmm`] when it has none, [`ForeignError::SeveralVms`] when it has several,
    /// [`ForeignError::UntoldVms`] when that cannot be told.
    pub fn vm_descriptor(&self) -> Result<i32, ForeignError> {
        let pid = self.pid;
        // What begins like that is something else: `kvm-vm-stats`.
        let mut all = self.descriptors(VM)?;
        all.retain(|(_, rest)| rest.is_empty());
        let descriptors = all.len();
        let vms = distinct(all.into_iter().map(|(fd, _)| fd), |one, other| {
            are_same(Descriptor { pid, fd: one }, Descriptor { pid, fd: other })
        });
        let vms = vms.map_err(|source| ForeignError::UntoldVms {
            pid,
            descriptors,
            source,
        })?;
        match vms.as_slice() {
            [] => Err(ForeignError::NotVmm { pid }),
            [fd] => Ok(*fd),
            several => {
                let vms = several.len();
                Err(ForeignError::SeveralVms { pid, vms })
            }
        }
    }

    /// Whether a descriptor of it is that of a virtual machine.
    pub fn is_vm(&self, fd: i32) -> bool {
        let target = fs::read_link(self.table().join(fd.to_string()));
        target.is_ok_and(|target| target == Path::new(VM))
    }

    /// The descriptors of its vCPUs, by number; one that was duplicated has several.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn all_vcpu_descriptors(&self) -> Result<Vec<VcpuDescriptor>, ForeignError> {
        Ok(of_vcpus(self.descriptors(VCPU)?))
    }

    /// The same of one of its threads, which can have a table of its own (`CLONE_FILES` left out); none of one that has ended.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn vcpu_descriptors_of(&self, thread: i32) -> Result<Vec<VcpuDescriptor>, ForeignError> {
        match self.descriptors_in(&self.table_of(thread), VCPU) {
            Err(_) if is_over(thread) => Ok(Vec::new()),
            found => Ok(of_vcpus(found?)),
        }
    }

    /// The first descriptor of each vCPU, by number.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn vcpu_descriptors(&self) -> Result<Vec<VcpuDescriptor>, ForeignError> {
        let mut all = self.all_vcpu_descriptors()?;
        all.dedup_by_key(|one| one.vcpu);
        Ok(all)
    }

    /// Whether a descriptor of it is that of a vCPU with this number.
    pub fn is_vcpu(&self, of: VcpuDescriptor) -> bool {
        is_vcpu(&self.table().join(of.fd.to_string()), of.vcpu)
    }

    /// Descriptors whose name begins with `prefix`, and how the name continues.
    pub(super) fn descriptors(&self, prefix: &str) -> Result<Vec<(i32, String)>, ForeignError> {
        self.descriptors_in(&self.table(), prefix)
    }

    /// Where its descriptors are shown: with its first thread, or where that has ended before the others, with another one.
    fn table(&self) -> PathBuf {
        let other = || self.threads().ok()?.first().copied();
        match self.has_ended(self.pid).then(other).flatten() {
            Some(thread) => self.table_of(thread),
            None => self.path("fd"),
        }
    }

    /// Where those of a thread are.
    fn table_of(&self, thread: i32) -> PathBuf {
        self.path(&format!("task/{thread}/fd"))
    }

    /// All of them: who is told that one is not there can rely on that.
    fn descriptors_in(
        &self,
        table: &Path,
        prefix: &str,
    ) -> Result<Vec<(i32, String)>, ForeignError> {
        let untold = |error| match self.is_ending() {
            // What is refused then is said of its end.
            true => ForeignError::NoProcess { pid: self.pid },
            false => self.unreadable("fd")(error),
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(table).map_err(untold)? {
            let entry = entry.map_err(untold)?;
            let target = match fs::read_link(entry.path()) {
                // It was closed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A file far down in folders: none of what is looked for is called so.
                Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => continue,
                target => target.map_err(untold)?,
            };
            let rest = target.to_str().and_then(|name| name.strip_prefix(prefix));
            let number = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
            if let (Some(rest), Some(number)) = (rest, number) {
                found.push((number, rest.to_owned()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Its threads, by number: those of the kernel that work on its behalf are left out, and those that end or have ended, as the first
    /// one can before the others.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn threads(&self) -> Result<Vec<i32>, ForeignError> {
        let entries = fs::read_dir(self.path("task")).map_err(self.unreadable("task"))?;
        let number =
            |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<i32>().ok();
        let mut threads: Vec<i32> = entries.filter_map(number).collect();
        threads.retain(|thread| !self.is_of_the_kernel(*thread) && !self.has_ended(*thread));
        threads.sort_unstable();
        Ok(threads)
    }

    /// Whether a thread is one of the kernel's (`PF_USER_WORKER`), as `kvm-nx-lpage-recovery` is: its system call is shown as
    /// that of the vCPU that made it.
    fn is_of_the_kernel(&self, thread: i32) -> bool {
        /// `PF_USER_WORKER`, and `PF_IO_WORKER` of kernels that have no other word for it.
        const OF_THE_KERNEL: u64 = 0x4000 | 0x10;
        let flags = self.flags(thread).ok().flatten();
        flags.is_some_and(|flags| flags & OF_THE_KERNEL != 0)
    }

    /// Whether a thread executes nothing of its program any more (`PF_EXITING`).
    fn has_ended(&self, thread: i32) -> bool {
        const ENDS: u64 = 0x4;
        match self.flags(thread) {
            Ok(flags) => flags.is_some_and(|flags| flags & ENDS != 0),
            Err(error) => is_gone(&error),
        }
    }

    /// What the kernel says of a thread (`PF_...`).
    fn flags(&self, thread: i32) -> io::Result<Option<u64>> {
        let stat = self.of_thread(thread, "stat")?;
        let flags = after_name(&stat).and_then(|rest| rest.split(' ').nth(6)?.parse().ok());
        Ok(flags)
    }

    /// A file of a thread. Its name is in some of them, and can be any bytes.
    fn of_thread(&self, thread: i32, what: &str) -> io::Result<String> {
        text(self.path(&format!("task/{thread}/{what}")))
    }

    /// The system call that a thread is in: its number and first two arguments. None while it runs.
    #[must_use]
    pub fn system_call(&self, thread: i32) -> Option<[u64; 3]> {
        let text = self.of_thread(thread, "syscall").ok()?;
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut argument = || {
            let word = words.next()?.strip_prefix("0x")?;
            u64::from_str_radix(word, 16).ok()
        };
        Some([number, argument()?, argument()?])
    }

    /// The writable parts of its address space, in ascending order.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn mappings(&self) -> Result<Vec<Mapping>, ForeignError> {
        self.mapped("rw")
    }

    /// The parts that hold code, those of C libraries first.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub fn code(&self) -> Result<Vec<Mapping>, ForeignError> {
        let is_library = |code: &Mapping| {
            let name = code.file.as_ref().and_then(|file| file.file_name());
            name.and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("libc") || name.starts_with("ld-musl"))
        };
        let mut code = self.mapped("r-x")?;
        code.sort_by_key(|code| !is_library(code));
        Ok(code)
    }

    fn mapped(&self, rights: &str) -> Result<Vec<Mapping>, ForeignError> {
        let text = fs::read(self.path("maps")).map_err(self.unreadable("maps"))?;
        let text = String::from_utf8_lossy(&text);
        let parts = text.lines().filter_map(|line| mapping(line, rights));
        Ok(parts.collect())
    }

    /// The arguments that it was started with.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let bytes = fs::read(self.path("cmdline")).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0);
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
        words.filter(|word| !word.is_empty()).collect()
    }

    /// What the kernel calls its main thread.
    #[must_use]
    pub fn command(&self) -> String {
        let name = fs::read(self.path("comm")).unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end().to_owned()
    }

    /// Whether it has ended, or is about to: it has been told to, or each of its threads has. The first one alone can end long before
    /// the others.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let is_killed = |thread| self.is_killed(thread);
        match self.threads() {
            Ok(threads) => is_killed(self.pid) || threads.into_iter().all(is_killed),
            Err(_) => !Path::new(&self.path("task")).exists(),
        }
    }

    /// The signal that has ended it, as far as that can still be seen: whoever has started it may have been told of its end
    /// before, and then nobody else is.
    #[must_use]
    pub fn killed_by(&self) -> Option<i32> {
        // Where `exit_code` stands in `stat`, from its state on, and what of it is the signal.
        const EXIT_CODE: usize = 49;
        const SIGNAL: i32 = 0x7f;
        let stat = text(self.path("stat")).ok()?;
        let code = after_name(&stat)?.split_ascii_whitespace().nth(EXIT_CODE)?;
        let signal = code.parse::<i32>().ok()? & SIGNAL;
        (signal != 0).then_some(signal)
    }

    /// Whether a thread has been told to end.
    fn is_killed(&self, thread: i32) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        match self.of_thread(thread, "status") {
            Ok(status) => pending(&status).any(|signals| signals & KILL != 0),
            Err(error) => is_gone(&error),
        }
    }

    /// Whether somebody has stopped it (SIGSTOP, Ctrl-Z): none of its threads executes anything until it is to continue.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        state(self.pid).is_ok_and(|state| state == Some('T'))
    }

    /// Whether a filter decides which system calls a thread may make, or may do so: what cannot be asked has one.
    #[must_use]
    pub fn is_filtered(&self, thread: i32) -> bool {
        let status = match self.of_thread(thread, "status") {
            Ok(status) => status,
            Err(error) => return !is_gone(&error),
        };
        let mode = status
            .lines()
            .find_map(|line| line.strip_prefix("Seccomp:"));
        mode.is_some_and(|mode| mode.trim() != "0")
    }

    /// Whether files that it has mapped can be opened: what is left in it could not be found and given back otherwise.
    ///
    /// # Errors
    /// [`ForeignError::MapFiles`], [`ForeignError::Proc`].
    pub fn check_mapped_files(&self) -> Result<(), ForeignError> {
        let failed = |source| ForeignError::of_map_files(self.pid, source);
        for entry in fs::read_dir(self.path("map_files")).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // As far as the file, which stays as it is: it may be a device.
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            match rustix::fs::open(entry.path(), flags, Mode::empty()) {
                // It was unmapped meanwhile.
                Err(Errno::NOENT) => {}
                opened => return opened.map(drop).map_err(|error| failed(error.into())),
            }
        }
        Ok(())
    }

    /// A descriptor of the process, for us.
    ///
    /// # Errors
    /// [`ForeignError::Descriptor`].
    pub fn descriptor(&self, fd: i32) -> Result<OwnedFd, ForeignError> {
        pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty()).map_err(|error| {
            ForeignError::Descriptor {
                pid: self.pid,
                fd,
                source: error.into(),
            }
        })
    }

    fn unreadable(&self, what: &'static str) -> impl Fn(io::Error) -> ForeignError {
        let pid = self.pid;
        move |source| match source.kind() {
            io::ErrorKind::NotFound => ForeignError::NoProcess { pid },
            _ => ForeignError::Proc { pid, what, source },
        }
    }
}

impl AsFd for Process {
    /// Readable when it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Whether a thread has ended, of whose end who waits for it may not know yet.
pub(super) fn is_over(thread: i32) -> bool {
    match state(thread) {
        Ok(state) => matches!(state, Some('Z' | 'X')),
        Err(error) => is_gone(&error),
    }
}

/// The process that traces a thread, if one does.
pub(super) fn tracer_of(thread: i32) -> Option<i32> {
    let status = text(format!("/proc/{thread}/task/{thread}/status").into()).ok()?;
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|pid| *pid != 0)
}

/// Whether a thread waits for something out of which nothing wakes it, as for a disk.
pub(super) fn is_uninterruptible(thread: i32) -> bool {
    state(thread).is_ok_and(|state| state == Some('D'))
}

/// What a thread does, by its letter in `stat`.
fn state(thread: i32) -> io::Result<Option<char>> {
    // Beside its process' own the whole of that is not added up.
    let stat = text(format!("/proc/{thread}/task/{thread}/stat").into())?;
    Ok(after_name(&stat).and_then(|rest| rest.chars().next()))
}

/// What a file has; bytes that are no text are shown as such.
fn text(path: PathBuf) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Whether what is said of a file of a thread is that there is no such thread.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// What comes after the name of a thread in its `stat`: the name, in parentheses, can hold anything.
fn after_name(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(") ")?.1)
}

/// The signals that wait for the main thread, and those that wait for any (`/proc/PID/status`).
fn pending(status: &str) -> impl Iterator<Item = u64> {
    let names = ["SigPnd:", "ShdPnd:"];
    let words = status
        .lines()
        .filter_map(move |line| names.iter().find_map(|name| line.strip_prefix(name)));
    words.filter_map(|word| u64::from_str_radix(word.trim(), 16).ok())
}

/// Descriptors that are called as vCPUs are, by their numbers.
fn of_vcpus(found: Vec<(i32, String)>) -> Vec<VcpuDescriptor> {
    let numbered = found.into_iter().filter_map(|(fd, rest)| {
        let vcpu = rest.parse().ok()?;
        Some(VcpuDescriptor { vcpu, fd })
    });
    let mut all: Vec<_> = numbered.collect();
    all.sort_unstable();
    all
}

/// A line of `/proc/PID/maps` (proc_pid_maps(5)), if it is a mapping with these rights.
pub(super) fn mapping(line: &str, rights: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let rights_there = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2).map(PathBuf::from);
    rights_there.starts_with(rights).then(|| Mapping {
        start,
        bytes: end.saturating_sub(start),
        file: path,
        offset,
        is_shared: rights_there.ends_with('s'),
    })
}

/// Of descriptors the first of each thing, as far as `are_same` knows.
fn distinct(
    all: impl Iterator<Item = i32>,
    are_same: impl Fn(i32, i32) -> io::Result<bool>,
) -> io::Result<Vec<i32>> {
    let mut found: Vec<i32> = Vec::new();
    for fd in all {
        let known = found.iter().map(|known| are_same(*known, fd));
        if !known.collect::<io::Result<Vec<_>>>()?.contains(&true) {
            found.push(fd);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn writable_mappings_are_read_and_others_left_out() {
        let line = "7f0000000000-7f0010000000 rw-p 00000000 00:00 0 ";
        let anonymous = mapping(line, "rw").unwrap();
        assert_eq!(
            (anonymous.start, anonymous.bytes),
            (0x7f00_0000_0000, 0x1000_0000)
        );
        assert_eq!((anonymous.file, anonymous.is_shared), (None, false));
        let file = mapping(
            "1000-3000 rw-s 0001a000 00:01 77 /memfd:ram (deleted)",
            "rw",
        )
        .unwrap();
        assert_eq!((file.offset, file.is_shared), (0x1a000, true));
        assert_eq!(file.file.unwrap().to_str(), Some("/memfd:ram"));
        let code = "1000-3000 r-xp 00000000 00:01 77 /bin/x";
        assert_eq!(mapping(code, "rw"), None);
        assert_eq!(mapping(code, "r-x").unwrap().start, 0x1000);
        for broken in [
            "",
            "x",
            "1000",
            "1000-zz rw-p",
            "1000-2000",
            "1000-2000 rw-p",
            "1000-2000 rw-p x",
        ] {
            assert_eq!(mapping(broken, ""), None, "{broken}");
        }
    }

    #[test]
    fn a_process_is_told_from_one_that_is_gone_and_from_one_without_a_guest() {
        // Not this one: other tests in it have guests.
        let mut other = Command::new("cat");
        let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(other.id().cast_signed()).unwrap();
        assert!(matches!(
            process.vm_descriptor(),
            Err(ForeignError::NotVmm { .. })
        ));
        assert!(!process.threads().unwrap().is_empty());
        assert!(!process.mappings().unwrap().is_empty());
        assert!(!process.is_ending());
        assert_eq!(process.killed_by(), None);
        // It ends when nobody can write to it any more.
        drop(other.stdin.take());
        has_ended(&process);
        assert!(process.is_ending());
        assert_eq!(process.killed_by(), None);
        other.wait().unwrap();
        assert!(process.is_ending());
        for pid in [0, -1, i32::MAX] {
            let gone = Process::open(pid);
            assert!(matches!(gone, Err(ForeignError::NoProcess { .. })), "{pid}");
        }
    }

    /// Waits until it has, and leaves it to who has started it.
    fn has_ended(process: &Process) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let id = WaitId::Pid(rustix::process::Pid::from_raw(process.pid()).unwrap());
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    }

    #[test]
    fn what_was_killed_is_told_from_what_has_ended() {
        let mut other = Command::new("cat");
        let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(other.id().cast_signed()).unwrap();
        other.kill().unwrap();
        has_ended(&process);
        assert_eq!(process.killed_by(), Some(libc::SIGKILL));
        other.wait().unwrap();
        assert_eq!(process.killed_by(), None, "nobody can tell any more");
    }

    /// What a process has was once looked for with its first thread alone: that one has nothing once it has ended, and others can have
    /// what it has closed.
    #[test]
    fn descriptors_are_seen_with_the_threads_that_have_them() {
        const SCRIPT: &str = "import ctypes, os, sys, threading, time\n\
            libc, kept = ctypes.CDLL(None), os.memfd_create('kept')\n\
            def own():\n    libc.unshare(0x400)\n    print('has its own', flush=True)\n    time.sleep(1000)\n\
            threading.Thread(target=own).start()\nsys.stdin.readline()\nos.close(kept)\nprint('closed', flush=True)\n\
            sys.stdin.readline()\nlibc.pthread_exit(None)";
        let mut other = Command::new("python3");
        let other = other.args(["-c", SCRIPT]);
        let mut other = other
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap());
        let mut says = || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line
        };
        let mut told = other.stdin.take().unwrap();
        assert_eq!(says(), "has its own\n");
        let process = Process::open(other.id().cast_signed()).unwrap();
        let [first, second] = process.threads().unwrap().try_into().unwrap();
        let kept = |table: &Path| process.descriptors_in(table, "/memfd:kept").unwrap().len();
        let of = |thread| kept(&process.table_of(thread));
        assert_eq!([of(first), of(second)], [1, 1]);
        told.write_all(b"\n").unwrap();
        assert_eq!(says(), "closed\n");
        assert_eq!([of(first), of(second), kept(&process.table())], [0, 1, 0]);
        told.write_all(b"\n").unwrap();
        while !process.has_ended(first) {
            std::thread::yield_now();
        }
        assert_eq!(kept(&process.table()), 1);
        assert_eq!(process.vcpu_descriptors_of(i32::MAX).unwrap(), []);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Its VMM could have prevented by that that it is let go.
    #[test]
    fn a_file_whose_path_is_too_long_to_be_told_hides_no_other() {
        const SCRIPT: &str = "import os, sys\nlong = 'd' * 250\n\
            for _ in range(20): os.mkdir(long); os.chdir(long)\n\
            far = open('far', 'w')\nkept = os.memfd_create('kept')\n\
            print('opened', far.fileno(), flush=True)\nsys.stdin.readline()";
        let folder = tempfile::tempdir().unwrap();
        let mut other = Command::new("python3");
        let other = other.args(["-c", SCRIPT]).current_dir(folder.path());
        let other = other.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(other.stdout.take().unwrap());
        stdout.read_line(&mut said).unwrap();
        let far = said.trim_end().strip_prefix("opened ").unwrap();
        let process = Process::open(other.id().cast_signed()).unwrap();
        let untold = fs::read_link(process.table().join(far)).unwrap_err();
        assert_eq!(untold.raw_os_error(), Some(libc::ENAMETOOLONG));
        assert_eq!(process.descriptors("/memfd:kept").unwrap().len(), 1);
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    /// It was said that it takes root.
    #[test]
    fn what_is_refused_of_one_that_has_ended_is_told_as_its_end() {
        let mut other = Command::new("cat");
        let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(other.id().cast_signed()).unwrap();
        let no_folder = process.path("comm");
        let refused = || process.descriptors_in(&no_folder, VCPU).unwrap_err();
        assert!(matches!(refused(), ForeignError::Proc { .. }));
        other.kill().unwrap();
        // It is there until it is waited for, and so is that file.
        while !process.has_ended(process.pid()) {
            std::thread::yield_now();
        }
        let ended = refused();
        assert!(matches!(ended, ForeignError::NoProcess { .. }), "{ended:?}");
        assert!(no_folder.exists());
        other.wait().unwrap();
    }

    /// The kernel cuts names after 15 bytes, letters or not. Such a thread was once taken for one that has ended: nobody held it.
    #[test]
    fn a_thread_whose_name_is_no_text_is_there() {
        const SCRIPT: &str = "import sys\nopen('/proc/self/comm', 'wb').write(b'\\xd0) R')\n\
            print('named', flush=True)\nsys.stdin.readline()";
        let mut other = Command::new("python3");
        let other = other.args(["-c", SCRIPT]).stdin(Stdio::piped());
        let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        let pid = other.id().cast_signed();
        let process = Process::open(pid).unwrap();
        assert_eq!(process.threads().unwrap(), [pid]);
        assert!(!process.is_ending() && !is_over(pid));
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    /// A duplicate was once taken for another machine.
    #[test]
    fn of_those_that_are_the_same_one_is_left() {
        let same_half = |one: i32, other: i32| Ok(one / 2 == other / 2);
        assert_eq!(
            distinct([4, 5, 6, 4, 7].into_iter(), same_half).unwrap(),
            [4, 6]
        );
        let untold = |_, _| Err(io::ErrorKind::PermissionDenied.into());
        assert_eq!(distinct([4].into_iter(), untold).unwrap(), [4]);
        distinct([4, 5].into_iter(), untold).unwrap_err();
    }
}
