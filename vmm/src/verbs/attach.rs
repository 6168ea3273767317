//! Options of `vmm attach`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::options::as_root::AsRoot;
use crate::options::held::Held;
use crate::options::quantities;
use crate::options::traced::Traced;
use crate::options::trigger::{Action, Trigger};
use trace::export::uftrace::ExportError;
use tracer::tracing::options::{SessionOptions, TracingOptions};

/// Trace a guest that another VMM runs, and let it go as it was
///
/// The VMM is any that uses KVM; it and its guest notice nothing but pauses: of some milliseconds, up to some hundred, when you
/// attach (it is said how long), later of microseconds. Ctrl-C, --duration or `vmm ctl shutdown` ends it: the trace is finished, and what was changed in the guest is given back. So does a reset of the guest,
/// and a kernel that it starts in place of its own (kexec).
///
/// Let a guest go before it migrates, or a snapshot of it is taken or loaded (savevm, loadvm): its memory goes to a place
/// where what the changed text leads to is not.
///
/// Example: vmm attach 4711 --trace graph --graph-function do_sys_openat2 --duration 5s --output opens
#[derive(Debug, Args)]
pub struct AttachOptions {
    /// The guest: the process of its VMM, or the name that its VMM has for it (default: the only one of this host)
    #[arg(value_name = "GUEST")]
    pub guest: Option<String>,
    /// The file of the kernel that the guest runs: a 64-bit ELF file, or a bzImage (vmlinuz). A Linux may have been moved
    /// (KASLR) (default: a Linux is read out of the guest's memory)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Take the kernel's symbols from its unstripped file
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub symbols: Option<PathBuf>,
    /// Let the trace tell when each vCPU's thread enters the guest (host:kvm_entry), and when and why it is back
    /// (host:kvm_exit), as the host's kernel has it. Takes root
    #[arg(long, requires = "trace")]
    pub host_events: bool,
    /// Listen for `vmm ctl` on this Unix socket (mode 0600; removed at the end)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Let the guest go after this many seconds, or after a time with a unit, as 2min
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = quantities::limit)]
    pub duration: Option<Duration>,
    /// When the guest is reset, or runs another kernel, wait until it can be traced again, and go on; the second trace is
    /// written to DIR.2, and so on. `vmm ctl` connects anew. Without this a reset ends the trace
    #[arg(long)]
    pub follow: bool,
    /// Give the guest back what a tracer that was killed has left in it, and trace nothing. (Attaching does so, too)
    #[arg(long, conflicts_with_all = ["kernel", "symbols", "host_events", "control", "duration", "follow"])]
    pub restore: bool,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub as_root: AsRoot,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub held: Held,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub traced: Traced,
}

impl AttachOptions {
    /// The part that is about tracing, of a guest with so many vCPUs; the trace of its `kernel`th kernel has a directory of
    /// its own.
    #[must_use]
    pub fn tracing(&self, vcpus: u16, kernel: u32) -> TracingOptions {
        let options = self.traced.to_tracing();
        let output = options.session.output.map(|path| numbered(path, kernel));
        // Nothing of that name was there at the beginning: what is, an attempt has left that failed.
        let force = options.session.force || kernel > 1;
        TracingOptions {
            is_running: true,
            vcpus,
            session: SessionOptions {
                output,
                force,
                ..options.session
            },
            ..options
        }
    }

    /// The triggers of the `kernel`th kernel: their dumps have names of their own, too.
    #[must_use]
    pub fn triggers(&self, kernel: u32) -> Vec<Trigger> {
        let mut triggers = self.traced.session.trigger.clone();
        for trigger in &mut triggers {
            if let Action::Dump(dump) = &mut trigger.action {
                dump.directory = of_kernel(std::mem::take(&mut dump.directory), kernel);
            }
        }
        triggers
    }

    /// Whether there is nothing where traces of later kernels would go.
    ///
    /// # Errors
    /// [`ExportError::Exists`] for one that is there.
    pub fn check_later(&self) -> Result<(), ExportError> {
        let session = &self.traced.session;
        let Some(output) = session.output.as_ref().filter(|_| !session.force) else {
            return Ok(());
        };
        let Some(name) = output.file_name().and_then(|name| name.to_str()) else {
            return Ok(());
        };
        let folder = match output.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let beside = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let is_later = |other: &str| {
            let number = other.strip_prefix(name)?.strip_prefix('.')?;
            number.parse::<u32>().ok().filter(|number| *number > 1)
        };
        let mut later = beside.filter(|one| one.file_name().to_str().and_then(is_later).is_some());
        match later.next() {
            Some(later) => Err(ExportError::Exists(later.path())),
            None => Ok(()),
        }
    }
}

/// The directory itself of the first, `DIR.kernel-2` of the second: `DIR.2` is that of a trigger's second time.
fn of_kernel(directory: PathBuf, number: u32) -> PathBuf {
    if number < 2 {
        return directory;
    }
    let mut name = directory.into_os_string();
    name.push(format!(".kernel-{number}"));
    name.into()
}

/// The directory itself of the first, `DIR.2` of the second.
fn numbered(directory: PathBuf, number: u32) -> PathBuf {
    if number < 2 {
        return directory;
    }
    let mut name = directory.into_os_string();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        options: AttachOptions,
    }

    #[test]
    fn the_first_trace_has_the_name_that_was_given() {
        let of = |number| numbered("a/opens".into(), number).display().to_string();
        assert_eq!((of(1), of(2)), ("a/opens".into(), "a/opens.2".into()));
        let of = |number| of_kernel("a/slow".into(), number).display().to_string();
        assert_eq!((of(1), of(2)), ("a/slow".into(), "a/slow.kernel-2".into()));
    }

    /// The dump of a second kernel once went where that of the first was, and failed.
    #[test]
    fn what_is_dumped_of_each_kernel_has_a_name_of_its_own() {
        let trigger = "f > 5ms: dump a/slow";
        let words = ["vmm", "7", "--trace", "graph", "--trigger", trigger];
        let options = Only::try_parse_from(words).unwrap().options;
        for (kernel, directory) in [(1, "a/slow"), (2, "a/slow.kernel-2")] {
            let expected = trigger.replace("a/slow", directory).parse::<Trigger>();
            let triggers = options.triggers(kernel);
            let actions: Vec<&Action> = triggers.iter().map(|one| &one.action).collect();
            assert_eq!(actions, [&expected.unwrap().action]);
        }
    }

    /// It was once found out when the guest had been reset, and tried again and again.
    #[test]
    fn a_trace_in_the_way_of_a_later_one_is_found_at_the_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("seen");
        let options = |more: &[&str]| {
            let words = ["vmm", "7", "--trace", "graph", "--follow", "--output"];
            let words = words
                .into_iter()
                .map(Into::into)
                .chain([output.clone().into_os_string()]);
            let words = words.chain(more.iter().map(Into::into));
            Only::try_parse_from(words).unwrap().options
        };
        for harmless in ["seen", "seen.1", "seen.x", "other.2", "seen.2x"] {
            std::fs::create_dir(folder.path().join(harmless)).unwrap();
            assert_eq!(options(&[]).check_later().ok(), Some(()), "{harmless}");
        }
        let later = folder.path().join("seen.12");
        std::fs::create_dir(&later).unwrap();
        let refused = options(&[]).check_later().unwrap_err().to_string();
        assert!(refused.contains(&later.display().to_string()), "{refused}");
        options(&["--force"]).check_later().unwrap();
    }
}
