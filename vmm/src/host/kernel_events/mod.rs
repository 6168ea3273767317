//! What the host's own kernel says of entries into a guest and exits from it: its events `kvm_entry` and `kvm_exit`, read from
//! an instance of its tracer that is ours alone. Unlike what threads tell of themselves, these include the exits that the
//! kernel serves by itself, and they are there for guests of other VMMs.

mod format;
mod instance;
mod reason;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use terms::addr::Gva;
use trace::export::trace_dat::page;
use trace::host::{HostStep, HostThread};
use tracer::host_events::HostSource;

use self::format::{Entry, Exit};
use self::instance::Instance;

/// Where kernels have their tracer, the newer place first.
const TRACER: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The parts of KVM that have these events.
const HAVE_EVENTS: [&str; 2] = ["kvm_amd", "kvm_intel"];
/// Pages that are read of one CPU for one question.
const PAGES_MAX: usize = 1024;

/// Why the kernel tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum KernelEventsError {
    /// Its tracer is not to be seen.
    #[error(
        "the events kvm:kvm_entry and kvm:kvm_exit of this host are not to be had below {}: mount it (mount -t tracefs nodev {}), as root",
        TRACER[0],
        TRACER[0]
    )]
    NoTracer,
    /// What executes its guests has no such events.
    #[error(
        "the KVM of this host tells nothing of entries and exits: neither {} nor {} executes its guests",
        HAVE_EVENTS[0],
        HAVE_EVENTS[1]
    )]
    OtherKvm,
    /// The system refuses it.
    #[error("{}: {source}; the events of the host's kernel take root", path.display())]
    Refused {
        /// What was opened or written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The events are not as they are known.
    #[error("{} does not say where {what} is", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is missed in it.
        what: &'static str,
    },
}

/// Reads them.
#[derive(Debug)]
pub struct KernelEvents {
    cpus: Vec<Cpu>,
    /// The vCPU that each thread executes.
    vcpus: BTreeMap<u32, u16>,
    entry: Entry,
    exit: Exit,
    /// Where each vCPU was when it came back last: older kernels do not say where it goes on.
    at: BTreeMap<u16, Gva>,
    /// Where its threads are named. A thread that begins may not open files any more.
    threads: File,
    page: Vec<u8>,
    /// After the files in it: it goes when this is dropped.
    instance: Instance,
}

/// A CPU of the host.
#[derive(Debug)]
struct Cpu {
    number: u16,
    /// Its events.
    file: File,
    /// Those that were lost, and have not been told.
    lost: u32,
}

impl KernelEvents {
    /// From now on, of the threads that are named later as those of vCPUs.
    ///
    /// # Errors
    /// [`KernelEventsError`].
    pub fn new() -> Result<Self, KernelEventsError> {
        let modules = Path::new("/sys/module");
        if !HAVE_EVENTS.iter().any(|name| modules.join(name).exists()) {
            return Err(KernelEventsError::OtherKvm);
        }
        let kvm = |root: &&&str| Path::new(root).join("events/kvm").exists();
        let root = TRACER.iter().find(kvm);
        let root = root.ok_or(KernelEventsError::NoTracer)?;
        let instance = Instance::make(Path::new(root))?;
        let entry = Entry::read(&instance.path("events/kvm/kvm_entry/format"))?;
        let exit = Exit::read(&instance.path("events/kvm/kvm_exit/format"))?;
        // The counter itself: times that can be compared with those of the guest.
        instance.write("trace_clock", "x86-tsc")?;
        // Of nobody yet: this thread executes no guest.
        instance.write("set_event_pid", &std::process::id().to_string())?;
        let threads = instance.appending("set_event_pid")?;
        let cpus = instance.cpus()?.into_iter();
        let cpus = cpus.map(|(number, file)| Cpu {
            number,
            file,
            lost: 0,
        });
        let cpus = cpus.collect();
        for event in ["kvm_entry", "kvm_exit"] {
            instance.write(&format!("events/kvm/{event}/enable"), "1")?;
        }
        Ok(Self {
            cpus,
            vcpus: BTreeMap::new(),
            entry,
            exit,
            at: BTreeMap::new(),
            threads,
            page: vec![0; page::PAGE],
            instance,
        })
    }

    /// The directory that its instance goes from at the end.
    #[must_use]
    pub fn instances(&self) -> PathBuf {
        self.instance.folder().to_owned()
    }

    /// What a page of a CPU says.
    fn steps(&mut self, page: &[u8], cpu: &mut Cpu, to: &mut dyn FnMut(u16, u64, HostStep)) {
        let mut first = None;
        let lost = page::events(page, |ticks, bytes| {
            if let Some((vcpu, step)) = self.step(cpu.number, bytes) {
                first = first.or(Some((vcpu, ticks)));
                to(vcpu, ticks, step);
            }
        });
        cpu.lost = cpu
            .lost
            .saturating_add(u32::try_from(lost).unwrap_or(u32::MAX));
        // Of which vCPU is not known: of the one that comes next on this CPU.
        if cpu.lost > 0
            && let Some((vcpu, ticks)) = first
        {
            let lost = std::mem::take(&mut cpu.lost);
            to(vcpu, ticks.saturating_sub(1), HostStep::Lost(lost));
        }
    }

    /// What an event of a CPU says, and of which vCPU.
    fn step(&mut self, cpu: u16, bytes: &[u8]) -> Option<(u16, HostStep)> {
        let (tid, rip, reason) = match self.entry.of(bytes) {
            Some((tid, rip)) => (tid, rip, None),
            None => {
                let (tid, rip, reason) = self.exit.of(bytes)?;
                (tid, Some(rip), Some(reason))
            }
        };
        // Other guests have threads of their own.
        let vcpu = *self.vcpus.get(&tid)?;
        let known = self.at.get(&vcpu).copied();
        let rip = rip.or(known).unwrap_or_default();
        let thread = HostThread { tid, cpu, rip };
        Some(match reason {
            None => (vcpu, HostStep::Entry(thread)),
            Some(reason) => {
                self.at.insert(vcpu, rip);
                (vcpu, HostStep::Exit(thread, reason))
            }
        })
    }
}

impl HostSource for KernelEvents {
    fn executes(&mut self, thread: u32, vcpu: u16) {
        self.vcpus.insert(thread, vcpu);
        if let Err(error) = self.threads.write_all(format!("{thread}\n").as_bytes()) {
            log::warn!("nothing is told of vCPU {vcpu}: {error}");
        }
    }

    fn read(&mut self, to: &mut dyn FnMut(u16, u64, HostStep)) {
        let mut page = std::mem::take(&mut self.page);
        let mut cpus = std::mem::take(&mut self.cpus);
        for cpu in &mut cpus {
            for _ in 0..PAGES_MAX {
                // Nothing more is an error, too: nobody waits for it.
                let read = cpu.file.read(&mut page).unwrap_or_default();
                if read == 0 {
                    break;
                }
                self.steps(page.get(..read).unwrap_or(&page), cpu, to);
            }
        }
        (self.page, self.cpus) = (page, cpus);
    }
}
