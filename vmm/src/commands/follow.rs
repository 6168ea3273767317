//! `vmm attach --follow`: after a guest was reset, or runs another kernel, it is waited for until it can be traced again.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::event_loop::EventLoop;
use crate::failure::Failure;
use crate::foreign::process::Process;
use crate::foreign::{Foreign, wait_and_let_go};
use crate::outcome::Outcome;
use crate::signals::Signals;

/// Between two attempts, at least.
const REST: Duration = Duration::from_millis(250);
/// And as many times as long as the last one took: it holds the guest, which would not come to run its kernel on a slow host.
const SHARE: u32 = 4;
const VMM: u64 = 1;
const SIGNAL: u64 = 2;

/// What came of waiting.
#[derive(Debug)]
pub enum Followed {
    /// The guest is traced again.
    Begun(Box<EventLoop<Foreign>>),
    /// It will not be.
    Ended(Outcome),
}

/// Waits until `begin` succeeds: until there is a kernel again. Ends when its VMM has ended, at a signal, and at `end`.
///
/// # Errors
/// When it cannot be waited for.
pub fn follow(
    process: &Process,
    signals: &mut Signals,
    end: Option<Instant>,
    begin: impl Fn() -> Result<EventLoop<Foreign>, Failure>,
) -> Result<Followed, Failure> {
    let failed = |error| Failure::bad_input(format!("the guest cannot be waited for: {error}"));
    let events = listen(process, signals).map_err(failed)?;
    let (mut said, mut took) = (String::new(), Duration::ZERO);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(Followed::Ended(Outcome::Elapsed));
        }
        let rest = REST.max(SHARE * took);
        let rest = left.map_or(rest, |left| left.min(rest));
        match rung_within(&events, rest).map_err(failed)? {
            Some(VMM) => return Ok(Followed::Ended(Outcome::of_ended(process))),
            Some(_) if signals.take() => return Ok(Followed::Ended(Outcome::Interrupted)),
            _ => {}
        }
        let begun = Instant::now();
        let next = begin();
        took = begun.elapsed();
        match next {
            Ok(events) => return Ok(Followed::Begun(Box::new(events))),
            Err(failure) => say(&failure.message, &mut said),
        }
    }
}

/// Says why not yet, if that is not what was `said` last: what will never be otherwise is said once, as is what takes its time. Numbers
/// in it are no news: there are times and addresses.
fn say(why: &str, said: &mut String) {
    let kind: String = why.chars().filter(|one| !one.is_ascii_hexdigit()).collect();
    if kind != *said {
        log::warn!("not yet: {why}");
        *said = kind;
    }
}

/// What rings when the VMM ends, or a signal comes.
fn listen(process: &Process, signals: &Signals) -> io::Result<Epoll> {
    let events = Epoll::new()?;
    for (of, fd) in [
        (VMM, process.as_fd().as_raw_fd()),
        (SIGNAL, signals.as_raw_fd()),
    ] {
        let wanted = EpollEvent::new(EventSet::IN, of);
        events.ctl(ControlOperation::Add, fd, wanted)?;
    }
    Ok(events)
}

/// Waits so long, and lets threads go meanwhile that did not stop in time for the last attempt. Says what has rung.
fn rung_within(events: &Epoll, rest: Duration) -> io::Result<Option<u64>> {
    let mut rung = Ok(None);
    wait_and_let_go(rest, &mut |part| {
        rung = wait(events, part);
        !matches!(rung, Ok(None))
    });
    rung
}

/// Waits for a moment. Says what has rung.
fn wait(events: &Epoll, rest: Duration) -> io::Result<Option<u64>> {
    let milliseconds = i32::try_from(rest.as_millis()).unwrap_or(i32::MAX);
    let mut rung = [EpollEvent::default()];
    match events.wait(milliseconds.max(1), &mut rung) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(rung.first().map(EpollEvent::data)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::stuck::Stuck;

    const NEVER: Duration = Duration::from_secs(60);

    /// It stood until the next kernel of the guest was found.
    #[test]
    fn who_follows_a_guest_lets_go_who_was_late_while_it_waits() {
        let stuck = Stuck::late();
        let events = Epoll::new().unwrap();
        let wanted = EpollEvent::new(EventSet::IN, VMM);
        events
            .ctl(ControlOperation::Add, stuck.bell(), wanted)
            .unwrap();
        let nothing = rung_within(&events, Duration::from_millis(1)).unwrap();
        assert_eq!(nothing, None);
        stuck.is_to_go_on();
        // It says something as soon as it goes on.
        assert_eq!(rung_within(&events, NEVER).unwrap(), Some(VMM));
        stuck.goes_on();
    }
}
