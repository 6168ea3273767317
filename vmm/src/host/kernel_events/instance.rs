//! An instance of the kernel's tracer: buffers, events and a clock of its own, so that whoever uses the tracer of this host is
//! not disturbed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::KernelEventsError;

/// What the names of ours begin with; then comes our process.
const OURS: &str = "exotrace-";

/// It is there as long as this is.
#[derive(Debug)]
pub(super) struct Instance {
    at: PathBuf,
}

impl Instance {
    /// Makes one, and takes those away that were left by processes that were killed.
    pub fn make(root: &Path) -> Result<Self, KernelEventsError> {
        let instances = root.join("instances");
        for left in left_in(&instances) {
            log::debug!("{} was left by a tracer that was killed", left.display());
            drop(Self { at: left });
        }
        let at = instances.join(format!("{OURS}{}", std::process::id()));
        match fs::create_dir(&at) {
            Ok(()) => Ok(Self { at }),
            Err(source) => Err(KernelEventsError::Refused { path: at, source }),
        }
    }

    /// The directory that it is in.
    pub fn folder(&self) -> &Path {
        self.at.parent().unwrap_or(&self.at)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<(), KernelEventsError> {
        let path = self.path(name);
        fs::write(&path, text).map_err(|source| KernelEventsError::Refused { path, source })
    }

    /// A file to which more is written.
    pub fn appending(&self, name: &str) -> Result<File, KernelEventsError> {
        let path = self.path(name);
        let file = OpenOptions::new().append(true).open(&path);
        file.map_err(|source| KernelEventsError::Refused { path, source })
    }

    /// The raw events of each CPU; a read does not wait.
    pub fn cpus(&self) -> Result<Vec<(u16, File)>, KernelEventsError> {
        let folder = self.path("per_cpu");
        let refused = |path: &Path| {
            let path = path.to_owned();
            |source| KernelEventsError::Refused { path, source }
        };
        let mut cpus = Vec::new();
        for entry in fs::read_dir(&folder).map_err(refused(&folder))? {
            let path = entry.map_err(refused(&folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            let Some(number) = number else { continue };
            let path = path.join("trace_pipe_raw");
            let mut options = OpenOptions::new();
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let file = options.read(true).custom_flags(flags).open(&path);
            cpus.push((number, file.map_err(refused(&path))?));
        }
        Ok(cpus)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // An instance goes as a whole, with what is switched on in it; nobody can be told where it does not.
        if let Err(error) = fs::remove_dir(&self.at) {
            log::warn!("{} stays: {error}", self.at.display());
        }
    }
}

/// Those of processes that are no more.
fn left_in(instances: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(instances).into_iter().flatten();
    let all = all.filter_map(|entry: io::Result<_>| Some(entry.ok()?.path()));
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.strip_prefix(OURS)?.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    all.filter(is_left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_by_the_dead_goes_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let instances = root.path().join("instances");
        let own = format!("{OURS}{}", std::process::id());
        // No process has such a number: it is more than Linux gives.
        for name in ["exotrace-4194305", "exotrace-", "mine", &own] {
            fs::create_dir_all(instances.join(name)).unwrap();
        }
        assert_eq!(left_in(&instances), [instances.join("exotrace-4194305")]);
        fs::remove_dir(instances.join(&own)).unwrap();
        let instance = Instance::make(root.path()).unwrap();
        assert!(!instances.join("exotrace-4194305").exists());
        assert!(instances.join("mine").exists());
        let again = Instance::make(root.path()).unwrap_err();
        assert!(again.to_string().contains("take root"), "{again}");
        drop(instance);
        assert!(!instances.join(&own).exists());
        let none = Instance::make(&root.path().join("no"));
        let _ = none.unwrap_err();
    }
}
