//! A terminal on which a session is watched.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use status::SessionStatus;

use super::counted::{Counted, Since};
use super::keys::Key;
use super::screen::{self, Picture};
use super::source::{Source, session_of};
use super::table::{ROWS, table};
use super::view::{View, Wish};
use crate::commands::stdout::offer;
use crate::control::client::{self, RequestError};
use crate::control::method::Nothing;
use crate::control::methods::guest::ShowStatus;
use crate::control::status::Status;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::signals::Signals;

/// The longest that a signal waits to be noticed.
const GLANCE: Duration = Duration::from_millis(100);

/// What is said when callers are asked for that are not known.
const NO_CALLERS: &str = "a profile knows no callers: a session of --tracer graph does";

/// Watches until the user or the VMM ends it.
///
/// # Errors
/// [`Failure`] when there is no such session, or the terminal fails.
pub fn watch(control: &Path, session: &str, interval: Duration) -> Result<ExitStatus, Failure> {
    let failed = |error| Failure::output(format!("the terminal: {error}"));
    // Before there are other threads: one that does not block them would end us with the terminal as it is.
    let mut signals = Signals::take_over().map_err(failed)?;
    let mut watch = Watch::new(control, session).map_err(Failure::bad_input)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch.follow(&mut terminal, &mut signals, interval);
    let put_back = ratatui::try_restore();
    if let Ended::VmmGone = ended.map_err(failed)? {
        log::info!("the VMM has ended; this was counted last");
        offer(table(&watch.now, None, ROWS))?;
    }
    put_back.map_err(failed)?;
    Ok(ExitStatus::Success)
}

/// Why watching ended.
#[derive(Debug)]
enum Ended {
    /// The user has seen enough.
    ByUser,
    /// The guest has ended, and its VMM with it.
    VmmGone,
}

/// What is watched, and how it is seen.
#[derive(Debug)]
struct Watch {
    control: PathBuf,
    view: View,
    status: Status,
    session: SessionStatus,
    source: Source,
    now: Counted,
    before: Option<Counted>,
    /// Of the key that was pressed last.
    said: Option<String>,
    /// Why the last look showed nothing new.
    failed: Option<String>,
}

impl Watch {
    fn new(control: &Path, session: &str) -> Result<Self, RequestError> {
        let (status, session) = session_of(control, session)?;
        let mut source = Source::new(control, &session)?;
        let now = source.look(None)?;
        Ok(Self {
            control: control.to_path_buf(),
            view: View::default(),
            status,
            session,
            source,
            now,
            before: None,
            said: None,
            failed: None,
        })
    }

    fn follow(
        &mut self,
        terminal: &mut DefaultTerminal,
        signals: &mut Signals,
        interval: Duration,
    ) -> std::io::Result<Ended> {
        let mut next = Instant::now() + interval;
        self.draw(terminal)?;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let has_event = event::poll(left.min(GLANCE))?;
            if has_event {
                let key = Key::of(&event::read()?);
                if key.is_some_and(|key| self.press(key) == Wish::End) {
                    return Ok(Ended::ByUser);
                }
            }
            if signals.take() {
                return Ok(Ended::ByUser);
            }
            let is_time = Instant::now() >= next;
            if is_time {
                next = Instant::now() + interval;
                if !self.look_again() {
                    return Ok(Ended::VmmGone);
                }
            }
            if has_event || is_time {
                self.draw(terminal)?;
            }
        }
    }

    /// What is known now; says whether anybody answers.
    fn look_again(&mut self) -> bool {
        if self.view.is_paused {
            let status = client::call(&self.control, &ShowStatus(Nothing {}));
            return !status.is_err_and(|error| is_gone(&error));
        }
        let looked = session_of(&self.control, &self.session.name).and_then(|found| {
            (self.status, self.session) = found;
            self.source.look(self.view.callers_of.as_deref())
        });
        match looked {
            Ok(now) => {
                self.before = Some(std::mem::replace(&mut self.now, now));
                self.failed = None;
            }
            Err(error) if is_gone(&error) => return false,
            Err(error) => self.failed = Some(error.to_string()),
        }
        true
    }

    fn press(&mut self, key: Key) -> Wish {
        let knows_callers = self.source.hears_calls();
        let is_in_vain = key == Key::Enter && !self.view.is_typing && !knows_callers;
        self.said = is_in_vain.then(|| NO_CALLERS.to_owned());
        let chosen = self.chosen().filter(|_| knows_callers);
        let callers_of = self.view.callers_of.clone();
        let wish = self.view.press(key, chosen.as_deref());
        if let Wish::Session(step) = wish {
            self.change_session(step);
        } else if self.view.callers_of != callers_of {
            self.begin_counting();
        }
        wish
    }

    /// The name in the row that is chosen.
    fn chosen(&self) -> Option<String> {
        let shown = self.view.shown(&self.now.rows, self.since().as_ref());
        let chosen = shown.get(self.view.selected);
        chosen.map(|shown| shown.row.name.clone())
    }

    fn since(&self) -> Option<Since<'_>> {
        let before = self.before.as_ref()?;
        Some(Since::new(before, &self.now))
    }

    fn change_session(&mut self, step: i32) {
        let sessions = &self.status.tracing.sessions;
        let at = sessions
            .iter()
            .position(|session| session.name == self.session.name);
        let count = i32::try_from(sessions.len()).unwrap_or(i32::MAX).max(1);
        let at = i32::try_from(at.unwrap_or(0)).unwrap_or(0);
        let next = usize::try_from((at + step).rem_euclid(count)).unwrap_or(0);
        let Some(next) = sessions.get(next).filter(|_| count > 1) else {
            self.said = Some("there is no other session".to_owned());
            return;
        };
        match Source::new(&self.control, next) {
            Ok(source) => {
                self.session = next.clone();
                self.source = source;
                self.view.begin_anew();
                self.begin_counting();
            }
            Err(error) => self.said = Some(error.to_string()),
        }
    }

    /// Other rows are shown than before: there is nothing to compare them with.
    fn begin_counting(&mut self) {
        match self.source.look(self.view.callers_of.as_deref()) {
            Ok(now) => (self.now, self.before, self.failed) = (now, None, None),
            Err(error) => self.said = Some(error.to_string()),
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let page = screen::page(terminal.size()?.height);
        let since = self
            .before
            .as_ref()
            .map(|before| Since::new(before, &self.now));
        let shown = self.view.shown(&self.now.rows, since.as_ref());
        self.view.fit(shown.len(), page);
        let picture = Picture {
            view: &self.view,
            status: &self.status,
            session: &self.session,
            counted: &self.now,
            before: self.before.as_ref(),
            shown: &shown,
            said: self.failed.as_deref().or(self.said.as_deref()),
        };
        terminal.draw(|frame| screen::draw(frame, &picture))?;
        Ok(())
    }
}

/// Whether nobody answers any more.
const fn is_gone(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::Connect { .. } | RequestError::Broken { .. }
    )
}
