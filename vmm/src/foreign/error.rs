//! Why a guest of another VMM could not be reached.

use std::io;

use terms::addr::Gpa;

/// Why a guest of another VMM could not be reached. Nothing of ours is in it then.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// It does not run.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: i32,
    },
    /// It has no virtual machine.
    #[error("process {pid} has no KVM virtual machine: `vmm ps` lists those that have")]
    NotVmm {
        /// Its number.
        pid: i32,
    },
    /// It has more than one.
    #[error("process {pid} has {vms} virtual machines: which one is meant cannot be said yet")]
    SeveralVms {
        /// Its number.
        pid: i32,
        /// How many.
        vms: usize,
    },
    /// It has several descriptors, and the system does not say whether they are of one.
    #[error(
        "process {pid} has {descriptors} descriptors of virtual machines, and whether they are of one cannot be told: kcmp: {source}; it takes root, or CAP_SYS_PTRACE and the same user, and a kernel with CONFIG_KCMP"
    )]
    UntoldVms {
        /// Its number.
        pid: i32,
        /// How many.
        descriptors: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else traces it.
    #[error(
        "the guest of process {pid} is traced by somebody else who is attached to it: one at a time can be"
    )]
    Traced {
        /// Its number.
        pid: i32,
    },
    /// There is nothing of that name.
    #[error("no guest is called '{name}': `vmm ps` lists those that there are")]
    NoSuchGuest {
        /// What was asked for.
        name: String,
    },
    /// There is none, or it is not clear which is meant.
    #[error("{}", which_guest(*.guests))]
    WhichGuest {
        /// How many could be.
        guests: usize,
    },
    /// The system does not show it.
    #[error(
        "/proc/{pid}/{what} cannot be read: {source}; it takes root, or CAP_SYS_PTRACE and the same user"
    )]
    Proc {
        /// The process.
        pid: i32,
        /// Which file.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not let its mapped files be opened.
    #[error(
        "the files that process {pid} has mapped cannot be opened (/proc/{pid}/map_files): {source}; who traces its guest, and who gives it back what a killed tracer has left, opens one: it takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN, in the initial user namespace"
    )]
    MapFiles {
        /// The process.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not give one of its descriptors.
    #[error(
        "descriptor {fd} of process {pid} is not to be had: {source}; it takes root, or CAP_SYS_PTRACE"
    )]
    Descriptor {
        /// The process.
        pid: i32,
        /// Its number there.
        fd: i32,
        /// What the system said.
        source: io::Error,
    },
    /// It has closed the descriptor of a vCPU.
    #[error(
        "process {pid} has closed vCPU {vcpu} of its guest: nothing can be asked of it any more"
    )]
    Closed {
        /// The process.
        pid: i32,
        /// Its number.
        vcpu: u16,
    },
    /// A thread could not be traced.
    #[error(
        "thread {thread} of the VMM cannot be held: {what}: {source}; {}",
        held_by(*tracer)
    )]
    Ptrace {
        /// The thread.
        thread: i32,
        /// What was tried.
        what: &'static str,
        /// The process that traces it, if one does.
        tracer: Option<i32>,
        /// What the system said.
        source: io::Error,
    },
    /// A thread did not stop in time.
    #[error(
        "thread {thread} of the VMM did not come to a stop in time while {what}; it goes on unchanged as soon as it does"
    )]
    Late {
        /// The thread.
        thread: i32,
        /// What was waited for.
        what: &'static str,
    },
    /// A thread has ended.
    #[error("thread {thread} of the VMM has ended")]
    Ended {
        /// The thread.
        thread: i32,
    },
    /// No call can be made in the VMM's name.
    #[error(
        "process {pid} has no code by which calls can be made in its name so that it would survive our death (`syscall; ret`, and a return from signals, as every C library has them)"
    )]
    NoWayBack {
        /// The process.
        pid: i32,
    },
    /// A call in the VMM's name failed.
    #[error("{call} in the name of the VMM failed: {source}")]
    Call {
        /// Which.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Its memory could not be read or written.
    #[error("{bytes} bytes at {at:#x} of process {pid} cannot be accessed: {source}")]
    Access {
        /// The process.
        pid: i32,
        /// Where.
        at: u64,
        /// How many.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// What is done to a guest that is held was to be done to one that is not, or to a vCPU that it has not.
    #[error("vCPU {vcpu} of process {pid} is not held: pause the guest first")]
    NotHeld {
        /// The process.
        pid: i32,
        /// The vCPU.
        vcpu: u16,
    },
    /// No thread executes a vCPU that has something half done.
    #[error(
        "no thread of process {pid} executes vCPU {vcpu}, and what it did last is half done: is its guest to be let run first?"
    )]
    NoThread {
        /// The process.
        pid: i32,
        /// The vCPU.
        vcpu: u16,
    },
    /// The guest's memory was not found.
    #[error(
        "the guest's memory was not found in process {pid}: {tried} of its mappings were tried, none is what KVM has at guest physical address {at}{}",
        if *.is_ours { "; it is a `vmm run`, whose guest has memory for tracing once that has traced it: trace it by its --control" } else { "" }
    )]
    NoMemory {
        /// The process.
        pid: i32,
        /// How many.
        tried: usize,
        /// Where it was looked for.
        at: Gpa,
        /// Whether it is this program, which gives its guest memory of its own when it traces it.
        is_ours: bool,
    },
    /// The guest's memory cannot be looked for without risk.
    #[error(
        "whether KVM notes which pages of the guest are written (a migration, snapshots) cannot be asked here ({}), and looking for its \
         memory would end that: QEMU is to be started without `dirty-ring-size`, and Linux to be 5.0 or newer",
        .0.as_ref().map_or_else(|| "it answers what makes no sense".to_owned(), ToString::to_string)
    )]
    Logs(Option<io::Error>),
    /// Our memory could not be made.
    #[error("{what}: {source}")]
    Window {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room for it in the guest's physical address space.
    #[error(
        "no place for tracing memory among the {bits}-bit physical addresses of the guest: {tried} were refused, the last one with: {source}"
    )]
    NoPlace {
        /// What its processors can address.
        bits: u32,
        /// How many were tried.
        tried: usize,
        /// What KVM said.
        source: io::Error,
    },
    /// None of its vCPUs executes 64-bit code.
    #[error(
        "no vCPU of the guest executes 64-bit code with paging: it has not started yet, or is none that can be traced"
    )]
    Not64Bit,
}

impl ForeignError {
    /// What the system said when a file was to be opened that a process has mapped.
    pub(super) fn of_map_files(pid: i32, source: io::Error) -> Self {
        // Who may not look at the process at all is told another one.
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::MapFiles { pid, source },
            _ => Self::Proc {
                pid,
                what: "map_files",
                source,
            },
        }
    }
}

/// What it takes to hold a thread, or who has it.
fn held_by(tracer: Option<i32>) -> String {
    match tracer {
        None => "it takes root or CAP_SYS_PTRACE, kernel.yama.ptrace_scope below 3, and nobody else who traces it".to_owned(),
        Some(pid) => format!("process {pid} traces it: end that first"),
    }
}

/// Why it is not clear which guest is meant, and what to do.
fn which_guest(guests: usize) -> String {
    match guests {
        0 => "no guest runs on this host, as far as you may see (`vmm ps` lists those that do; root sees all)".to_owned(),
        _ => format!(
            "{guests} guests of this host could be meant: name one by its process or its name (`vmm ps` lists them)"
        ),
    }
}
