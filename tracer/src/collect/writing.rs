//! Who writes what was read: one at a time.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use super::hands::Hands;
use super::looks::{lock, lock_free};
use super::writer::Writer;

/// Somebody writes, for as long as this lives: also a thread that fails.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    // Dropped in this order: who waits for it is woken when it is free.
    writer: MutexGuard<'a, Writer>,
    _until: Until<'a>,
}

impl<'a> Writing<'a> {
    /// The caller, if nobody else does.
    pub fn if_free(writer: &'a Mutex<Writer>, hands: &'a Hands) -> Option<Self> {
        Some(Self {
            writer: lock_free(writer)?,
            _until: Until(hands),
        })
    }

    /// The caller, when nobody else does. Waits, and works for nobody meanwhile.
    pub fn alone(writer: &'a Mutex<Writer>, hands: &'a Hands) -> Self {
        Self {
            writer: lock(writer),
            _until: Until(hands),
        }
    }

    /// The caller, when nobody else does, if it still wants to then. Works for who does meanwhile.
    pub fn when_free(
        writer: &'a Mutex<Writer>,
        hands: &'a Hands,
        wants: impl Fn() -> bool,
    ) -> Option<Self> {
        loop {
            let writes = hands.writes();
            if let Some(writing) = Self::if_free(writer, hands) {
                return Some(writing);
            }
            if !wants() {
                return None;
            }
            hands.written(writes);
        }
    }
}

impl Deref for Writing<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }
}

/// Who waits for the end of it is woken.
#[derive(Debug)]
struct Until<'a>(&'a Hands);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.has_written();
    }
}
