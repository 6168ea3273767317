//! Where the figures of a session come from: a profile counts itself, of another session it is counted what it tells
//! as it records.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Mutex;
use status::SessionStatus;
use tracer::tracing::options::Tracer;

use super::counted::Counted;
use super::heard::Heard;
use crate::control::client::{self, Asked, RequestError};
use crate::control::method::Nothing;
use crate::control::methods::guest::ShowStatus;
use crate::control::methods::listening::Subscribe;
use crate::control::methods::sessions::OfSession;
use crate::control::methods::tracing::ShowProfile;
use crate::control::status::Status;
use crate::control::subscription::Told;

/// One session that is looked at again and again.
#[derive(Debug)]
pub struct Source {
    control: PathBuf,
    session: String,
    period_ns: Option<u64>,
    /// None of a profile.
    listening: Option<Listening>,
}

impl Source {
    /// Begins with this session.
    ///
    /// # Errors
    /// [`RequestError`] when the VMM is not there or does not let us listen.
    pub fn new(control: &Path, session: &SessionStatus) -> Result<Self, RequestError> {
        Self::after(Arc::default(), control, session)
    }

    /// Begins with this session, of which this was heard before.
    fn after(
        heard: Arc<Mutex<Heard>>,
        control: &Path,
        session: &SessionStatus,
    ) -> Result<Self, RequestError> {
        let is_profile = session.tracer == Tracer::Profile.to_string();
        let name = session.name.clone();
        let listening = match is_profile {
            true => None,
            false => Some(Listening::new(control, name.clone(), heard)?),
        };
        Ok(Self {
            control: control.to_path_buf(),
            session: name,
            period_ns: session.clock_period_ns,
            listening,
        })
    }

    /// What is known now of all functions, or of the callers of one. Where nothing is heard any more, it listens again: to
    /// the session of this name, which may be another one by now and is counted from its beginning then.
    ///
    /// # Errors
    /// [`RequestError`] of a profile that cannot be asked for, and where nothing is heard, and will not be.
    pub fn look(&mut self, callers_of: Option<&str>) -> Result<Counted, RequestError> {
        if self.listening.as_mut().is_some_and(Listening::is_over) {
            self.listen_again()?;
        }
        if let Some(heard) = self.heard(callers_of) {
            return Ok(heard);
        }
        let session = self.session.clone().into();
        let profile = client::call(&self.control, &ShowProfile(OfSession { session }))?;
        Ok(Counted::of(&profile))
    }

    /// What was heard by now, also where nothing is heard any more; none of a profile.
    #[must_use]
    pub fn heard(&self, callers_of: Option<&str>) -> Option<Counted> {
        let heard = self.listening.as_ref()?.heard.lock();
        Some(Counted {
            at: Instant::now(),
            session: self.session.clone(),
            period_ns: self.period_ns,
            rows: callers_of.map_or_else(|| heard.rows(), |of| heard.callers(of)),
            unread: heard.unread(),
        })
    }

    fn listen_again(&mut self) -> Result<(), RequestError> {
        let (_, session) = session_of(&self.control, &self.session)?;
        let same = self.listening.iter().find(|last| last.was_broken());
        let heard = same.map_or_else(Arc::default, |last| Arc::clone(&last.heard));
        heard.lock().missed();
        let next = Self::after(heard, &self.control, &session)?;
        let mut last = std::mem::replace(self, next);
        match last.listening.as_mut().and_then(|last| last.over.take()) {
            // It will be heard again, and said again.
            Some(Over::NotUnderstood(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether it hears of each call from now on, and so knows who made it: a profile has counted before, and does not.
    #[must_use]
    pub const fn hears_calls(&self) -> bool {
        self.listening.is_some()
    }
}

/// The session of this name.
///
/// # Errors
/// [`RequestError`] in the VMM's own words, when there is none.
pub fn session_of(control: &Path, name: &str) -> Result<(Status, SessionStatus), RequestError> {
    loop {
        let status = client::call(control, &ShowStatus(Nothing {}))?;
        let mut sessions = status.tracing.sessions.iter();
        if let Some(session) = sessions.find(|session| session.name == name) {
            let session = session.clone();
            return Ok((status, session));
        }
        // Where this is no error, it came between the two requests.
        let session = name.to_owned().into();
        client::call(control, &ShowProfile(OfSession { session }))?;
    }
}

/// Why nothing is heard any more.
#[derive(Debug)]
enum Over {
    /// The session has ended: what has its name now is another one.
    Session,
    /// The connection has, by the VMM's wish or not: the session may go on.
    Connection,
    /// What comes is of another version.
    NotUnderstood(RequestError),
}

/// A subscription and the thread that counts what it tells.
#[derive(Debug)]
struct Listening {
    heard: Arc<Mutex<Heard>>,
    connection: UnixStream,
    thread: Option<JoinHandle<Over>>,
    over: Option<Over>,
}

impl Listening {
    /// Counts what is told from now on as well.
    fn new(
        control: &Path,
        session: String,
        heard: Arc<Mutex<Heard>>,
    ) -> Result<Self, RequestError> {
        let session = session.into();
        let (asked, _) = Asked::new(control, &Subscribe(OfSession { session }))?;
        let connection = asked.connection()?;
        let into = Arc::clone(&heard);
        let thread = thread::spawn(move || listen(asked, &into));
        Ok(Self {
            heard,
            connection,
            thread: Some(thread),
            over: None,
        })
    }

    /// Whether nothing is heard any more.
    fn is_over(&mut self) -> bool {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.over = Some(thread.join().unwrap_or(Over::Connection));
        }
        self.over.is_some()
    }

    /// Whether the connection was over, and not the session.
    const fn was_broken(&self) -> bool {
        matches!(self.over, Some(Over::Connection))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The thread ends by it; where the VMM has gone, it has ended already.
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// Until there is nothing more.
fn listen(mut asked: Asked, into: &Mutex<Heard>) -> Over {
    loop {
        match asked.told() {
            Ok(Told::Events(some)) => {
                let mut heard = into.lock();
                some.events.iter().for_each(|event| heard.add(event));
            }
            Ok(Told::Ended(ended)) => {
                into.lock().more_unread(ended.unread);
                return Over::Session;
            }
            Ok(Told::Other) => {}
            Err(error @ (RequestError::Refused(_) | RequestError::Broken { .. })) => {
                log::debug!("nothing is heard of the session any more: {error}");
                return Over::Connection;
            }
            Err(error) => return Over::NotUnderstood(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use serde_json::{Value, json};
    use trace::live::{Happening, LiveEvent};

    use super::*;
    use crate::control::protocol::{Response, RpcError, TOO_MANY_CLIENTS, notification};
    use crate::control::status::{GuestStatus, MemoryStatus, Pauses};
    use crate::control::subscription::{ENDED, EVENTS, SomeEvents, TailEnded};
    use crate::pause_times::PauseTimes;

    fn session() -> SessionStatus {
        SessionStatus {
            name: "s".to_owned(),
            tracer: "graph".to_owned(),
            ..SessionStatus::default()
        }
    }

    fn status() -> Status {
        let times = PauseTimes::default();
        let mut status = Status {
            memory: MemoryStatus::default(),
            guest: GuestStatus {
                state: "running".to_owned(),
                kernel: "vmlinux".to_owned(),
                memory_mib: 64,
                uptime_ms: 1,
            },
            vcpus: Vec::new(),
            tracing: Default::default(),
            pauses: Pauses::from(tracer::guest::Pauses::from(&times)),
            triggers: Vec::new(),
        };
        status.tracing.sessions.push(session());
        status
    }

    /// Calls of `f`, one inside the other.
    fn calls(count: u32) -> String {
        let call = |depth| LiveEvent {
            time_ns: 0,
            vcpu: 0,
            thread: 1,
            task: None,
            depth,
            what: Happening::Call {
                function: "f".to_owned(),
                args: Default::default(),
            },
        };
        let events = SomeEvents {
            session: "s".to_owned(),
            events: (0..count).map(call).collect(),
        };
        notification(EVENTS, &events)
    }

    fn ended() -> String {
        let ended = TailEnded {
            session: "s".to_owned(),
            unread: 0,
        };
        notification(ENDED, &ended)
    }

    fn no_room() -> String {
        let error = RpcError::new(TOO_MANY_CLIENTS, "connect again");
        Response::new(Value::Null, Err(error)).line()
    }

    /// A VMM with one session, which tells each who subscribes the next of these, and no more. Then it is gone.
    fn vmm(path: &Path, told: &[String]) -> JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        let told = told.to_vec();
        thread::spawn(move || {
            let mut told = told.into_iter().peekable();
            while told.peek().is_some() {
                let (mut client, _) = listener.accept().unwrap();
                let mut line = String::new();
                let mut from = BufReader::new(client.try_clone().unwrap());
                from.read_line(&mut line).unwrap();
                let asked: BTreeMap<String, Value> = serde_json::from_str(&line).unwrap();
                let (result, after) = match asked["method"] == "subscribe" {
                    true => (json!({"session": "s"}), told.next().unwrap()),
                    false => (serde_json::to_value(status()).unwrap(), String::new()),
                };
                let reply = Response::new(asked["id"].clone(), Ok(result)).line();
                client.write_all((reply + &after).as_bytes()).unwrap();
            }
        })
    }

    /// Calls that were heard when all was told that was to be heard from it.
    fn hits(source: &mut Source) -> u64 {
        while !source.listening.as_mut().unwrap().is_over() {
            thread::yield_now();
        }
        source.heard(None).unwrap().hits()
    }

    /// It once went on for ever with what it had heard.
    #[test]
    fn where_no_more_is_told_it_listens_again_and_says_so_where_it_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let told = [
            calls(3) + &no_room(),
            calls(2),
            calls(1) + &ended(),
            calls(7) + &ended(),
        ];
        let vmm = vmm(&path, &told);
        let mut source = Source::new(&path, &session()).unwrap();
        assert_eq!(hits(&mut source), 3);
        // The session goes on: these are more. It is told that there is no room for it, and then nothing at all.
        for all in [5, 6] {
            source.look(None).unwrap();
            assert_eq!(hits(&mut source), all);
        }
        // It has ended, and there is another one of its name.
        source.look(None).unwrap();
        assert_eq!(hits(&mut source), 7);
        vmm.join().unwrap();
        for _ in 0..2 {
            let error = source.look(None).unwrap_err();
            assert!(matches!(error, RequestError::Connect { .. }), "{error}");
        }
        assert_eq!(source.heard(None).unwrap().hits(), 7);
    }
}
