//! `vmm ctl top`: what a session counts, again and again: a screen on a terminal, else tables as plain text.

pub mod counted;
mod heard;
mod keys;
mod screen;
mod source;
pub mod table;
mod view;
mod watch;

use std::io::{IsTerminal, stdin, stdout};
use std::thread;

use super::stdout::offer;
use crate::control::client::RequestError;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, TopOptions};
use counted::Counted;
use source::{Source, session_of};
use table::{ROWS, json_line, table};

/// Shows figures until there were enough of them, nobody reads them any more, or it is told to end.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn top(options: &CtlOptions, top: &TopOptions) -> Result<ExitStatus, Failure> {
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    match top.count {
        None if is_terminal && !options.json => {
            watch::watch(options.control()?, &top.session.0, top.interval)
        }
        count => tables(options, top, count.unwrap_or(1)),
    }
}

/// So many tables, one after the other.
fn tables(options: &CtlOptions, top: &TopOptions, count: u64) -> Result<ExitStatus, Failure> {
    let failed = |error: RequestError| Failure::bad_input(error);
    let (_, session) = session_of(options.control()?, &top.session.0).map_err(failed)?;
    let shown = |counted: &Counted, before: Option<&Counted>| match options.json {
        true => json_line(counted).map_err(Failure::output),
        false => Ok(table(counted, before, ROWS)),
    };
    let mut source = Source::new(options.control()?, &session).map_err(failed)?;
    let mut before: Option<Counted> = match source.hears_calls() {
        true => Some(source.look(None).map_err(failed)?),
        false => None,
    };
    for number in 0..count {
        if number > 0 || source.hears_calls() {
            thread::sleep(top.interval);
        }
        let counted = match source.look(None) {
            Ok(counted) => counted,
            Err(error) => {
                // What came by then was heard.
                if let Some(heard) = source.heard(None) {
                    offer(shown(&heard, before.as_ref())?)?;
                }
                return Err(failed(error));
            }
        };
        if !offer(shown(&counted, before.as_ref())?)? {
            break;
        }
        before = Some(counted);
    }
    Ok(ExitStatus::Success)
}
