//! A run of `vmm` with the bundled guest, its threads pinned.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::de::DeserializeOwned;
use vmm::control::method::{Method, Nothing};
use vmm::control::methods::guest::ShowStatus;
use vmm::control::protocol::{Call, Response};

use super::Failed;
use crate::place;

/// RAM of every guest, in MiB.
pub const MEMORY_MIB: u64 = 64;
/// How long anything may take that is not a measurement.
const PATIENCE: Duration = Duration::from_secs(20);
/// No guest runs for longer, whatever becomes of the benchmark.
const LONGEST: Duration = Duration::from_secs(120);

/// A guest that runs.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    console: Lines<BufReader<ChildStdout>>,
    control: PathBuf,
    /// When `vmm` was started.
    pub started: Instant,
}

/// Ends with the measurement, also with one that failed.
impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    /// Boots the guest with each vCPU on a CPU of its own. `arguments` are those of `vmm run`
    /// besides kernel, memory and control socket, which is made in `place`.
    pub fn boot(
        place: &Path,
        vcpus: u16,
        cmdline: &str,
        arguments: &[&str],
    ) -> Result<Self, Failed> {
        Self::boot_image(&place::guest(), place, vcpus, cmdline, arguments)
    }

    /// The same with another image of the guest.
    pub fn boot_image(
        image: &Path,
        place: &Path,
        vcpus: u16,
        cmdline: &str,
        arguments: &[&str],
    ) -> Result<Self, Failed> {
        let guest = Self::launch_image(image, place, vcpus, cmdline, arguments)?;
        guest.pin(vcpus)?;
        guest.prefer();
        Ok(guest)
    }

    /// [`Self::boot`] without a CPU for each vCPU: who looks for threads that are not there yet
    /// takes a CPU away from who is to make them.
    pub fn launch(
        place: &Path,
        vcpus: u16,
        cmdline: &str,
        arguments: &[&str],
    ) -> Result<Self, Failed> {
        Self::launch_image(&place::guest(), place, vcpus, cmdline, arguments)
    }

    fn launch_image(
        image: &Path,
        place: &Path,
        vcpus: u16,
        cmdline: &str,
        arguments: &[&str],
    ) -> Result<Self, Failed> {
        let control = place.join("control");
        let _ = fs::remove_file(&control);
        let started = Instant::now();
        // A session of its own is a scheduling group of its own, which can be put before others.
        let mut child = place::starts_vmm("setsid")
            .arg(beside_this("vmm")?)
            .args(["run", "--memory", &MEMORY_MIB.to_string()])
            .args(["--timeout", &LONGEST.as_secs().to_string()])
            .args(["--vcpus", &vcpus.to_string(), "--cmdline", cmdline])
            .arg("--kernel")
            .arg(image)
            .arg("--control")
            .arg(&control)
            .args(arguments)
            .env("RUST_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("vmm has no stdout")?;
        Ok(Self {
            child,
            console: BufReader::new(stdout).lines(),
            control,
            started,
        })
    }

    /// The process of `vmm`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of the console.
    pub fn line(&mut self) -> Result<Option<String>, Failed> {
        Ok(self.console.next().transpose()?)
    }

    /// All lines until the guest ends, which it must do well.
    pub fn finish(mut self) -> Result<Vec<String>, Failed> {
        let mut lines = Vec::new();
        while let Some(line) = self.line()? {
            lines.push(line);
        }
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("vmm run ended with {status}; console: {lines:?}").into());
        }
        Ok(lines)
    }

    /// Types this on the console.
    pub fn type_text(&mut self, text: &str) -> Result<(), Failed> {
        let stdin = self.child.stdin.as_mut().ok_or("vmm has no stdin")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// A connection to the control socket.
    pub fn connect(&self) -> Result<Client, Failed> {
        Client::connect(&self.control)
    }

    /// vCPU threads to a CPU each, from the last one down; all others to those that are left, if any.
    fn pin(&self, vcpus: u16) -> Result<(), Failed> {
        let own = sched_getaffinity(None)?;
        let mut free: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| own.is_set(*cpu))
            .collect();
        if free.len() < usize::from(vcpus) {
            return Err(format!("{vcpus} vCPUs want a CPU each, there are {}", free.len()).into());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut pinned = 0;
        let mut others = Vec::new();
        while pinned < vcpus {
            if Instant::now() > deadline {
                return Err("vmm did not start its vCPUs".into());
            }
            let name = format!("vcpu{pinned}");
            others = self.threads()?;
            if let Some((thread, _)) = others.iter().find(|(_, found)| *found == name) {
                let cpu = free.pop().ok_or("no CPU is left")?;
                set_affinity(*thread, &[cpu])?;
                pinned += 1;
            }
        }
        if !free.is_empty() {
            // Threads that are started later inherit it.
            for (thread, name) in others {
                if !name.starts_with("vcpu") {
                    set_affinity(thread, &free)?;
                }
            }
        }
        Ok(())
    }

    /// Asks that whatever else runs on this host gives way. Without the right to ask, the spread
    /// of the measurements tells how much else ran.
    fn prefer(&self) {
        let _ = fs::write(format!("/proc/{}/autogroup", self.pid()), "-20");
        let process = Pid::from_raw(i32::try_from(self.pid()).unwrap_or_default());
        let _ = setpriority_process(process, -20);
    }

    fn threads(&self) -> Result<Vec<(i32, String)>, Failed> {
        let mut threads = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let entry = entry?;
            let Ok(name) = fs::read_to_string(entry.path().join("comm")) else {
                continue;
            };
            let id = entry.file_name().to_string_lossy().parse()?;
            threads.push((id, name.trim().to_owned()));
        }
        Ok(threads)
    }
}

fn set_affinity(thread: i32, cpus: &[usize]) -> Result<(), Failed> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    match sched_setaffinity(Pid::from_raw(thread), &set) {
        // A thread that has ended meanwhile disturbs nobody.
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A program built together with this one.
///
/// # Errors
/// When it has not been built.
pub fn beside_this(name: &str) -> Result<PathBuf, Failed> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is not there: make build", path.display()).into())
    }
}

/// A connection to a run's control socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
}

impl Client {
    /// A connection to this control socket, as soon as it is there.
    pub fn connect(control: &Path) -> Result<Self, Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(control) {
                Ok(stream) => {
                    let replies = BufReader::new(stream.try_clone()?);
                    return Ok(Self { stream, replies });
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Has the run carry out `method`.
    pub fn ask<M: Method>(&mut self, method: &M) -> Result<M::Result, Failed> {
        self.call(&method.call()?)
    }

    /// Has the run do `call`.
    pub fn call<T: DeserializeOwned>(&mut self, call: &Call) -> Result<T, Failed> {
        self.stream.write_all(call.line(1).as_bytes())?;
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let response: Response = serde_json::from_str(&line)?;
        match (response.result, response.error) {
            (Some(result), None) => Ok(T::deserialize(result)?),
            (_, Some(error)) => Err(error.to_string().into()),
            (None, None) => Err(format!("not a reply: {line}").into()),
        }
    }

    /// Waits until every ring fills: until then some vCPU is still booting or idle.
    pub fn wait_for_records(&mut self) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.ask(&ShowStatus(Nothing {}))?;
            let sessions = &status.tracing.sessions;
            let rings: Vec<_> = sessions.iter().flat_map(|one| &one.rings).collect();
            if !rings.is_empty() && rings.iter().all(|ring| ring.written > 0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the vCPUs do not work: {rings:?}").into());
            }
        }
    }
}
