//! A vCPU's part in the time of its guest: whether it is in the guest, what its counter has been set back by so far, and
//! whether that counter is what it is taken for.

use std::sync::Arc;

use kvm_ioctls::VcpuFd;

use super::msr;
use crate::clock::host_tsc;
use tracer::clock::{Sample, VcpuClocks};

/// Readings of a counter that is looked at again: a few, since the vCPU could run meanwhile.
const CHECK_SAMPLES: u32 = 3;

/// The part of one vCPU, kept by the thread that runs it.
#[derive(Debug)]
pub(super) struct GuestTime {
    vcpu: u16,
    /// The counters of all vCPUs, this one's among them.
    clocks: Arc<VcpuClocks>,
    is_inside: bool,
    /// What the counter has been set back by so far.
    hidden: u64,
}

impl GuestTime {
    /// It has not been in the guest yet.
    pub(super) fn new(vcpu: u16, clocks: &Arc<VcpuClocks>) -> Self {
        Self {
            vcpu,
            clocks: Arc::clone(clocks),
            is_inside: false,
            hidden: 0,
        }
    }

    /// On the way into the guest: the counter is `set_back` by what has been hidden since it was there last. False while
    /// the time is held: it must not enter.
    pub(super) fn enters(
        &mut self,
        set_back: impl FnOnce(u64) -> Result<(), kvm_ioctls::Error>,
    ) -> bool {
        let Some(hidden) = self.clocks.time().enter() else {
            return false;
        };
        self.is_inside = true;
        let ticks = hidden.wrapping_sub(self.hidden);
        if ticks > 0 {
            // Whether it can be or not: once the guest has seen a later time, it is not to see an earlier one.
            self.hidden = hidden;
            if let Err(error) = set_back(ticks) {
                let vcpu = self.vcpu;
                log::error!("vCPU {vcpu}: its counter cannot be set back: {error}");
                self.clocks.cannot_be_set_back(vcpu, ticks);
            }
        }
        true
    }

    /// KVM has come back, whether it has been in the guest or not.
    pub(super) fn is_back(&mut self) {
        if std::mem::take(&mut self.is_inside) {
            self.clocks.time().leave();
        }
    }

    /// Whether no vCPU may enter the guest.
    pub(super) fn is_held(&self) -> bool {
        self.clocks.time().is_held()
    }

    /// Reads the counter so often, beside the guest's time as far as it follows that.
    pub(super) fn read(&self, fd: &VcpuFd, samples: u32) -> Result<Sample, kvm_ioctls::Error> {
        let now = || host_tsc().wrapping_sub(self.hidden);
        Sample::tightest(samples, || {
            let before = now();
            let guest = msr::read(fd, msr::TSC)?;
            let after = now();
            Ok(Sample {
                before,
                guest,
                after,
            })
        })
    }

    /// Whether it is time to look whether the counter is what it was.
    pub(super) fn is_due(&self) -> bool {
        self.clocks.is_due(self.vcpu)
    }

    /// Does that.
    pub(super) fn check(&self, fd: &VcpuFd) {
        let vcpu = self.vcpu;
        match self.read(fd, CHECK_SAMPLES) {
            Ok(sample) => {
                self.clocks.check(vcpu, sample);
            }
            Err(error) => log::debug!("vCPU {vcpu}: its counter is not read: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::HOST;

    /// Holds the time while a vCPU comes, and lets it enter afterwards.
    fn is_held_and_enters(
        time: &mut GuestTime,
        clocks: &VcpuClocks,
        set_back: &dyn Fn(u64) -> bool,
    ) {
        let hold = clocks.time().hold();
        assert!(!time.enters(|_| panic!("it does not enter")));
        drop(hold);
        let refused = || kvm_ioctls::Error::new(libc::EIO);
        assert!(time.enters(|ticks| set_back(ticks).then_some(()).ok_or_else(refused)));
        time.is_back();
    }

    #[test]
    fn a_counter_is_set_back_by_all_that_was_hidden_and_a_failure_is_counted() {
        let clocks = Arc::new(VcpuClocks::new(2, HOST));
        let mut time = GuestTime::new(1, &clocks);
        assert!(time.enters(|_| panic!("nothing is hidden")));
        time.is_back();
        let set_back = Cell::new(0);
        let takes_it = |ticks: u64| {
            set_back.set(set_back.get() + ticks);
            true
        };
        is_held_and_enters(&mut time, &clocks, &takes_it);
        let before = clocks.time().hidden();
        assert!(before > 0, "it was outside, and nothing is hidden");
        assert_eq!(set_back.get(), before);
        is_held_and_enters(&mut time, &clocks, &|_| false);
        let shown = clocks.time().hidden() - before;
        assert!(shown > 0);
        assert_eq!(clocks.not_set_back(), 1);
        // What could not be hidden once is not hidden later: the counter would go back.
        is_held_and_enters(&mut time, &clocks, &takes_it);
        assert_eq!(set_back.get(), clocks.time().hidden() - shown);
    }
}
