//! Choosing the tasks that a session records, before it starts or while it does.

use super::attachment::Attachment;
use super::{Tracing, TracingError};
use crate::guest::Guest;
use crate::session::SessionId;
use crate::tasks::{TaskTerm, WantedTasks};
use status::{Switched, TaskStatus};

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
            Self::Add(more) => wanted.add(more),
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
    ) -> Result<Switched, TracingError> {
        let on = &mut self.attachment;
        let index = on.sessions.find(name)?;
        let before = on.sessions.at(index)?.tasks.clone();
        let wanted = edit.apply(name, &before)?;
        if wanted == before {
            return Ok(Switched { changed: false });
        }
        let live = on.sessions.at(index)?.live.as_ref().map(|live| live.id);
        match live {
            None if wanted.is_all() => {}
            None => drop(on.engine.check_tasks(&wanted)?),
            Some(id) => {
                if let Err(error) = self.ask_tasks(guest, index, id, &wanted) {
                    // What has failed is worth more than why this does, too.
                    let _ = self.ask_tasks(guest, index, id, &before);
                    return Err(error);
                }
            }
        }
        let on = &mut self.attachment;
        let found = on.found();
        let session = on.sessions.at(index)?;
        session.tasks = wanted;
        session.describe(&on.shared, found);
        Ok(Switched { changed: true })
    }

    /// Has the stubs of a session that has rings ask for these tasks from now on.
    fn ask_tasks(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        wanted: &WantedTasks,
    ) -> Result<(), TracingError> {
        let on = &mut self.attachment;
        on.phases.check_text()?;
        let mut stopped = guest.stop()?;
        let takes_others = on.engine.filter_tasks(&mut stopped, id, wanted)?;
        drop(stopped);
        let is_started = on.sessions.at(index)?.started;
        let follows = is_started && wanted.follows;
        let followed = on.engine.sessions().get(id)?.follows;
        on.follow_forks(id, follows)?;
        if !is_started || !takes_others && follows == followed {
            return Ok(());
        }
        on.engine.sessions_mut().set_anew(id, takes_others);
        let changed = self.lead_anew(guest, index, id, takes_others);
        self.attachment.engine.sessions_mut().set_anew(id, false);
        changed
    }

    /// Has everything that leads to stubs of a session lead to those that it has now.
    fn lead_anew(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        takes_others: bool,
    ) -> Result<(), TracingError> {
        let on = &mut self.attachment;
        let filter = on.sessions.at(index)?.filter.clone();
        let selection = on.engine.sessions().get(id)?.selection.clone();
        // Also where only of tasks that begin is told from now on, or no more.
        on.change(guest, index, id, filter, selection)?;
        if takes_others {
            let events: Vec<_> = on.sessions.at(index)?.events.iter().copied().collect();
            on.begin_events(guest, index, &events)?;
            self.probes.again(on, guest, index)?;
        }
        Ok(())
    }

    /// Which tasks a session records.
    ///
    /// # Errors
    /// [`TracingError::NoSession`].
    pub fn tasks(&self, name: &str) -> Result<TaskStatus, TracingError> {
        Ok(self.attachment.sessions.get(name)?.task_status())
    }
}

impl Attachment {
    /// Whether what a session records follows forks, from the next plan on.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn follow_forks(&mut self, id: SessionId, follows: bool) -> Result<(), TracingError> {
        Ok(self.engine.sessions_mut().follow_forks(id, follows)?)
    }
}
