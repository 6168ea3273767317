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
                left -= first(&mut some.events, left);
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

/// Leaves so many events of the guest's, with what is said before the last of them. Returns how many there are.
fn first(events: &mut Vec<LiveEvent>, most: u64) -> u64 {
    let mut count = 0;
    let is_last = |event: &LiveEvent| {
        count += u64::from(event.is_of_guest());
        count == most
    };
    if let Some(last) = events.iter().position(is_last) {
        events.truncate(last + 1);
    }
    count
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

#[cfg(test)]
mod tests {
    use trace::live::Happening;

    use super::*;

    fn event(what: Happening) -> LiveEvent {
        LiveEvent {
            time_ns: 0,
            vcpu: 0,
            thread: 0,
            task: None,
            depth: 0,
            what,
        }
    }

    #[test]
    fn what_is_said_of_losses_is_none_of_the_events_that_are_wanted() {
        let entry = || {
            event(Happening::Entry {
                function: "f".to_owned(),
                caller: None,
            })
        };
        let count = 7;
        let remarks = [
            Happening::Lost { count },
            Happening::LostEvents { count },
            Happening::Unread { count },
            Happening::Stall { length_ns: count },
            Happening::Wait { length_ns: count },
        ];
        for remark in remarks {
            let remark = || event(remark.clone());
            let told = vec![remark(), entry(), remark(), entry(), remark(), entry()];
            for (most, counted, left) in [(1, 1, 2), (2, 2, 4), (3, 3, 6), (4, 3, 6)] {
                let mut told = told.clone();
                assert_eq!((first(&mut told, most), told.len()), (counted, left));
            }
        }
    }
}
