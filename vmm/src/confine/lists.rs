//! What each kind of thread may ask of the system, and why. Made from what it asked for while one suite of tests ran under
//! strace(1), and from what was found missing after that; docs/security.md shows it, and says which runs those were.

use std::fmt::Write;

use syscalls::Sysno;

use super::{Guest, Role};

/// A system call that may be made.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) number: Sysno,
    /// With this argument alone; else with all.
    pub(super) only: Option<Only>,
    why: &'static str,
}

/// What an argument has to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Only {
    /// Which argument, from 0 on.
    pub(super) argument: u8,
    /// These bits of it, and no others, are looked at.
    pub(super) mask: u32,
    pub(super) value: Value,
    /// As the manual has it.
    shown: &'static str,
}

/// What those bits are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Is(u32),
    /// The number of the process whose guest this is.
    Vmm,
}

impl Only {
    const fn is(argument: u8, value: u32, shown: &'static str) -> Self {
        Self {
            argument,
            mask: u32::MAX,
            value: Value::Is(value),
            shown,
        }
    }

    /// The guest's VMM (pid).
    const OF_THE_VMM: Self = Self {
        argument: 0,
        mask: u32::MAX,
        value: Value::Vmm,
        shown: "of the guest's VMM",
    };

    /// No process (clone(2)).
    const A_THREAD: Self = Self {
        argument: 0,
        mask: 0x1_0000,
        value: Value::Is(0x1_0000),
        shown: "with CLONE_THREAD",
    };

    /// Memory that cannot be executed (mmap(2), mprotect(2)).
    const NOT_EXECUTED: Self = Self {
        argument: 2,
        mask: 4,
        value: Value::Is(0),
        shown: "without PROT_EXEC",
    };
}

/// With any arguments.
const fn any(number: Sysno, why: &'static str) -> Call {
    Call {
        number,
        only: None,
        why,
    }
}

const fn only(number: Sysno, only: Only, why: &'static str) -> Call {
    Call {
        number,
        only: Some(only),
        why,
    }
}

/// Asks a device, or KVM.
const fn device(request: u32, shown: &'static str, why: &'static str) -> Call {
    only(Sysno::ioctl, Only::is(1, request, shown), why)
}

/// Every thread.
const EVERY: &[Call] = &[
    any(Sysno::brk, "memory"),
    any(Sysno::munmap, "memory"),
    any(Sysno::mremap, "memory"),
    any(Sysno::madvise, "memory"),
    only(Sysno::mmap, Only::NOT_EXECUTED, "memory"),
    only(Sysno::mprotect, Only::NOT_EXECUTED, "memory"),
    any(Sysno::futex, "locks, and waiting for another thread"),
    any(Sysno::sched_yield, "waiting for another thread"),
    any(
        Sysno::clock_gettime,
        "the time, where it cannot be read without a call",
    ),
    any(Sysno::clock_nanosleep, "the time until the next look"),
    any(
        Sysno::restart_syscall,
        "a wait goes on after the process was stopped",
    ),
    any(
        Sysno::write,
        "a line for the user; a bell of another thread",
    ),
    any(Sysno::close, "descriptors that it has"),
    any(Sysno::getpid, "to name itself"),
    any(Sysno::gettid, "to name itself"),
    any(
        Sysno::sched_getaffinity,
        "it begins: how large its stack is",
    ),
    any(
        Sysno::sigaltstack,
        "it begins and ends: the stack on which its overflow is told",
    ),
    any(Sysno::rt_sigprocmask, "it begins and ends"),
    any(Sysno::rt_sigreturn, "a signal that was taken"),
    any(Sysno::exit, "it ends"),
    any(Sysno::exit_group, "the process ends"),
    only(
        Sysno::prctl,
        Only::is(0, 16, "PR_GET_NAME"),
        "to name itself",
    ),
    only(
        Sysno::fcntl,
        Only::is(1, 1, "F_GETFD"),
        "a build with checks: what is closed is open",
    ),
    any(Sysno::getcpu, "where it runs"),
    any(Sysno::getrandom, "tables and names that nobody has guessed"),
    only(
        Sysno::tgkill,
        Only::is(2, 6, "SIGABRT"),
        "a bug ends the process",
    ),
    only(
        Sysno::rt_sigaction,
        Only::is(0, 6, "SIGABRT"),
        "a bug ends the process",
    ),
    only(
        Sysno::rt_sigaction,
        Only::is(0, 7, "SIGBUS"),
        "a bug ends the process",
    ),
    only(
        Sysno::rt_sigaction,
        Only::is(0, 11, "SIGSEGV"),
        "a bug ends the process",
    ),
    device(
        0x802c_542a,
        "TCGETS2",
        "the process ends: the terminal is put back",
    ),
    device(
        0x402c_542b,
        "TCSETS2",
        "the process ends: the terminal is put back",
    ),
    device(
        0x5401,
        "TCGETS",
        "the process ends: the terminal is put back",
    ),
    device(
        0x5402,
        "TCSETS",
        "the process ends: the terminal is put back",
    ),
    any(Sysno::getpgrp, "whether the terminal is ours"),
    device(0x540f, "TIOCGPGRP", "whether the terminal is ours"),
];

/// What a thread that makes others needs for those, which inherit its list before they have their own.
const BEGINS: &[Call] = &[
    any(Sysno::clone3, "threads of a session"),
    only(
        Sysno::clone,
        Only::A_THREAD,
        "threads of a session, where clone3 is kept from us",
    ),
    only(
        Sysno::prctl,
        Only::is(0, 38, "PR_SET_NO_NEW_PRIVS"),
        "a thread begins: its list",
    ),
    only(
        Sysno::seccomp,
        Only::is(0, 1, "SECCOMP_SET_MODE_FILTER"),
        "a thread begins: its list",
    ),
    any(
        Sysno::landlock_restrict_self,
        "a thread begins: it writes no file",
    ),
    any(Sysno::rseq, "a thread begins"),
    any(Sysno::set_robust_list, "a thread begins"),
    only(
        Sysno::prctl,
        Only::is(0, 15, "PR_SET_NAME"),
        "a thread begins: its name",
    ),
    any(
        Sysno::sched_setaffinity,
        "the clock page's thread has a CPU of its own",
    ),
];

/// Traces.
const FILES: &[Call] = &[
    any(Sysno::openat, "files of traces"),
    any(Sysno::read, "files of traces; bells and timers"),
    any(Sysno::pread64, "files of traces"),
    any(Sysno::pwrite64, "files of traces"),
    any(Sysno::writev, "files of traces"),
    any(Sysno::lseek, "files of traces"),
    any(Sysno::ftruncate, "files of traces"),
    any(Sysno::fstat, "files of traces"),
    any(Sysno::newfstatat, "files of traces"),
    any(Sysno::statx, "files of traces"),
    any(
        Sysno::rename,
        "files of traces: what is whole takes its name",
    ),
    any(Sysno::unlink, "files of traces"),
    any(
        Sysno::getdents64,
        "directories of traces: what is in them, or an older one left",
    ),
];

const MAIN: &[Call] = &[
    any(Sysno::mkdir, "directories of traces"),
    any(Sysno::unlinkat, "directories of traces"),
    any(Sysno::rmdir, "directories of traces"),
    any(Sysno::flock, "directories of traces: whose they are"),
    any(Sysno::mincore, "how much of the window is backed"),
    any(
        Sysno::readlink,
        "directories that clients name: where they lead",
    ),
    any(
        Sysno::faccessat2,
        "directories that clients name: where they lead",
    ),
    any(
        Sysno::faccessat,
        "directories that clients name: where they lead",
    ),
    any(Sysno::fcntl, "descriptors, and whether they wait"),
    any(Sysno::epoll_create1, "whatever comes first"),
    any(Sysno::epoll_wait, "whatever comes first"),
    any(Sysno::epoll_ctl, "whatever comes first"),
    any(Sysno::timerfd_settime, "whatever comes first"),
    any(Sysno::accept4, "control clients"),
    any(Sysno::recvfrom, "control clients"),
    any(Sysno::sendto, "control clients"),
    any(Sysno::shutdown, "control clients"),
    any(
        Sysno::setsockopt,
        "control clients: how long they may make it wait",
    ),
    any(Sysno::getsockopt, "control clients: who they are"),
    any(Sysno::geteuid, "control clients: who may ask"),
    device(0x5421, "FIONBIO", "control clients never make it wait"),
    any(Sysno::tgkill, "vCPUs are called out of the guest"),
    any(Sysno::getcwd, "a bug is told, with where in the source"),
    any(Sysno::wait4, "commands of triggers that have ended"),
    any(Sysno::rt_sigaction, "the process ends"),
    device(
        0x4020_ae46,
        "KVM_SET_USER_MEMORY_REGION",
        "the window comes and goes",
    ),
];

const VCPU: &[Call] = &[
    any(
        Sysno::tgkill,
        "all vCPUs are held while one waits and that is hidden",
    ),
    any(Sysno::read, "bells"),
    device(0xae80, "KVM_RUN", "the guest"),
    device(0x8090_ae81, "KVM_GET_REGS", "where the guest is"),
    device(
        0x4090_ae82,
        "KVM_SET_REGS",
        "a guest that is moved out of the way",
    ),
    device(0x8138_ae83, "KVM_GET_SREGS", "what its page tables are"),
    device(
        0x4138_ae84,
        "KVM_SET_SREGS",
        "a guest that is moved out of the way",
    ),
    device(
        0xc008_ae88,
        "KVM_GET_MSRS",
        "its counter, and where its kernel's data is",
    ),
    device(0x4008_ae89, "KVM_SET_MSRS", "its counter is set back"),
    device(
        0x8080_aea1,
        "KVM_GET_DEBUGREGS",
        "breakpoints and single steps",
    ),
    device(
        0x4080_aea2,
        "KVM_SET_DEBUGREGS",
        "breakpoints and single steps",
    ),
    device(
        0xc080_aebe,
        "KVM_GET_NESTED_STATE",
        "whether a guest of the guest runs (`--nested`)",
    ),
    device(
        0x4018_aee1,
        "KVM_SET_DEVICE_ATTR",
        "its counter is set back",
    ),
    device(
        0x4018_aee2,
        "KVM_GET_DEVICE_ATTR",
        "its counter is set back",
    ),
    device(
        0x4048_ae9b,
        "KVM_SET_GUEST_DEBUG",
        "breakpoints and single steps",
    ),
];

/// What `vmm attach` of another process calls in the name of a vCPU's thread. It lifts this list meanwhile; if it is killed
/// just then, the call is made under it.
const ATTACHED: &[Call] = &[
    any(Sysno::memfd_create, "`vmm attach` brings memory"),
    device(
        0x4020_ae46,
        "KVM_SET_USER_MEMORY_REGION",
        "`vmm attach` brings memory",
    ),
    device(
        0xc018_aec0,
        "KVM_CLEAR_DIRTY_LOG",
        "`vmm attach` asks whether written pages are noted",
    ),
    device(
        0xc008_ae91,
        "KVM_GET_CPUID2",
        "`vmm attach` looks at the vCPU",
    ),
    device(0xaea3, "KVM_GET_TSC_KHZ", "`vmm attach` looks at the vCPU"),
];

const SIGNALS: &[Call] = &[
    any(Sysno::read, "signals"),
    any(
        Sysno::ppoll,
        "whether another one has come before Ctrl-Z stops it, and whether last words are taken",
    ),
    any(Sysno::rt_sigaction, "a second signal ends the process"),
    any(
        Sysno::tgkill,
        "a second signal ends the process; Ctrl-Z stops it",
    ),
];

/// Reads the memory of a guest whose VMM is another process.
const ITS_MEMORY: &[Call] = &[only(
    Sysno::process_vm_readv,
    Only::OF_THE_VMM,
    "the guest's memory, where it cannot be mapped",
)];

/// Reads how long the threads of another process have run.
const ITS_TIMES: &[Call] = &[any(
    Sysno::pread64,
    "files that it has: how long vCPUs have run",
)];

/// All that a thread of this role may call, a call more than once where several of its arguments may be.
pub(super) fn calls(role: Role, guest: Guest) -> impl Iterator<Item = &'static Call> {
    let more = match guest {
        Guest::Own => &[],
        Guest::OfProcess(_) => parts_attached(role),
    };
    parts(role).iter().chain(more).flat_map(|part| part.iter())
}

const fn parts(role: Role) -> &'static [&'static [Call]] {
    match role {
        // Whom it starts has its list, too.
        Role::Main => &[EVERY, BEGINS, FILES, MAIN],
        Role::Vcpu => &[EVERY, VCPU, ATTACHED],
        Role::Drain => &[EVERY, FILES],
        Role::Signals => &[EVERY, SIGNALS],
        Role::Console | Role::Look | Role::Clock | Role::Watchdog => &[EVERY],
    }
}

/// What is on it with `vmm attach`, too.
const fn parts_attached(role: Role) -> &'static [&'static [Call]] {
    match role {
        Role::Drain | Role::Look => &[ITS_MEMORY],
        Role::Clock => &[ITS_TIMES],
        _ => &[],
    }
}

/// The lists as docs/security.md has them.
#[must_use]
pub fn as_markdown() -> String {
    let mut text = String::from("| threads | system call | only | why |\n|---|---|---|---|\n");
    let each: Vec<_> = Role::ALL.iter().map(|role| role.name()).collect();
    let with_files = "main, drain".to_owned();
    for (who, list) in [
        (each.join(", "), EVERY),
        (with_files, FILES),
        ("main".to_owned(), BEGINS),
        ("main".to_owned(), MAIN),
        ("vcpu".to_owned(), VCPU),
        ("vcpu".to_owned(), ATTACHED),
        ("signals".to_owned(), SIGNALS),
        ("drain, look of `vmm attach`".to_owned(), ITS_MEMORY),
        ("clock of `vmm attach`".to_owned(), ITS_TIMES),
    ] {
        for call in list {
            let only = call.only.map_or("", |only| only.shown);
            // Text grows without fail.
            let _ = writeln!(
                text,
                "| {who} | `{}` | {only} | {} |",
                call.number, call.why
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::requests;

    /// One was not: a VMM of ours ended when who was attached was killed as that call was made.
    #[test]
    fn what_is_asked_in_the_name_of_a_vcpus_thread_is_on_its_list() {
        let is_on_it = |request: u64| {
            let mut all = VCPU.iter().chain(ATTACHED);
            all.any(|call| {
                let value = call.only.map(|only| only.value);
                call.number == Sysno::ioctl
                    && matches!(value, Some(Value::Is(value)) if u64::from(value) == request)
            })
        };
        for request in [
            requests::RUN,
            requests::GET_REGS,
            requests::GET_SREGS,
            requests::GET_MSRS,
            requests::GET_CPUID2,
            requests::GET_TSC_KHZ,
            requests::GET_DEVICE_ATTR,
            requests::SET_MEMORY,
            requests::CLEAR_LOG,
        ] {
            assert!(is_on_it(request), "{request:#x}");
        }
    }
}
