//! `many`: ten thousand functions, each called once per iteration.

use workloads::many::MANY;

use crate::console::print;
use crate::options::Options;
use crate::workload::{first_value, print_checksum};

/// Calls the first `many_functions` of them `iterations` times, on the main thread.
pub fn run(options: &Options) {
    let mut value = first_value(options.seed, 0);
    let called = MANY.iter().take(options.many_functions);
    for _ in 0..options.iterations {
        for function in called.clone() {
            value = function(value).rotate_left(1);
        }
    }
    if options.many_calls {
        for number in 0..called.len() {
            print(format_args!(
                "calls many_{number:04} {}",
                options.iterations
            ));
        }
    }
    print_checksum("many", value);
}

/// Prints the names of the first `many_functions`.
pub fn list(options: &Options) {
    for number in 0..MANY.len().min(options.many_functions) {
        print(format_args!("function many_{number:04}"));
    }
}
