//! Who watches how far a long walk through a trace is, and may end it.

use std::fmt;
use std::rc::Rc;

/// Steps from one time that is told to the next.
const EVERY: u64 = 1 << 14;

/// Told now and then how many calls were read so far; says whether to go on.
#[derive(Clone, Default)]
pub struct Watch(Option<Rc<dyn Fn(u64) -> bool>>);

impl Watch {
    /// One that asks this.
    #[must_use]
    pub fn new(goes_on: impl Fn(u64) -> bool + 'static) -> Self {
        Self(Some(Rc::new(goes_on)))
    }

    /// Whether the walk goes on after so many steps, in which `calls` says how many calls were read.
    pub(crate) fn goes_on(&self, steps: u64, calls: impl FnOnce() -> u64) -> bool {
        let asked = self.0.as_ref().filter(|_| steps.is_multiple_of(EVERY));
        asked.is_none_or(|goes_on| goes_on(calls()))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watch" } else { "nobody" })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_watches_is_asked_now_and_then() {
        assert!(Watch::default().goes_on(0, || panic!("nobody asks")));
        let told = Rc::new(Cell::new(0));
        let watch = Watch::new({
            let told = Rc::clone(&told);
            move |calls| {
                told.set(calls);
                calls < 10
            }
        });
        assert!(watch.goes_on(EVERY, || 3));
        assert!(watch.goes_on(EVERY + 1, || panic!("too often")));
        assert_eq!(told.get(), 3);
        assert!(!watch.goes_on(2 * EVERY, || 10));
    }
}
