//! `vmm run`: boots a guest and stays with it until it ends.

use std::time::Duration;

use crate::cli::RunOptions;
use crate::devices::console::ConsoleWriter;
use crate::event_loop::{EventLoop, Outcome};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::layout;
use crate::loader::KernelFile;
use crate::machine::{Machine, MachineConfig};
use crate::signals::Signals;
use crate::terminal::ConsoleStdin;

/// Time that the console output has to get out after the guest has ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the guest.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn run(options: &RunOptions) -> Result<ExitStatus, Failure> {
    let signals = Signals::block().map_err(Failure::bad_input)?;
    let kernel = KernelFile::read(&options.kernel).map_err(Failure::bad_input)?;
    let console = ConsoleWriter::start(std::io::stdout()).map_err(Failure::output)?;
    let config = MachineConfig {
        cmdline: options.cmdline.clone(),
        vcpus: options.vcpus,
        memory_mib: options.memory,
        window_bytes: layout::WINDOW_SIZE,
    };
    let mut machine = Machine::build(&config, &kernel, console.queue())?;
    machine.start(None)?;
    let stdin = ConsoleStdin::open().map_err(Failure::bad_input)?;
    let limit = options.timeout.map(Duration::from_secs);
    let outcome = EventLoop::new(machine, signals, stdin, limit).and_then(EventLoop::run);
    let lost = console.finish(CONSOLE_PATIENCE);
    if lost > 0 {
        log::warn!("stdout does not take the guest's last {lost} bytes of console output");
    }
    report(outcome.map_err(Failure::bad_input)?)
}

fn report(outcome: Outcome) -> Result<ExitStatus, Failure> {
    match outcome {
        Outcome::GuestExit(status) => Ok(ExitStatus::Guest(status)),
        Outcome::Reset | Outcome::Shutdown => Ok(ExitStatus::Success),
        Outcome::Crashed(details) => {
            let message = format!("the guest crashed: {details}");
            Err(Failure::new(ExitStatus::GuestCrashed, message))
        }
        Outcome::TimedOut(limit) => {
            let seconds = limit.as_secs();
            let message = format!("the guest did not end within {seconds} s (--timeout)");
            Err(Failure::new(ExitStatus::TimedOut, message))
        }
        Outcome::Interrupted => Err(Failure::new(
            ExitStatus::Interrupted,
            "interrupted; everything is finished",
        )),
    }
}
