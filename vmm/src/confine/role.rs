//! What threads are for.

/// What a thread does, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves requests, changes the guest's text, starts and ends all others.
    Main,
    /// Executes the guest.
    Vcpu,
    /// Writes what the guest prints.
    Console,
    /// Takes records out of rings and writes them to files.
    Drain,
    /// Looks at rings' heads, for their times.
    Look,
    /// Keeps the page with a clock in the guest's memory.
    Clock,
    /// Takes the signals that end or stop the process.
    Signals,
    /// Says when the main thread is late.
    Watchdog,
}

impl Role {
    /// All of them, in the order of their lists.
    pub const ALL: [Self; 8] = [
        Self::Main,
        Self::Vcpu,
        Self::Console,
        Self::Drain,
        Self::Look,
        Self::Clock,
        Self::Signals,
        Self::Watchdog,
    ];

    /// As its thread is named; vCPUs have their number, too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Vcpu => "vcpu",
            Self::Console => "console",
            Self::Drain => "drain",
            Self::Look => "look",
            Self::Clock => "clock",
            Self::Signals => "signals",
            Self::Watchdog => "watchdog",
        }
    }

    /// Whether it writes traces. Those are the only files that are written once a guest runs.
    #[must_use]
    pub const fn writes_files(self) -> bool {
        matches!(self, Self::Main | Self::Drain)
    }
}
