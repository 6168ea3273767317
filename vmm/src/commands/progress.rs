//! How far something long is, on a terminal; and that a signal ends it, so that what is half written goes.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use trace::export::compact::is_compact;
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, Watch};

use crate::signals::Signals;

/// What takes less needs no bar.
const LONG: Duration = Duration::from_millis(500);

/// From now on signals are taken, and a bar is on the terminal if stderr is one: of so many calls, where that is known. What is
/// walked through the trace asks what is returned.
///
/// # Errors
/// When the system gives no thread.
pub fn watch(calls: Option<u64>) -> io::Result<Watch> {
    let signals = RefCell::new(Signals::take_over()?);
    let bar = bar(calls);
    Ok(Watch::new(move |calls| {
        bar.set_position(calls);
        !signals.borrow_mut().take()
    }))
}

/// The same for what only reads, and writes to `out` when it has read all: a signal ends that as it ends others. The bar is
/// there when this takes long, and goes before anything is written.
pub fn until_written<W: Write>(calls: Option<u64>, out: W) -> (Watch, AfterBar<W>) {
    let bar = bar(calls);
    let since = Instant::now();
    let shown = bar.clone();
    let watch = Watch::new(move |calls| {
        if since.elapsed() >= LONG {
            shown.set_position(calls);
        }
        true
    });
    (watch, AfterBar { bar, out })
}

/// Calls that a trace should have, for the bar of [`until_written`]; it is not asked where nobody would see it, and not of a
/// compact trace, which is put together to say so.
pub fn written_calls(directory: &Path) -> Option<u64> {
    let is_asked = io::stderr().is_terminal() && !is_compact(directory);
    let trace = is_asked.then(|| TraceDirectory::open(directory).ok());
    Missing::written(&trace??)
}

/// Takes a bar away before anything is written.
#[derive(Debug)]
pub struct AfterBar<W> {
    bar: ProgressBar,
    out: W,
}

impl<W: Write> Write for AfterBar<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
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
