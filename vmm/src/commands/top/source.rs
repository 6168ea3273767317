//! Where the figures of a session come from: a profile counts itself, of another session it is counted what it tells
//! as it records.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
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
        let is_profile = session.tracer == Tracer::Profile.to_string();
        let name = session.name.clone();
        let listening = match is_profile {
            true => None,
            false => Some(Listening::new(control, name.clone())?),
        };
        Ok(Self {
            control: control.to_path_buf(),
            session: name,
            period_ns: session.clock_period_ns,
            listening,
        })
    }

    /// What is known now of all functions, or of the callers of one.
    ///
    /// # Errors
    /// [`RequestError`] of a profile that cannot be asked for.
    pub fn look(&self, callers_of: Option<&str>) -> Result<Counted, RequestError> {
        let Some(listening) = &self.listening else {
            let session = self.session.clone().into();
            let profile = client::call(&self.control, &ShowProfile(OfSession { session }))?;
            return Ok(Counted::of(&profile));
        };
        let heard = listening.heard.lock();
        Ok(Counted {
            at: Instant::now(),
            session: self.session.clone(),
            period_ns: self.period_ns,
            rows: callers_of.map_or_else(|| heard.rows(), |of| heard.callers(of)),
            unread: heard.unread(),
        })
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

/// A subscription and the thread that counts what it tells.
#[derive(Debug)]
struct Listening {
    heard: Arc<Mutex<Heard>>,
    connection: UnixStream,
}

impl Listening {
    fn new(control: &Path, session: String) -> Result<Self, RequestError> {
        let session = session.into();
        let (asked, _) = Asked::new(control, &Subscribe(OfSession { session }))?;
        let connection = asked.connection()?;
        let heard = Arc::default();
        let into = Arc::clone(&heard);
        thread::spawn(move || listen(asked, &into));
        Ok(Self { heard, connection })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The thread ends by it; where the VMM has gone, it has ended already.
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// Until there is nothing more.
fn listen(mut asked: Asked, into: &Mutex<Heard>) {
    while let Ok(told) = asked.told() {
        match told {
            Told::Events(some) => {
                let mut heard = into.lock();
                some.events.iter().for_each(|event| heard.add(event));
            }
            Told::Ended(ended) => return into.lock().more_unread(ended.unread),
            Told::Other => {}
        }
    }
}
