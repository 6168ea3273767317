//! What the host did with a vCPU, as the thread that runs it saw it: when it entered the guest, when it was back, and why.
//! Times and names are as those of Linux' own events of KVM (`kvm_entry`, `kvm_exit`), seen from user space: an exit that
//! the kernel serves by itself is not among them.

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
}

impl ExitReason {
    /// All of them, by number.
    pub const ALL: [Self; 8] = [
        Self::Kicked,
        Self::PortWrite,
        Self::PortRead,
        Self::MmioWrite,
        Self::MmioRead,
        Self::Debug,
        Self::Shutdown,
        Self::Other,
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
