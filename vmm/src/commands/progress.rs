//! How far something long is, on a terminal; and that a signal ends it, so that what is half written goes.

use std::cell::RefCell;
use std::io;

use indicatif::{ProgressBar, ProgressStyle};
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, Watch};

use crate::signals::Signals;

/// From now on signals are taken, and a bar is on the terminal if stderr is one. What is walked through the trace asks what
/// is returned.
///
/// # Errors
/// When the system gives no thread.
pub fn watch(trace: &TraceDirectory) -> io::Result<Watch> {
    let signals = RefCell::new(Signals::take_over()?);
    let bar = bar(Missing::written(trace));
    Ok(Watch::new(move |calls| {
        bar.set_position(calls);
        !signals.borrow_mut().take()
    }))
}

/// Without a number of calls that is known, how many they are so far.
fn bar(calls: Option<u64>) -> ProgressBar {
    let template = match calls {
        Some(_) => "{bar:40} {percent}% of {human_len} calls, {eta} left",
        None => "{spinner} {human_pos} calls",
    };
    let style = ProgressStyle::with_template(template);
    let bar = calls.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    // The template is one of the two above.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[test]
    fn templates_are_understood() {
        for calls in [None, Some(7)] {
            let bar = bar(calls);
            bar.set_draw_target(ProgressDrawTarget::hidden());
            bar.set_position(3);
            assert_eq!((bar.position(), bar.length()), (3, calls));
        }
    }
}
