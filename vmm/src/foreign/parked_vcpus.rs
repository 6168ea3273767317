//! The vCPUs of a guest that are out of it, each with a thread in whose name KVM is asked about it: the one that executes it, or one
//! that **stands in for all of those that no thread is known to execute**. A VMM can keep many of those (QEMU does not close what it
//! has taken out of its guest) and have fewer threads; what is asked is asked one after the other.

use std::sync::Arc;

use super::held::Together;
use super::parked::Parked;
use super::vcpu::ForeignVcpu;

/// vCPUs that are out of the guest, or on their way there, until this is dropped.
#[derive(Debug)]
pub(super) struct ParkedVcpus {
    /// All of them.
    all: Vec<Arc<ForeignVcpu>>,
    /// Those that a known thread executes, in the same order.
    executed: Together<Parked>,
    /// One of the others, with the thread that stands in for them; none where there are none.
    stand_in: Option<Parked>,
}

impl ParkedVcpus {
    /// All of these; those that a known thread executes are `executed`.
    pub fn of(all: &[Arc<ForeignVcpu>], executed: Together<Parked>) -> Self {
        Self {
            all: all.to_vec(),
            executed,
            stand_in: None,
        }
    }

    /// The same, and `stand_in` is one of the others.
    pub fn with(self, stand_in: Parked) -> Self {
        let stand_in = Some(stand_in);
        Self { stand_in, ..self }
    }

    /// Whether a known thread executes each of them.
    pub fn are_executed(&self) -> bool {
        self.executed.len() == self.all.len()
    }

    /// This one; none of one that is not among them.
    pub fn get_mut(&mut self, vcpu: &Arc<ForeignVcpu>) -> Option<&mut Parked> {
        let own = self.executed.iter_mut().find(|parked| parked.is(vcpu));
        own.or_else(|| {
            let is_here = self.all.iter().any(|one| Arc::ptr_eq(one, vcpu));
            let stand_in = self.stand_in.as_mut().filter(|_| is_here)?;
            stand_in.turn_to(vcpu);
            Some(stand_in)
        })
    }

    /// The first of them.
    pub fn first_mut(&mut self) -> Option<&mut Parked> {
        let first = self.all.first().cloned()?;
        self.get_mut(&first)
    }

    /// The threads.
    pub fn threads(&self) -> Vec<i32> {
        let all = self.executed.iter().chain(&self.stand_in);
        all.map(Parked::thread).collect()
    }
}
