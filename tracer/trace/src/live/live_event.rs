//! One event as listeners are told of it: with names, and understood without what came before.

use serde::{Deserialize, Serialize};
use terms::field::FieldValue;

use crate::export::events::Fields;

/// One thing that happened in the guest, or to what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveEvent {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// The thread, by the order of appearance. Where threads are not told apart, each vCPU is one.
    pub thread: u32,
    /// The guest's name of it, where it is known by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// How many calls of this thread are open around it.
    pub depth: u32,
    /// What happened.
    #[serde(flatten)]
    pub what: Happening,
}

impl LiveEvent {
    /// Whether it happened in the guest: everything else is said of what is missing, or of the times.
    #[must_use]
    pub const fn is_of_guest(&self) -> bool {
        match self.what {
            Happening::Entry { .. }
            | Happening::Call { .. }
            | Happening::Return { .. }
            | Happening::Open { .. }
            | Happening::Event { .. } => true,
            Happening::Lost { .. }
            | Happening::LostEvents { .. }
            | Happening::Stall { .. }
            | Happening::Wait { .. }
            | Happening::Unread { .. } => false,
        }
    }

    /// What it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_value = |value: &FieldValue| size_of_val(value) + value.weight();
        let of_fields = |fields: &Fields| -> usize {
            let each = fields.0.iter();
            each.map(|(name, value)| size_of_val(name) + name.len() + of_value(value))
                .sum()
        };
        let of_name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
        let of_what: usize = match &self.what {
            Happening::Entry { function, caller } => function.len() + of_name(caller),
            Happening::Call { function, args } => function.len() + of_fields(args),
            Happening::Return {
                function,
                remark,
                retval,
                ..
            } => {
                let of_values: usize = retval.iter().map(of_value).sum();
                function.len() + of_name(remark) + of_values
            }
            Happening::Open { function, .. } => function.len(),
            Happening::Event { event, fields } => event.len() + of_fields(fields),
            Happening::Lost { .. }
            | Happening::LostEvents { .. }
            | Happening::Stall { .. }
            | Happening::Wait { .. }
            | Happening::Unread { .. } => 0,
        };
        size_of::<Self>() + of_name(&self.task) + of_what
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Happening {
    /// A function was entered, of a session that does not trace returns.
    Entry {
        /// Its name.
        function: String,
        /// What called it, by its name or the address that the call returns to; of a session that records callers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caller: Option<String>,
    },
    /// A function was entered; its return follows.
    Call {
        /// Its name.
        function: String,
        /// Arguments that were captured.
        #[serde(default, skip_serializing_if = "Fields::is_empty")]
        args: Fields,
    },
    /// The innermost open call ended.
    Return {
        /// Its function.
        function: String,
        /// How long it took, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ns: Option<u64>,
        /// How it ended, unless it just returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remark: Option<String>,
        /// What was captured of what it returned.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        retval: Vec<FieldValue>,
    },
    /// A call that is waited for takes too long, and has not ended. Only who waits for such is told, and nobody by a line.
    #[serde(skip)]
    Open {
        /// Its function.
        function: String,
        /// For so long, up to now.
        open_ns: u64,
    },
    /// An event of the guest's own was passed, or a probe was hit.
    Event {
        /// Its name.
        event: String,
        /// Its fields.
        fields: Fields,
    },
    /// Calls of this vCPU were lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// Events of this vCPU were lost.
    LostEvents {
        /// How many.
        count: u64,
    },
    /// The clock was late: times of that while are too early.
    Stall {
        /// For so many nanoseconds, up to now.
        length_ns: u64,
    },
    /// This vCPU found a ring full and waited for its reader.
    Wait {
        /// For so many nanoseconds, up to now.
        length_ns: u64,
    },
    /// This listener did not take what was before this in time.
    Unread {
        /// So many events.
        count: u64,
    },
}
