//! Methods about which tasks a session records.

use clap::Args;
use serde::{Deserialize, Serialize};
use status::{TaskStatus, TasksChanged};
use tracer::tasks::{TaskTerm, WantedTasks};
use tracer::tracing::TracingError;
use tracer::tracing::tasks::TaskEdit;

use super::sessions::{OfSession, SessionName};
use crate::control::method::methods;

/// Which tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tasks {
    /// Which session
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// A number, a name (with a * at its end: those that begin so), process:NUMBER, name:TEXT, or cgroup:/PATH
    #[arg(required = true, value_name = "TASK", value_delimiter = ',')]
    pub tasks: Vec<String>,
}

/// Which tasks, and how they are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskChoice {
    /// Which session
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// A number, a name (with a * at its end: those that begin so), process:NUMBER, name:TEXT, or cgroup:/PATH
    #[arg(required = true, value_name = "TASK", value_delimiter = ',')]
    pub tasks: Vec<String>,
    /// Record all but these
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not: bool,
    /// Mean the tasks, too, that these make from now on
    #[arg(long)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow_forks: bool,
}

impl Tasks {
    fn terms(&self) -> Result<Vec<TaskTerm>, TracingError> {
        let terms = self.tasks.iter().map(|term| term.parse());
        Ok(terms.collect::<Result<_, _>>()?)
    }
}

methods! {
    /// Record only what these tasks do, or with --not what all others do
    ///
    /// Example: vmm ctl --control vm.sock tasks set 1234 make --follow-forks
    SetTasks(TaskChoice) "tasks.set" -> TasksChanged: |of, tracing, guest| {
        let wanted = WantedTasks::new(of.not, &of.tasks, of.follow_forks)
            .map_err(TracingError::from)?;
        tracing.filter_tasks(guest, &of.session.0, TaskEdit::Set(wanted))?
    };

    /// Add tasks to those that are named
    AddTasks(Tasks) "tasks.add" -> TasksChanged: |of, tracing, guest|
        tracing.filter_tasks(guest, &of.session.0, TaskEdit::Add(of.terms()?))?;

    /// Take tasks out of those that are named; without any all are recorded
    RemoveTasks(Tasks) "tasks.remove" -> TasksChanged: |of, tracing, guest|
        tracing.filter_tasks(guest, &of.session.0, TaskEdit::Remove(of.terms()?))?;

    /// Record what every task does
    ClearTasks(OfSession) "tasks.clear" -> TasksChanged: |of, tracing, guest|
        tracing.filter_tasks(guest, &of.session.0, TaskEdit::Set(WantedTasks::default()))?;

    /// Which tasks are named, and who sees to it that only they are recorded
    ShowTasks(OfSession) "tasks.show" -> TaskStatus:
        |of, tracing, _guest| tracing.session(&of.session.0)?.tasks()?;
}
