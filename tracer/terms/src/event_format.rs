//! What an event says: its name, its fields, and how they lie in a payload.

use std::sync::Arc;

use crate::field::Field;

/// The number of an event of an image: its tracepoints come first, then its markers, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

impl EventId {
    /// Its place.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an event says when it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFormat {
    /// Its name.
    pub name: Arc<str>,
    /// Its fields.
    pub fields: Vec<Field>,
    /// Whether its payload begins with a status word, whose bit `i` says that field `i` is a fault.
    pub has_status: bool,
}

impl EventFormat {
    /// One whose fields are always there.
    #[must_use]
    pub const fn new(name: Arc<str>, fields: Vec<Field>) -> Self {
        Self {
            name,
            fields,
            has_status: false,
        }
    }

    /// Words of its payload.
    #[must_use]
    pub fn words(&self) -> usize {
        let fields = self.fields.iter().map(|field| field.kind.words());
        usize::from(self.has_status) + fields.sum::<usize>()
    }
}
