//! `vmm ctl tail`: what a session records, as it comes.

use terms::printable;
use trace::live::{Lines, LiveEvent};

use super::stdout;
use crate::control::client::Asked;
use crate::control::methods::listening::Subscribe;
use crate::control::methods::sessions::OfSession;
use crate::control::subscription::Told;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, TailOptions};

/// Prints events until the session ends, there were enough, or nobody reads them any more.
pub(super) fn tail(options: &CtlOptions, of: &TailOptions) -> Result<ExitStatus, Failure> {
    let session = of.session.clone();
    let method = Subscribe(OfSession { session });
    let (mut asked, _) = Asked::new(options.control()?, &method).map_err(Failure::bad_input)?;
    let mut lines = Lines::default();
    let mut left = of.count.unwrap_or(u64::MAX);
    if !options.json && !stdout::offer(Lines::header())? {
        return Ok(ExitStatus::Success);
    }
    loop {
        match asked.told().map_err(Failure::bad_input)? {
            Told::Events(mut some) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX);
                some.events.truncate(count);
                left -= some.events.len() as u64;
                let text = match options.json {
                    true => json(&some.events)?,
                    false => shown(&mut lines, some.events),
                };
                if !stdout::offer(text)? || left == 0 {
                    return Ok(ExitStatus::Success);
                }
            }
            Told::Ended(ended) => {
                if ended.unread > 0 {
                    let unread = ended.unread;
                    log::warn!("{unread} events at the end came faster than they were taken");
                }
                return Ok(ExitStatus::Success);
            }
            Told::Other => {}
        }
    }
}

fn json(events: &[LiveEvent]) -> Result<String, Failure> {
    let lines = events.iter().map(printable::json);
    let lines = lines.map(|line| line.map(|line| line + "\n"));
    lines.collect::<Result<_, _>>().map_err(Failure::output)
}

fn shown(lines: &mut Lines, events: Vec<LiveEvent>) -> String {
    events.into_iter().for_each(|event| lines.add(event));
    lines.take()
}
