//! Room for records that have been written, for the next ones: so that who reads asks the system for none.

use std::sync::{Arc, Mutex};

use trace::columns::{Part, StepColumns};
use trace::event::Record;

use super::looks::lock;

/// So much room is kept: a batch of each ring of a large guest.
const ROOMS_MAX: usize = 64;

/// That of one session, for all who read and who write.
#[derive(Debug, Clone, Default)]
pub(super) struct Rooms(Arc<Mutex<Vec<Part>>>);

impl Rooms {
    /// The largest that there is, for rows.
    pub fn rows(&self) -> Vec<Record> {
        match self.largest(|room| matches!(room, Part::Rows(_))) {
            Some(Part::Rows(rows)) => rows,
            Some(Part::Steps(_)) | None => Vec::new(),
        }
    }

    /// The same, for steps in columns.
    pub fn steps(&self) -> StepColumns {
        match self.largest(|room| matches!(room, Part::Steps(_))) {
            Some(Part::Steps(steps)) => steps,
            Some(Part::Rows(_)) | None => StepColumns::default(),
        }
    }

    fn largest(&self, is_wanted: impl Fn(&Part) -> bool) -> Option<Part> {
        let mut all = lock(&self.0);
        let rooms = all.iter().enumerate().filter(|(_, room)| is_wanted(room));
        let (index, _) = rooms.max_by_key(|(_, room)| room.room())?;
        Some(all.swap_remove(index))
    }

    /// It is what the next records come into. Where there are many already it is kept for the smallest of them: losses and waits
    /// have room for one or a few, and nobody takes that.
    pub fn keep(&self, room: Part) {
        let mut all = lock(&self.0);
        if room.room() == 0 {
            return;
        }
        if all.len() < ROOMS_MAX {
            return all.push(room);
        }
        let smallest = all.iter_mut().min_by_key(|kept| kept.room());
        if let Some(smallest) = smallest.filter(|kept| kept.room() < room.room()) {
            *smallest = room;
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
    use terms::function::FunctionId;
    use trace::columns::Columns;
    use trace::event::SlotStep;
    use trace::form::Form;

    use super::*;

    #[test]
    fn the_largest_is_given_first_and_not_more_are_kept_than_are_wanted() {
        let rooms = Rooms::default();
        let rows = |capacity| Part::Rows(Vec::with_capacity(capacity));
        assert_eq!(rooms.rows().capacity(), 0);
        rooms.keep(rows(0));
        assert_eq!(rooms.count(), 0, "that is no room");
        for capacity in [3, 90, 8] {
            rooms.keep(rows(capacity));
        }
        assert!(rooms.rows().capacity() >= 90);
        assert_eq!(rooms.count(), 2);
        assert_eq!(rooms.steps(), StepColumns::default());
        assert_eq!(rooms.count(), 2, "room of rows is none for steps");
        (0..2 * ROOMS_MAX).for_each(|_| rooms.keep(rows(1)));
        assert_eq!(rooms.count(), ROOMS_MAX);
    }

    /// Else a session that lost something would ask the system for all room from then on.
    #[test]
    fn much_room_is_kept_for_little() {
        let rooms = Rooms::default();
        (0..ROOMS_MAX).for_each(|_| rooms.keep(Part::Rows(Vec::with_capacity(4))));
        let mut columns = Columns::new(1 << 14);
        columns.steps(
            &[1; 100],
            &[FunctionId(0); 100],
            &[SlotStep::default(); 100],
        );
        columns
            .into_parts()
            .into_iter()
            .for_each(|part| rooms.keep(part));
        assert_eq!(rooms.count(), ROOMS_MAX);
        assert_ne!(rooms.steps(), StepColumns::default());
        assert_eq!(rooms.count(), ROOMS_MAX - 1);
    }
}
