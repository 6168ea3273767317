//! Calls that stubs have counted because they found their ring full, as far as they are lost: what is called on a ring that is
//! closed is nobody's loss.

/// What has been counted of one ring while it was closed.
///
/// A stub that ends recording by the limits of all rings opens those that were closed, as far as counting goes: from then on
/// each call there is counted. Which of them it was is not known later, but how many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Discards {
    /// The count of when it was closed, if it is.
    closed_at: Option<u64>,
    /// Counted while it was closed before.
    uncounted: u64,
}

impl Discards {
    /// Of a ring that is closed, of which nothing is counted.
    pub const NONE: Self = Self {
        closed_at: Some(0),
        uncounted: 0,
    };

    /// The ring is open from now on, or closed, and so many are counted.
    pub fn switch(&mut self, is_open: bool, count: u64) {
        match (self.closed_at, is_open) {
            (Some(closed_at), true) => {
                let more = count.wrapping_sub(closed_at);
                self.uncounted = self.uncounted.wrapping_add(more);
                self.closed_at = None;
            }
            (None, false) => self.closed_at = Some(count),
            (Some(_), false) | (None, true) => {}
        }
    }

    /// How many are lost when so many are counted.
    pub fn of(self, count: u64) -> u64 {
        let count = self.closed_at.unwrap_or(count);
        count.wrapping_sub(self.uncounted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_while_a_ring_is_closed_is_not_lost() {
        let mut discards = Discards::NONE;
        assert_eq!(discards.of(7), 0);
        discards.switch(true, 10);
        assert_eq!((discards.of(10), discards.of(13)), (0, 3));
        discards.switch(true, 14);
        assert_eq!(discards.of(14), 4, "it was open");
        discards.switch(false, 15);
        discards.switch(false, 40);
        assert_eq!(discards.of(99), 5, "it was closed");
        discards.switch(true, 100);
        assert_eq!((discards.of(100), discards.of(102)), (5, 7));
    }
}
