//! What vCPU threads tell the main thread, over a channel with an eventfd for its event loop.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use terms::addr::Gva;
use tracer::waits::Wake;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::gate::Gate;
use super::kick::KickTargets;

/// Something that the main thread must see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuEvent {
    /// Which vCPU.
    pub vcpu: u16,
    /// What.
    pub kind: VcpuEventKind,
}

/// What can happen to a vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VcpuEventKind {
    /// The guest wrote its status to the exit port.
    GuestExit(u8),
    /// The guest pulled the reset line.
    Reset,
    /// The guest has switched the machine off.
    PowerOff,
    /// The guest cannot continue; what KVM said about it.
    Crashed(String),
    /// Its thread has panicked: a bug of ours.
    Panicked,
    /// The guest has announced that text comes or goes; the vCPU is parked until somebody has seen to it.
    Announcement,
    /// What vCPUs wait for will never come, and the run is to end for that; why.
    Unread(String),
    /// The attach breakpoint was reached; the vCPU is trapped there.
    Breakpoint(Gva),
}

/// The threads' end.
#[derive(Debug, Clone)]
pub(crate) struct EventSender {
    sender: Sender<VcpuEvent>,
    bell: Arc<EventFd>,
}

impl EventSender {
    pub(crate) fn send(&self, event: VcpuEvent) {
        // Both fail only when the main thread is gone, and then nobody is left to tell.
        if self.sender.send(event).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Who has the vCPUs that wait for readers.
#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) gate: Arc<Gate>,
    pub(crate) events: EventSender,
    pub(crate) targets: Arc<KickTargets>,
}

impl Wake for Waiters {
    fn wake(&self) {
        self.gate.open();
    }

    fn take_out(&self) {
        self.targets.kick_others();
    }

    fn end_run(&self, why: &str) {
        self.events.send(VcpuEvent {
            vcpu: 0,
            kind: VcpuEventKind::Unread(why.to_owned()),
        });
    }
}

/// The main thread's end.
#[derive(Debug)]
pub struct VcpuEvents {
    receiver: Receiver<VcpuEvent>,
    bell: Arc<EventFd>,
}

impl VcpuEvents {
    /// The eventfd that becomes readable when there is an event.
    #[must_use]
    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// The next event, if there is one. The bell rings on for as long as more may be waiting: one event at a time is
    /// seen to, so that vCPUs that always have another one hold up nothing else that the main thread does.
    #[must_use]
    pub fn next(&self) -> Option<VcpuEvent> {
        let _ = self.bell.read();
        let event = self.receiver.try_recv().ok();
        if event.is_some() {
            let _ = self.bell.write(1);
        }
        event
    }
}

/// A new pair of ends.
pub(crate) fn events() -> std::io::Result<(EventSender, VcpuEvents)> {
    let (sender, receiver) = channel();
    let bell = Arc::new(EventFd::new(EFD_NONBLOCK)?);
    Ok((
        EventSender {
            sender,
            bell: Arc::clone(&bell),
        },
        VcpuEvents { receiver, bell },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_waits_for_a_turn_of_its_own_and_none_is_forgotten() {
        let (sender, receiver) = events().unwrap();
        let event = |vcpu| VcpuEvent {
            vcpu,
            kind: VcpuEventKind::Announcement,
        };
        (0..3).for_each(|vcpu| sender.send(event(vcpu)));
        for vcpu in 0..3 {
            assert_eq!(receiver.next(), Some(event(vcpu)));
            // Level-triggered, the loop comes back for the rest.
            receiver.bell().read().unwrap();
            receiver.bell().write(1).unwrap();
        }
        assert_eq!(receiver.next(), None);
        assert!(
            receiver.bell().read().is_err(),
            "rings although nothing waits"
        );
    }
}
