//! Whether the guest's kernel has panicked, seen from outside: a Linux notes which processor panics
//! ([`PanicMarks`]). Reading that word disturbs nobody, and needs nothing in the guest.

use std::time::{Duration, Instant};

use image::Image;
use terms::addr::{Gpa, Gva};
use tracer::guest::Guest;
use tracer::target::{PhysicalMemory, VcpuRegisters};
use tracer::{PageTableRoot, PanicMarks, translate};

/// How often it is looked at: a panic prints for longer than that.
pub const PERIOD: Duration = Duration::from_millis(20);
/// Time that a panicking guest has to print and to reset itself.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where the guest says that it panics.
#[derive(Debug)]
pub struct PanicWatch {
    address: Gva,
    word: Gpa,
    vcpus: u16,
    seen: Option<(u16, Instant)>,
}

impl PanicWatch {
    /// Of a guest that runs a kernel which notes it. None for others.
    #[must_use]
    pub fn of(guest: &impl Guest, image: &Image) -> Option<Self> {
        let marks = PanicMarks::of(image)?;
        let address: Gva = image.symbols.address_of(marks.vcpu)?;
        let (word, left) = guest.locate(address)?;
        (left >= 4).then_some(Self {
            address,
            word,
            vcpus: guest.vcpus(),
            seen: None,
        })
    }

    /// Looks. Returns the vCPU when this is the first time that it is seen to panic.
    pub fn look(&mut self, memory: &impl PhysicalMemory) -> Option<u16> {
        if self.seen.is_some() {
            return None;
        }
        let mut bytes = [0; 4];
        memory.read_physical(self.word, &mut bytes).ok()?;
        let vcpu = u16::try_from(i32::from_le_bytes(bytes)).ok()?;
        if vcpu >= self.vcpus {
            return None;
        }
        self.seen = Some((vcpu, Instant::now()));
        Some(vcpu)
    }

    /// Whether the kernel that runs is no longer the one whose word this is: another one (kexec) uses that memory as it
    /// likes. Where no vCPU is online nobody knows (KVM resets some that crash), and the word is believed.
    #[must_use]
    pub fn is_anothers(&self, vcpus: &[VcpuRegisters], memory: &impl PhysicalMemory) -> bool {
        let is_ours = |vcpu: &VcpuRegisters| {
            let root = PageTableRoot::of_text(memory, vcpu, self.address);
            let seen = root.and_then(|root| translate(memory, root, self.address));
            seen.is_ok_and(|seen| seen.physical == self.word)
        };
        let mut running = vcpus.iter().filter(|vcpu| vcpu.online).peekable();
        running.peek().is_some() && !running.any(is_ours)
    }

    /// The vCPU that panics.
    #[must_use]
    pub fn vcpu(&self) -> Option<u16> {
        self.seen.map(|(vcpu, _)| vcpu)
    }

    /// Whether it has had enough time to reset itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.seen
            .is_some_and(|(_, since)| since.elapsed() >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use crate::memory::Ram;

    #[test]
    fn a_vcpu_that_is_online_tells_whose_the_word_is() {
        let ram = Ram::create(layout::MEMORY_MIN_MIB, 0x1000).unwrap();
        let watch = |word| PanicWatch {
            address: Gva(0x123),
            word: Gpa(word),
            vcpus: 2,
            seen: None,
        };
        // One page of 1 GiB, at 0.
        ram.write(Gpa(0x2000), &0x3003u64.to_le_bytes()).unwrap();
        ram.write(Gpa(0x3000), &0x83u64.to_le_bytes()).unwrap();
        let reset = VcpuRegisters::default();
        let running = VcpuRegisters {
            online: true,
            cr0: 0x8000_0001,
            cr3: 0x2000,
            cr4: 1 << 5,
            efer: 0x500,
            ..reset
        };
        let is_anothers = |word, vcpus: &[_]| watch(word).is_anothers(vcpus, ram.memory());
        assert!(!is_anothers(0x123, &[reset, running]));
        assert!(is_anothers(0x456, &[reset, running]));
        assert!(!is_anothers(0x456, &[reset, reset]));
        assert!(!is_anothers(0x456, &[]));
    }

    #[test]
    fn only_the_number_of_a_vcpu_is_a_panic() {
        let word = Gpa(0x1000);
        let ram = Ram::create(layout::MEMORY_MIN_MIB, 0x1000).unwrap();
        let mut watch = PanicWatch {
            address: Gva(0),
            word,
            vcpus: 2,
            seen: None,
        };
        for (value, seen) in [
            (-1i32, None),
            (2, None),
            (i32::MIN, None),
            (1, Some(1)),
            (0, None),
        ] {
            ram.write(word, &value.to_le_bytes()).unwrap();
            assert_eq!(watch.look(ram.memory()), seen, "{value}");
        }
        assert_eq!((watch.vcpu(), watch.is_over()), (Some(1), false));
    }
}
