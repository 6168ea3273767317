//! What the host did with a vCPU: when it entered the guest, when it was back, and why. Names are as those of Linux' own events
//! of KVM (`kvm_entry`, `kvm_exit`), which it may be; or it is what the thread that runs the vCPU saw, and then an exit that the
//! kernel serves by itself is not among them.

use terms::addr::Gva;
use terms::field::FieldValue;

/// The start of the names of these events: no event of a guest has a colon in its name.
pub const HOST: &str = "host:";
/// The vCPU's thread enters the guest.
pub const ENTRY: &str = "host:kvm_entry";
/// It is back.
pub const EXIT: &str = "host:kvm_exit";

/// One such thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostStep {
    /// The thread enters the guest.
    Entry(HostThread),
    /// It is back.
    Exit(HostThread, ExitReason),
    /// So many of these were lost.
    Lost(u32),
}

/// Who, and where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostThread {
    /// The thread of the host.
    pub tid: u32,
    /// The CPU of the host it was on.
    pub cpu: u16,
    /// Where the guest goes on.
    pub rip: Gva,
}

/// Why a vCPU came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitReason {
    /// It was asked to: a signal, or an order to leave.
    Kicked,
    /// It wrote to a port.
    PortWrite,
    /// It read from a port.
    PortRead,
    /// It wrote to memory that is none.
    MmioWrite,
    /// It read from memory that is none.
    MmioRead,
    /// A debug exception.
    Debug,
    /// The guest is over.
    Shutdown,
    /// Anything else.
    Other,
    /// Something of the host interrupted it.
    Interrupt,
    /// The guest can be interrupted now.
    Interruptible,
    /// It went to memory that is not mapped, or is none.
    PageFault,
    /// It has nothing to do.
    Halt,
    /// It spins.
    Pause,
    /// It calls its VMM.
    Hypercall,
    /// It asks what its processor can do.
    Cpuid,
    /// It reads or writes a model-specific register.
    Msr,
    /// It reads or writes a control register.
    ControlRegister,
    /// An exception of another kind.
    Exception,
    /// It goes to its interrupt controller.
    Apic,
    /// A timer that was set for it.
    Timer,
}

impl ExitReason {
    /// All of them, by number.
    pub const ALL: [Self; 20] = [
        Self::Kicked,
        Self::PortWrite,
        Self::PortRead,
        Self::MmioWrite,
        Self::MmioRead,
        Self::Debug,
        Self::Shutdown,
        Self::Other,
        Self::Interrupt,
        Self::Interruptible,
        Self::PageFault,
        Self::Halt,
        Self::Pause,
        Self::Hypercall,
        Self::Cpuid,
        Self::Msr,
        Self::ControlRegister,
        Self::Exception,
        Self::Apic,
        Self::Timer,
    ];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kicked => "kicked",
            Self::PortWrite => "port_write",
            Self::PortRead => "port_read",
            Self::MmioWrite => "mmio_write",
            Self::MmioRead => "mmio_read",
            Self::Debug => "debug",
            Self::Shutdown => "shutdown",
            Self::Other => "other",
            Self::Interrupt => "interrupt",
            Self::Interruptible => "interruptible",
            Self::PageFault => "page_fault",
            Self::Halt => "halt",
            Self::Pause => "pause",
            Self::Hypercall => "hypercall",
            Self::Cpuid => "cpuid",
            Self::Msr => "msr",
            Self::ControlRegister => "control_register",
            Self::Exception => "exception",
            Self::Apic => "apic",
            Self::Timer => "timer",
        }
    }
}

impl HostStep {
    /// What it is called; a loss has no name.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Entry(_) => Some(ENTRY),
            Self::Exit(..) => Some(EXIT),
            Self::Lost(_) => None,
        }
    }

    /// What is known of it, by name.
    #[must_use]
    pub fn fields(self) -> Vec<(&'static str, FieldValue)> {
        let (thread, reason) = match self {
            Self::Entry(thread) => (thread, None),
            Self::Exit(thread, reason) => (thread, Some(reason)),
            Self::Lost(_) => return Vec::new(),
        };
        let reason = reason.map(|reason| {
            let name = reason.name().into();
            ("reason", FieldValue::Enumerator { name })
        });
        let place = [("tid", thread.tid), ("cpu", thread.cpu.into())];
        let place = place.map(|(name, number)| (name, FieldValue::Unsigned(number.into())));
        let rip = [("rip", FieldValue::Pointer(thread.rip))];
        reason.into_iter().chain(rip).chain(place).collect()
    }
}
