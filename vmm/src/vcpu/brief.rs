//! Short waits between threads that answer each other within microseconds.
//!
//! To wake a thread that sleeps on another CPU takes longer than most pauses last. So both sides of
//! a pause stay awake for a moment, and give way to whoever wants their CPU: that may be the very
//! thread that they wait for.

use std::time::{Duration, Instant};

/// Longer than most pauses, shorter than anybody minds.
const BRIEFLY: Duration = Duration::from_micros(100);

/// Waits until `done`, but briefly; the caller looks again, and sleeps if it must.
pub(super) fn wait(mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() && since.elapsed() < BRIEFLY {
        std::thread::yield_now();
    }
}
