//! Work that is done side by side: by the thread that has it, and by others that have time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Who does it.
pub trait Crew {
    /// Has all of it done, by the caller and whoever else has time, and returns when all of it is. A job that fails in
    /// another thread is over, too.
    fn run(&self, jobs: Vec<Job>);

    /// Whether to have others work on so many records is worth it: to have them begin takes time, too.
    fn is_worth_sharing(&self, records: usize) -> bool;
}

/// Nobody but the caller.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Crew for Alone {
    fn run(&self, jobs: Vec<Job>) {
        jobs.into_iter().for_each(|job| job());
    }

    fn is_worth_sharing(&self, _records: usize) -> bool {
        false
    }
}

/// What a thread has failed with.
pub type Failure = Box<dyn Any + Send>;

/// Does `work` on each of these, and gives them back in their order; also what it has failed with, if it has: then one of them
/// is what it was at that time.
pub fn on_each<T: Send + 'static>(
    crew: &dyn Crew,
    each: Vec<T>,
    work: fn(&mut T),
) -> (Vec<T>, Option<Failure>) {
    let each = each.into_iter().map(|one| Arc::new(Mutex::new(Some(one))));
    let each: Vec<_> = each.collect();
    let failure = Arc::new(Mutex::new(None));
    let job = |one: &Arc<Mutex<Option<T>>>| -> Job {
        let (one, failure) = (Arc::clone(one), Arc::clone(&failure));
        Box::new(move || {
            let Some(one) = &mut *lock(&one) else { return };
            if let Err(failed) = catch_unwind(AssertUnwindSafe(|| work(one))) {
                *lock(&failure) = Some(failed);
            }
        })
    };
    crew.run(each.iter().map(job).collect());
    let back = each.iter().filter_map(|one| lock(one).take());
    let back = back.collect();
    let failure = lock(&failure).take();
    (back, failure)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ThreadEach;

    #[test]
    fn all_are_worked_on_once_and_come_back_in_their_order() {
        let crews: [&dyn Crew; 2] = [&Alone, &ThreadEach];
        for crew in crews {
            let (done, failure) =
                on_each(crew, (0..50).collect(), |number: &mut u32| *number += 100);
            assert_eq!(done, (100..150).collect::<Vec<_>>());
            assert!(failure.is_none());
            assert!(on_each(crew, Vec::<u32>::new(), |_| {}).0.is_empty());
        }
    }

    /// What was lent for it is not lost.
    #[test]
    fn what_somebody_fails_at_comes_back_too() {
        let crews: [&dyn Crew; 2] = [&Alone, &ThreadEach];
        for crew in crews {
            let (done, failure) = on_each(crew, vec![1, 2, 3], |number| {
                *number *= 10;
                assert_ne!(*number, 20, "this one fails");
            });
            assert_eq!(done, [10, 20, 30]);
            assert!(failure.is_some());
        }
    }
}
