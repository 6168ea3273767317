//! The parts of a machine, each made once for real: capabilities can promise too much.

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::check::{Check, NEWER_KVM, Need, Subject};
use crate::trial::TrialError;

const VM: Subject = Subject {
    name: "making a VM",
    need: Need::Required,
    means: "no guest can be made",
    mend: "look for what else uses virtualisation (another hypervisor's module), and at `dmesg`",
};

const IRQCHIP: Subject = Subject {
    name: "making an interrupt controller",
    need: Need::Required,
    means: "no timer, no second vCPU",
    mend: NEWER_KVM,
};

const PIT: Subject = Subject {
    name: "making a PIT",
    need: Need::Required,
    means: "no guest can be made: each has this timer",
    mend: NEWER_KVM,
};

const IRQFD: Subject = Subject {
    name: "connecting an irqfd",
    need: Need::Required,
    means: "no guest can be made: its console interrupts by one",
    mend: NEWER_KVM,
};

const VCPUS: Subject = Subject {
    name: "making two vCPUs",
    need: Need::Required,
    means: "the demo and SMP guests cannot run",
    mend: NEWER_KVM,
};

const TSC_FREQUENCY: Subject = Subject {
    name: "reading the TSC frequency",
    need: Need::Required,
    means: "guest time cannot be turned into nanoseconds",
    mend: NEWER_KVM,
};

/// An interrupt line that no device of ours uses.
const SPARE_LINE: u32 = 10;

/// Makes a VM and its parts. Says whether there was a VM.
pub(super) fn look(kvm: &Kvm, checks: &mut Vec<Check>) -> bool {
    let vm = match kvm.create_vm() {
        Ok(vm) => vm,
        Err(error) => {
            checks.push(VM.check(false, error.to_string()));
            return false;
        }
    };
    checks.push(VM.check(true, "works"));
    // Intel wants it; elsewhere it does nothing.
    let _ = vm.set_tss_address(0xfffb_d000);
    checks.push(IRQCHIP.tried(vm.create_irq_chip()));
    let pit = kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    checks.push(PIT.tried(vm.create_pit2(pit)));
    checks.push(IRQFD.tried(connect_irqfd(&vm)));
    vcpus(&vm, checks);
    true
}

fn connect_irqfd(vm: &VmFd) -> Result<(), TrialError> {
    let line = EventFd::new(EFD_NONBLOCK).map_err(TrialError::system)?;
    vm.register_irqfd(&line, SPARE_LINE)
        .map_err(TrialError::refused("KVM_IRQFD"))
}

fn vcpus(vm: &VmFd, checks: &mut Vec<Check>) {
    let made = vm
        .create_vcpu(0)
        .and_then(|first| vm.create_vcpu(1).map(|_| first));
    let first = match made {
        Ok(first) => first,
        Err(error) => return checks.push(VCPUS.check(false, error.to_string())),
    };
    checks.push(VCPUS.check(true, "works"));
    checks.push(match first.get_tsc_khz() {
        Ok(khz) => TSC_FREQUENCY.check(khz > 0, format!("{khz} kHz")),
        Err(error) => TSC_FREQUENCY.check(false, error.to_string()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `create_devices` and `create_vcpus` of a machine make them.
    #[test]
    fn what_every_machine_has_is_required() {
        for part in [VM, IRQCHIP, PIT, IRQFD, VCPUS, TSC_FREQUENCY] {
            assert_eq!(part.need, Need::Required, "{}", part.name);
        }
    }
}
