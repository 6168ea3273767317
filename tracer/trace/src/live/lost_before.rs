//! What was lost before anybody came who listens.

use std::collections::BTreeMap;

use crate::event::{Event, EventKind};

/// What each vCPU's rings had lost, unread, when the first came who listens. It is nobody's news.
#[derive(Debug, Default)]
pub struct LostBefore {
    /// Calls, by vCPU.
    pub calls: BTreeMap<u16, u64>,
    /// Events of the guest's own, by vCPU.
    pub points: BTreeMap<u16, u64>,
}

impl LostBefore {
    /// What there is to tell of this event; nothing of what was lost before.
    pub(super) fn news(&mut self, event: &Event) -> Option<EventKind> {
        match event.kind {
            EventKind::Lost(count) => {
                since(&mut self.calls, event.vcpu, count).map(EventKind::Lost)
            }
            EventKind::LostPoints(count) => {
                since(&mut self.points, event.vcpu, count).map(EventKind::LostPoints)
            }
            kind => Some(kind),
        }
    }
}

/// How many of these were lost since; none where all were before.
fn since(before: &mut BTreeMap<u16, u64>, vcpu: u16, count: u64) -> Option<u64> {
    let left = before.entry(vcpu).or_default();
    let old = count.min(*left);
    *left -= old;
    // A count of none says something else: that nothing was recorded.
    (old == 0 || count > old).then_some(count - old)
}
