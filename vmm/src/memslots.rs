//! KVM's memory slots: what of our memory the guest reaches.
//!
//! All of its RAM, from the beginning; of the window's region only what tracing has shown so far. A guest can make
//! page tables that lead to any physical address. What has a slot it can touch, and so have this process pay for.

use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use parking_lot::Mutex;
use terms::region::Region;
use tracer::target::NotProvided;

use crate::memory::Memory;

/// The slots of a virtual machine.
#[derive(Debug)]
pub(crate) struct MemorySlots {
    vm: Arc<VmFd>,
    memory: Memory,
    /// What has a slot; the number of each is its index.
    slots: Mutex<Vec<Region>>,
}

impl MemorySlots {
    /// Slots of `vm` for the RAM of `memory`.
    ///
    /// # Errors
    /// What KVM says.
    pub fn new(vm: Arc<VmFd>, memory: Memory) -> Result<Self, kvm_ioctls::Error> {
        let slots = Self {
            vm,
            memory,
            slots: Mutex::new(Vec::new()),
        };
        for ram in slots.memory.ram() {
            slots.add(&mut slots.slots.lock(), ram)?;
        }
        Ok(slots)
    }

    /// Lets the guest reach `part` of our memory, as far as it does not yet.
    ///
    /// # Errors
    /// [`NotProvided`], with what KVM says.
    pub fn provide(&self, part: Region) -> Result<(), NotProvided> {
        let mut slots = self.slots.lock();
        for missing in without(part, &slots) {
            let refused = |error: kvm_ioctls::Error| NotProvided {
                at: missing.start,
                bytes: missing.bytes,
                why: error.to_string(),
            };
            self.add(&mut slots, missing).map_err(refused)?;
        }
        Ok(())
    }

    fn add(&self, slots: &mut Vec<Region>, part: Region) -> Result<(), kvm_ioctls::Error> {
        let none = || kvm_ioctls::Error::new(libc::EINVAL);
        let host = self.memory.host_address(part.start, part.bytes);
        let region = kvm_userspace_memory_region {
            slot: u32::try_from(slots.len()).map_err(|_| none())?,
            flags: 0,
            guest_phys_addr: part.start.0,
            memory_size: part.bytes,
            userspace_addr: host.ok_or_else(none)? as u64,
        };
        // SAFETY: the range lies in one mapping that `memory` owns; `self` and every vCPU thread hold a clone of it, so
        // it stays mapped as long as the guest can run.
        unsafe { self.vm.set_user_memory_region(region) }?;
        slots.push(part);
        Ok(())
    }
}

/// What of `part` none of `slots` has.
fn without(part: Region, slots: &[Region]) -> Vec<Region> {
    let mut missing = vec![part];
    for slot in slots {
        missing = missing
            .into_iter()
            .flat_map(|part| {
                let before = between(part.start.0, slot.start.0.min(part.end()));
                let after = between(slot.end().max(part.start.0), part.end());
                [before, after]
            })
            .flatten()
            .collect();
    }
    missing
}

fn between(start: u64, end: u64) -> Option<Region> {
    let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
    Some(Region {
        start: terms::addr::Gpa(start),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_slot_yet_gets_one() {
        let range = |start, end| between(start, end).unwrap();
        let slots = [range(10, 20), range(30, 40), range(40, 45)];
        let missing = |start, end| -> Vec<(u64, u64)> {
            let parts = without(range(start, end), &slots);
            parts
                .iter()
                .map(|part| (part.start.0, part.end()))
                .collect()
        };
        assert_eq!(missing(0, 10), [(0, 10)]);
        assert_eq!(missing(10, 20), []);
        assert_eq!(missing(12, 18), []);
        assert_eq!(missing(5, 15), [(5, 10)]);
        assert_eq!(missing(15, 35), [(20, 30)]);
        assert_eq!(missing(0, 100), [(0, 10), (20, 30), (45, 100)]);
        assert_eq!(missing(35, 46), [(45, 46)]);
    }
}
