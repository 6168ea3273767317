//! What is told when a run, or an attachment, has ended.

use std::io::Write as _;

use super::top::counted::Counted;
use super::top::table::{ROWS, table};
use crate::black_box::BlackBox;
use crate::closing::ClosingLine;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::outcome::Outcome;
use tracer::tracing::Finished;
use tracer::tracing::closing::Closing;

/// Shows the last calls of a guest that died, and how each session has ended.
pub fn show(finished: Finished) {
    for last in finished.last_calls {
        let black_box = BlackBox::from(last);
        let shown = black_box.print(std::io::stderr());
        shown.unwrap_or_else(|error| log::warn!("the last calls cannot be shown: {error}"));
    }
    finished.closings.iter().for_each(say);
}

/// How a session ended, after everything that it has shown.
fn say(closing: &Closing) {
    match closing {
        Closing::Unasked(profile) => {
            // Nobody is left to tell when stderr is closed.
            let _ = write!(
                std::io::stderr(),
                "{}",
                table(&Counted::of(profile), None, ROWS)
            );
        }
        closing if closing.is_warning() => log::warn!("{}", ClosingLine(closing)),
        closing => log::info!("{}", ClosingLine(closing)),
    }
}

/// How the process is to end.
///
/// # Errors
/// [`Failure`] when that is not as wanted.
pub fn report(outcome: Outcome) -> Result<ExitStatus, Failure> {
    match outcome {
        Outcome::GuestExit(status) => Ok(ExitStatus::Guest(status)),
        Outcome::Reset | Outcome::PowerOff | Outcome::Shutdown | Outcome::Elapsed => {
            Ok(ExitStatus::Success)
        }
        Outcome::Vanished(pid) => {
            log::info!("process {pid} has ended, and the guest with it");
            Ok(ExitStatus::Success)
        }
        Outcome::Killed { pid, signal } => {
            let signal = match signal_name(signal) {
                Some(name) => name.to_owned(),
                None => format!("signal {signal}"),
            };
            let message = format!("process {pid} was killed by {signal}, and the guest with it");
            Err(Failure::new(ExitStatus::GuestCrashed, message))
        }
        Outcome::Replaced => {
            log::info!("the trace ends there: --follow goes on with the kernel that starts next");
            Ok(ExitStatus::Success)
        }
        Outcome::Failed(failure) => Err(failure),
        Outcome::Crashed(details) => {
            let message = format!("the guest crashed: {details}");
            Err(Failure::new(ExitStatus::GuestCrashed, message))
        }
        Outcome::Panicked(vcpu) => {
            let message =
                format!("the guest's kernel panicked on vCPU {vcpu}; its console says why");
            Err(Failure::new(ExitStatus::GuestPanicked, message))
        }
        Outcome::TimedOut { limit, places } => {
            let seconds = limit.as_secs_f64();
            let places = places.map_or_else(String::new, |places| format!(": {places}"));
            let message = format!("the guest did not end within {seconds} s (--timeout){places}");
            Err(Failure::new(ExitStatus::TimedOut, message))
        }
        Outcome::Interrupted => Err(Failure::new(
            ExitStatus::Interrupted,
            "interrupted; everything is finished",
        )),
    }
}

/// What those are called by which a process usually is killed.
const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        libc::SIGABRT => "SIGABRT",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_whose_vmm_was_killed_has_not_ended_well() {
        let killed = |signal| report(Outcome::Killed { pid: 7, signal }).unwrap_err();
        let failure = killed(libc::SIGKILL);
        let said = "process 7 was killed by SIGKILL, and the guest with it";
        assert_eq!((failure.status.code(), &*failure.message), (102, said));
        assert!(killed(64).message.contains("by signal 64,"));
        assert_eq!(report(Outcome::Vanished(7)).unwrap(), ExitStatus::Success);
    }
}
