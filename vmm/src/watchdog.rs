//! Says what the main thread is doing when it has not come back from it for ten seconds: whoever waits for an answer, or
//! for the end of the run, then knows why, and that a second signal ends the process at once.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use terms::quantity::counted;

use crate::confine::{self, Role};

/// The main thread is late when it has been with one thing for so long.
const LATE: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How much of what is done is said, at most, in bytes.
const NAMED_MAX: usize = 160;

/// What the main thread is doing, and since when.
#[derive(Debug)]
struct Deed {
    what: Cow<'static, str>,
    since: Instant,
    is_said: bool,
}

/// Knows what the main thread is doing. Its own thread ends with it.
#[derive(Debug)]
pub struct Watchdog(Arc<Mutex<Option<Deed>>>);

impl Watchdog {
    /// Looks at the main thread from now on.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start() -> io::Result<Self> {
        let dog = Self(Arc::new(Mutex::new(None)));
        let watched = Arc::downgrade(&dog.0);
        std::thread::Builder::new()
            .name(Role::Watchdog.name().to_owned())
            .spawn(move || {
                confine::enter(Role::Watchdog);
                watch(&watched);
            })?;
        Ok(dog)
    }

    /// From now on it does this.
    pub fn begin(&self, what: impl Into<Cow<'static, str>>) {
        *self.0.lock() = Some(Deed {
            what: what.into(),
            since: Instant::now(),
            is_said: false,
        });
    }

    /// It is done. If it was said to be late, how long it took is said, too.
    pub fn done(&self) {
        let deed = self.0.lock().take();
        if let Some(deed) = deed.filter(|deed| deed.is_said) {
            let took = deed.since.elapsed().as_secs();
            log::warn!("{} has come to its end, after {}", deed.what, seconds(took));
        }
    }
}

/// A request on the control socket, as it is named.
pub fn request(line: &[u8]) -> Cow<'static, str> {
    let shown = line.get(..NAMED_MAX).unwrap_or(line);
    let shown = String::from_utf8_lossy(shown);
    format!("the request {}", shown.trim_end()).into()
}

fn watch(watched: &Weak<Mutex<Option<Deed>>>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(watched) = watched.upgrade() else {
            return;
        };
        if let Some(warning) = late(&mut watched.lock(), Instant::now()) {
            log::warn!("{warning}");
        }
    }
}

/// What is to be said, once for each deed.
fn late(doing: &mut Option<Deed>, now: Instant) -> Option<String> {
    let deed = doing.as_mut().filter(|deed| !deed.is_said)?;
    let busy = now.saturating_duration_since(deed.since);
    if busy < LATE {
        return None;
    }
    deed.is_said = true;
    let so_long = seconds(busy.as_secs());
    Some(format!(
        "the main thread has been busy for {so_long} with {}: nothing else is answered meanwhile; a second signal ends the process at once",
        deed.what
    ))
}

fn seconds(count: u64) -> String {
    counted(count, "second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_said_once_and_named() {
        let since = Instant::now();
        let mut doing = None;
        assert_eq!(late(&mut doing, since), None);
        doing = Some(Deed {
            what: request(b"{\"method\":\"stop\"}\n"),
            since,
            is_said: false,
        });
        let nearly = LATE - Duration::from_millis(1);
        assert_eq!(late(&mut doing, since + nearly), None);
        let said = late(&mut doing, since + LATE).unwrap();
        assert!(
            said.contains("10 seconds with the request {\"method\":\"stop\"}:"),
            "{said}"
        );
        assert_eq!(late(&mut doing, since + 2 * LATE), None);
    }

    #[test]
    fn a_request_is_named_by_its_beginning() {
        let long = [b'x'; 4 * NAMED_MAX];
        assert_eq!(request(&long).len(), "the request ".len() + NAMED_MAX);
        assert_eq!(request(b"\xff"), "the request \u{fffd}");
    }

    #[test]
    fn what_is_done_is_not_late() {
        let dog = Watchdog(Arc::new(Mutex::new(None)));
        dog.begin("a test");
        dog.done();
        assert_eq!(late(&mut dog.0.lock(), Instant::now() + 2 * LATE), None);
    }
}
