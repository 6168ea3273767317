//! Choosing the tasks that a session records, before it starts or while it does.

use super::attachment::Attachment;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::engine::tasks::{self, check};
use crate::guest::Guest;
use crate::session::SessionId;
use crate::target::StoppedTarget;
use crate::tasks::{TaskTerm, WantedTasks};
use status::TasksChanged;

/// What becomes of the tasks that a session names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEdit {
    /// These replace them; with none all are recorded.
    Set(WantedTasks),
    /// These come to them.
    Add(Vec<TaskTerm>),
    /// These are taken out of them.
    Remove(Vec<TaskTerm>),
}

impl TaskEdit {
    fn apply(self, session: &str, to: &WantedTasks) -> Result<WantedTasks, TracingError> {
        let mut wanted = to.clone();
        match self {
            Self::Set(other) => wanted = other,
            Self::Add(more) => wanted.add(more)?,
            Self::Remove(less) => {
                wanted
                    .remove(&less)
                    .map_err(|term| TracingError::NoSuchTask {
                        session: session.to_owned(),
                        term: term.to_string(),
                        has: match to.is_all() {
                            true => "records all".to_owned(),
                            false => format!("names {}", to.written().join(", ")),
                        },
                    })?;
            }
        }
        if wanted.is_all() {
            wanted = WantedTasks::default();
        }
        Ok(wanted)
    }
}

impl Tracing {
    /// Changes which tasks a session records. What is recorded changes for all vCPUs at one moment; a call that was recorded
    /// when it began is recorded when it ends.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_tasks(
        &mut self,
        guest: &impl Guest,
        name: &str,
        edit: TaskEdit,
    ) -> Result<TasksChanged, TracingError> {
        let on = &mut self.attachment;
        let index = on.sessions.find(name)?;
        let before = on.sessions.at(index)?.tasks.clone();
        let wanted = edit.apply(name, &before)?;
        if wanted == before {
            return Ok(TasksChanged::default());
        }
        let mut stops = Stops::default();
        let live = on.sessions.at(index)?.live.as_ref().map(|live| live.id);
        match live {
            None if wanted.is_all() => {}
            None => drop(check(&on.engine, &wanted)?),
            Some(id) => {
                let mut asking = TaskChange {
                    tracing: self,
                    guest,
                    index,
                    id,
                    stops: &mut stops,
                };
                if let Err(error) = asking.ask(&wanted) {
                    // What has failed is worth more than why this does, too.
                    let _ = asking.ask(&before);
                    return Err(error);
                }
            }
        }
        let on = &mut self.attachment;
        let found = on.found();
        let session = on.sessions.at(index)?;
        session.tasks = wanted;
        session.describe(&on.shared, found);
        let (pauses, pause_us) = stops.after(None);
        Ok(TasksChanged {
            changed: true,
            pauses,
            pause_us,
        })
    }
}

/// A session that has rings.
struct TaskChange<'a, G> {
    tracing: &'a mut Tracing,
    guest: &'a G,
    index: usize,
    id: SessionId,
    stops: &'a mut Stops,
}

impl<G: Guest> TaskChange<'_, G> {
    /// Has its stubs ask for these tasks from now on.
    fn ask(&mut self, wanted: &WantedTasks) -> Result<(), TracingError> {
        let (on, id) = (&mut self.tracing.attachment, self.id);
        on.phases.check_text()?;
        let asked = |stopped: &mut G::Stopped<'_>| on.ask(stopped, id, wanted);
        let takes_others = self.stops.during(self.guest, asked)??;
        let is_started = on.sessions.at(self.index)?.started;
        let follows = is_started && wanted.follows;
        let followed = on.engine.sessions().get(id)?.follows;
        on.follow_forks(id, follows)?;
        if !is_started || !takes_others && follows == followed {
            return Ok(());
        }
        on.engine.sessions_mut().set_anew(id, takes_others);
        let changed = self.lead_anew(takes_others);
        let sessions = self.tracing.attachment.engine.sessions_mut();
        sessions.set_anew(id, false);
        changed
    }

    /// Has everything that leads to its stubs lead to those that it has now.
    fn lead_anew(&mut self, takes_others: bool) -> Result<(), TracingError> {
        let Self {
            tracing,
            guest,
            index,
            id,
            stops,
        } = self;
        let on = &mut tracing.attachment;
        let filter = on.sessions.at(*index)?.filter.clone();
        let selection = on.engine.sessions().get(*id)?.selection.clone();
        // Also where only of tasks that begin is told from now on, or no more.
        on.change(*guest, *index, *id, (filter, selection), stops)?;
        if takes_others {
            on.record_own_events(*guest, *index, true, stops)?;
            tracing.probes.again(on, *guest, *index, stops)?;
        }
        Ok(())
    }
}

impl Attachment {
    /// Has the stubs of a session ask for these tasks from their next plan on, of a guest that is stopped. Says whether it
    /// takes other stubs.
    ///
    /// # Errors
    /// [`TracingError::Tasks`].
    pub fn ask(
        &mut self,
        stopped: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        wanted: &WantedTasks,
    ) -> Result<bool, TracingError> {
        let engine = &mut self.engine;
        Ok(tasks::Asking { engine, id }.ask(stopped, wanted)?)
    }

    /// Whether what a session records follows forks, from the next plan on.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn follow_forks(&mut self, id: SessionId, follows: bool) -> Result<(), TracingError> {
        Ok(self.engine.sessions_mut().follow_forks(id, follows)?)
    }
}
