//! `locks`: threads that are preempted and migrate count in the same words. What the words hold at the end
//! shows whether an update was lost.

use workloads::locks::{ADDED, EXCHANGED};

use crate::console::print;

/// Prints the words, and sets them to 0 for the next time.
pub fn print_words() {
    for (name, word) in [("added", &ADDED), ("exchanged", &EXCHANGED)] {
        print(format_args!("counter {name} {}", word.load()));
        word.store(0);
    }
}
