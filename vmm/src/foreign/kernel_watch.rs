//! Whether the kernel that is traced still runs. A guest that was reset, or that boots another kernel (kexec), executes with other
//! page tables: what was the kernel's text lies elsewhere, or nowhere. Looked at once a second, by registers, for
//! which the guest is paused. A kernel that was loaded anew at the very same place is told by our jumps, which it has not
//! (`Tracing::look_at_window`).
//!
//! vCPUs are in other page tables for moments without any reset, too (system management, waking from sleep), so it takes
//! several looks in a row. One that runs a guest of its own shows that one's registers: that says nothing. Nor does one whose page
//! tables cannot be read: a process has its own in any memory, also in such as was added since the guest was attached to.

use std::time::{Duration, Instant};

use image::Image;
use trace::export::uftrace::PauseSpread;
use tracer::TranslateError;
use tracer::guest::Guest;
use tracer::target::{PhysicalMemory, VcpuRegisters};

use crate::kernel_text::{KernelText, may_run_a_guest};
use crate::pause_times::Times;

/// Between two looks, while all is well.
const PERIOD: Duration = Duration::from_secs(1);
/// The same, once one has not seen it.
const IN_DOUBT: Duration = Duration::from_millis(250);
/// Looks in a row that have to agree that it is gone.
const LOOKS: u32 = 5;

/// A look that comes to nothing is made again after so many times as long as it took.
const REST_FOR_LOOK: u32 = 4;

/// Where the kernel's text lies, and what was seen of it last.
#[derive(Debug)]
pub(super) struct KernelWatch {
    text: KernelText,
    doubts: u32,
    next: Instant,
    /// The pauses of the guest in which it was looked.
    pauses: Times,
}

impl KernelWatch {
    /// Of the kernel with this image, which runs; none where its text is not found.
    pub fn of(guest: &impl Guest, image: &Image) -> Option<Self> {
        let text = image.sites.first().map(|site| site.address);
        let text = text.or_else(|| Some(image.text.first()?.start))?;
        let (place, _) = guest.locate(text)?;
        Some(Self {
            text: KernelText { at: text, place },
            doubts: 0,
            next: Instant::now() + PERIOD,
            pauses: Times::default(),
        })
    }

    /// Where its text lies.
    pub const fn text(&self) -> KernelText {
        self.text
    }

    /// Whether it is time for a look.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// A look that takes so long, or came to nothing, is not made again at once: the guest stands still meanwhile.
    pub fn put_off(&mut self, took: Duration) {
        self.next = Instant::now() + PERIOD.max(took * REST_FOR_LOOK);
    }

    /// The guest was paused for so long for a look.
    pub fn paused(&mut self, length: Duration) {
        self.pauses.add(length);
    }

    /// How long it was paused for looks.
    pub fn pauses(&self) -> PauseSpread {
        self.pauses.spread()
    }

    /// Takes in what the vCPUs execute with now. Says whether the kernel is gone.
    pub fn look(&mut self, memory: &impl PhysicalMemory, vcpus: &[VcpuRegisters]) -> bool {
        let online = vcpus.iter().filter(|vcpu| vcpu.online);
        let seen: Vec<Seen> = online.map(|vcpu| self.seen_by(memory, vcpu)).collect();
        if seen.contains(&Seen::Kernel) {
            self.doubts = 0;
        } else if !seen.contains(&Seen::Nothing) {
            self.doubts = self.doubts.saturating_add(1);
        }
        let until = if self.doubts > 0 { IN_DOUBT } else { PERIOD };
        self.next = Instant::now() + until;
        self.doubts >= LOOKS
    }

    fn seen_by(&self, memory: &impl PhysicalMemory, vcpu: &VcpuRegisters) -> Seen {
        if may_run_a_guest(vcpu) {
            return Seen::Kernel;
        }
        match self.text.root_of(memory, vcpu) {
            Ok(Some(_)) => Seen::Kernel,
            Err(TranslateError::Table { .. }) => Seen::Nothing,
            Ok(None) | Err(_) => Seen::Another,
        }
    }
}

/// What a vCPU executes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The kernel's text lies where it lay; or it may run a guest of its own, in whose tables there is none.
    Kernel,
    /// It does not.
    Another,
    /// Its page tables cannot be read.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_text::testing::{TEXT, move_text, two_vcpus};

    #[test]
    fn each_pause_for_a_look_is_counted_with_its_length() {
        let mut watch = KernelWatch {
            text: TEXT,
            doubts: 0,
            next: Instant::now(),
            pauses: Times::default(),
        };
        assert_eq!(watch.pauses().count, 0);
        for us in [40, 70, 50] {
            watch.paused(Duration::from_micros(us));
        }
        let PauseSpread { count, max_ns, .. } = watch.pauses();
        assert_eq!((count, max_ns), (3, 70_000));
    }

    #[test]
    fn a_kernel_is_gone_when_no_vcpu_has_seen_its_text_several_times() {
        let (ram, [vcpu, _]) = two_vcpus([TEXT.place.0; 2]);
        let map = |to| move_text(&ram, to);
        let offline = VcpuRegisters::default();
        let mut watch = KernelWatch {
            text: TEXT,
            doubts: 0,
            next: Instant::now(),
            pauses: Times::default(),
        };
        let mut look = |vcpus: &[VcpuRegisters]| watch.look(ram.memory(), vcpus);
        map(0x40_0000);
        for _ in 0..2 * LOOKS {
            assert!(!look(&[offline, vcpu]));
        }
        map(0x60_0000);
        for round in 1..=LOOKS {
            assert_eq!(look(&[vcpu]), round == LOOKS);
        }
        map(0x40_0000);
        assert!(!look(&[vcpu]), "it is there again");
        for round in 1..=LOOKS {
            assert_eq!(look(&[offline]), round == LOOKS);
        }
        map(0x40_0000);
        assert!(!look(&[vcpu]));
        // Tables in memory that nobody knows say nothing, and nothing against what others say.
        let unread = VcpuRegisters {
            cr3: 1 << 40,
            ..vcpu
        };
        for _ in 0..2 * LOOKS {
            assert!(!look(&[unread]));
        }
        map(0x60_0000);
        for _ in 1..LOOKS {
            assert!(!look(&[vcpu]));
        }
        assert!(!look(&[vcpu, unread]), "one of them may have it");
        map(0x40_0000);
        assert!(!look(&[vcpu, unread]));
        // Of a guest of the guest it is not known where the kernel is.
        map(0x60_0000);
        let runs_guests = [(1 << 13, 0), (0, 1 << 12)].map(|(cr4, efer)| VcpuRegisters {
            cr4: vcpu.cr4 | cr4,
            efer: vcpu.efer | efer,
            ..vcpu
        });
        for _ in 0..2 * LOOKS {
            assert!(runs_guests.iter().all(|vcpu| !look(&[*vcpu])));
        }
    }
}
