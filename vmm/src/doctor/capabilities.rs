//! What KVM says that it can do.

use kvm_ioctls::{Cap, Kvm};

use crate::machine::most_vcpus;

use super::check::{Check, NEWER_KVM, Need, Subject};

/// `IA32_TIME_STAMP_COUNTER`.
const MSR_TSC: u32 = 0x10;

const TSC_MSR: Subject = Subject {
    name: "MSR of the TSC",
    need: Need::Required,
    means: "the guest's clock cannot be read",
    mend: NEWER_KVM,
};

const MEMSLOTS: Subject = Subject {
    name: "memory slots",
    need: Need::Required,
    means: "RAM on both sides of the hole and the parts of the window do not fit",
    mend: NEWER_KVM,
};

const VCPUS: Subject = Subject {
    name: "vCPUs",
    need: Need::Required,
    means: "no guest can be made",
    mend: NEWER_KVM,
};

/// RAM below and above the hole, each 2 MiB of the window by itself, and one to spare.
const MEMSLOTS_USED: usize = 3 + 256;

/// Every capability in use, and what is lost without it.
const CAPABILITIES: [(Cap, Subject); 12] = [
    (
        Cap::UserMemory,
        required("user memory", "guest memory cannot be shared with the host"),
    ),
    (
        Cap::ExtCpuid,
        required("CPUID", "the guest cannot be told what CPU it has"),
    ),
    (
        Cap::Irqchip,
        required("interrupt controller", "no timer, no second vCPU"),
    ),
    (
        Cap::MpState,
        required("state of a vCPU", "a second vCPU cannot wait for its start"),
    ),
    (
        Cap::ImmediateExit,
        required(
            "immediate exit",
            "a vCPU cannot be paused without losing kicks",
        ),
    ),
    (
        Cap::GetTscKhz,
        required(
            "TSC frequency",
            "guest time cannot be turned into nanoseconds",
        ),
    ),
    (
        Cap::SetGuestDebug,
        optional(
            "guest debugging",
            "tracing cannot start at a symbol by a breakpoint",
        ),
    ),
    (
        Cap::Pit2,
        required("PIT", "no guest can be made: each has this timer"),
    ),
    (
        Cap::Irqfd,
        required(
            "irqfd",
            "no guest can be made: its console interrupts by one",
        ),
    ),
    (
        Cap::Ioeventfd,
        optional("ioeventfd", "device notifications cost a full exit"),
    ),
    (
        Cap::TscDeadlineTimer,
        optional(
            "TSC deadline timer",
            "guests use the LAPIC's one-shot timer instead",
        ),
    ),
    (
        Cap::AdjustClock,
        optional("kvmclock", "Linux guests use another clock source"),
    ),
];

const fn required(name: &'static str, means: &'static str) -> Subject {
    Subject {
        name,
        need: Need::Required,
        means,
        mend: NEWER_KVM,
    }
}

const fn optional(name: &'static str, means: &'static str) -> Subject {
    Subject {
        name,
        need: Need::Optional,
        means,
        mend: NEWER_KVM,
    }
}

/// Asks for each.
pub(super) fn look(kvm: &Kvm, checks: &mut Vec<Check>) {
    for (capability, subject) in CAPABILITIES {
        let there = kvm.check_extension(capability);
        checks.push(subject.check(there, if there { "yes" } else { "no" }));
    }
    let slots = kvm.get_nr_memslots();
    checks.push(MEMSLOTS.check(slots >= MEMSLOTS_USED, slots.to_string()));
    let (recommended, most) = (kvm.get_nr_vcpus(), most_vcpus(kvm));
    checks.push(VCPUS.check(most > 0, format!("up to {most}, {recommended} recommended")));
    checks.push(match kvm.get_msr_index_list() {
        Ok(list) => {
            let there = list.as_slice().contains(&MSR_TSC);
            TSC_MSR.check(there, if there { "yes" } else { "not in KVM's list" })
        }
        Err(error) => TSC_MSR.check(false, error.to_string()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The doctor said that tracing works where each run ended with 101.
    #[test]
    fn what_no_machine_is_made_without_is_required() {
        for name in ["user memory", "interrupt controller", "PIT", "irqfd"] {
            let mut subjects = CAPABILITIES.iter().map(|(_, subject)| subject);
            let subject = subjects.find(|subject| subject.name == name).unwrap();
            assert_eq!(subject.need, Need::Required, "{name}");
        }
    }
}
