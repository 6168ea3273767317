//! `vmm attach` to the guest of another process, away from the CPUs of its vCPUs where there are others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Failed;
use super::guest::{Client, Guest, beside_this};
use crate::place;

/// One that is attached.
#[derive(Debug)]
pub struct Attached {
    child: Child,
    control: PathBuf,
    /// When `vmm attach` was started.
    pub started: Instant,
}

/// Ends with the measurement, also with one that failed.
impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Attached {
    /// Attaches to `guest`, which has `vcpus` vCPUs; `arguments` are those of `vmm attach` besides kernel and control
    /// socket, which is made in `place`.
    pub fn to(
        guest: &Guest,
        vcpus: usize,
        place: &Path,
        arguments: &[&str],
    ) -> Result<Self, Failed> {
        let control = place.join("attached");
        let _ = fs::remove_file(&control);
        let mut command = place::starts_vmm(beside_this("vmm")?);
        command.args(["attach", &guest.pid().to_string(), "--kernel"]);
        command.arg(place::guest()).arg("--control").arg(&control);
        command.args(arguments).env("RUST_LOG", "error");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let own = sched_getaffinity(None)?;
        sched_setaffinity(None, &others(&own, vcpus))?;
        let started = Instant::now();
        let child = command.spawn();
        sched_setaffinity(None, &own)?;
        Ok(Self {
            child: child?,
            control,
            started,
        })
    }

    /// A connection to the control socket.
    pub fn connect(&self) -> Result<Client, Failed> {
        Client::connect(&self.control)
    }

    /// KiB of memory by their names in `/proc/PID/status`, added up.
    pub fn memory_kib(&self, names: &[&str]) -> Result<u64, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let mut sum = 0;
        for line in status.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            if names.contains(&name) {
                let kib = value.split_whitespace().next().ok_or("no number")?;
                sum += kib.parse::<u64>()?;
            }
        }
        Ok(sum)
    }

    /// Waits until it has ended by itself, which it must do well.
    pub fn finish(mut self) -> Result<(), Failed> {
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("vmm attach ended with {status}").into()),
        }
    }
}

/// All CPUs but the last, on which vCPUs are; all if none would be left.
fn others(own: &CpuSet, vcpus: usize) -> CpuSet {
    let all: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| own.is_set(*cpu))
        .collect();
    let left = all.len().checked_sub(vcpus).filter(|left| *left > 0);
    let mut set = CpuSet::new();
    let free = all.iter().take(left.unwrap_or(all.len()));
    free.for_each(|cpu| set.set(*cpu));
    set
}
