//! Room for records that have been written, for the next ones: so that who reads asks the system for none.

use std::sync::{Arc, Mutex};

use trace::event::Record;

use super::looks::lock;

/// So much room is kept: a batch of each ring of a large guest.
const ROOMS_MAX: usize = 64;

/// That of one session, for all who read and who write.
#[derive(Debug, Clone, Default)]
pub(super) struct Rooms(Arc<Mutex<Vec<Vec<Record>>>>);

impl Rooms {
    /// The largest that there is.
    pub fn take(&self) -> Vec<Record> {
        let mut all = lock(&self.0);
        let rooms = all.iter().enumerate();
        let largest = rooms.max_by_key(|(_, room)| room.capacity());
        let index = largest.map(|(index, _)| index);
        index.map_or_else(Vec::new, |index| all.swap_remove(index))
    }

    /// It is what the next records come into.
    pub fn keep(&self, room: Vec<Record>) {
        let mut all = lock(&self.0);
        if room.capacity() > 0 && all.len() < ROOMS_MAX {
            all.push(room);
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_given_first_and_not_more_are_kept_than_are_wanted() {
        let rooms = Rooms::default();
        assert_eq!(rooms.take().capacity(), 0);
        rooms.keep(Vec::new());
        assert_eq!(rooms.count(), 0, "that is no room");
        for capacity in [3, 90, 8] {
            rooms.keep(Vec::with_capacity(capacity));
        }
        assert!(rooms.take().capacity() >= 90);
        assert_eq!(rooms.count(), 2);
        (0..2 * ROOMS_MAX).for_each(|_| rooms.keep(Vec::with_capacity(1)));
        assert_eq!(rooms.count(), ROOMS_MAX);
    }
}
