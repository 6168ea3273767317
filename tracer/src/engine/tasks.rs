//! Whose calls a session records: what its stubs ask from then on, and where that lies in the window.

use super::task_block::{TaskBlock, TaskFilterError, TaskLists};
use super::{AttachError, Engine, Foothold};
use crate::current_task::CurrentTask;
use crate::guest_kind;
use crate::paging::PageUse;
use crate::session::{SessionId, TracerKind};
use crate::stub::store::{Piece, StoreError};
use crate::stub::task::routine::TaskRoutine;
use crate::stub::task::{BLOCK_BYTES, TaskCheck};
use crate::target::StoppedTarget;
use crate::tasks::{TaskTerm, WantedTasks};

/// A session whose stubs are to ask whose calls they record.
#[derive(Debug)]
pub struct Asking<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// The session.
    pub id: SessionId,
}

impl Asking<'_> {
    /// Has the stubs of the session record only what `wanted` says, from their next plan on; those that ask already do so from
    /// now on. Says whether it takes other stubs.
    ///
    /// # Errors
    /// A [`TaskFilterError`]; then everything is as before, unless the window could not be written.
    pub fn ask(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        wanted: &WantedTasks,
    ) -> Result<bool, TaskFilterError> {
        let no_session = || AttachError::NoSession(self.id.0);
        let before = self.engine.sessions.get(self.id);
        let before = before.map_err(|_| no_session())?.tasks;
        let check = match wanted.is_all() {
            true => None,
            false => Some(self.place(target, wanted)?),
        };
        let no_session = || AttachError::NoSession(self.id.0);
        let session = self.engine.sessions.get_mut(self.id);
        let session = session.map_err(|_| no_session())?;
        session.check_tasks(check);
        Ok(before != check)
    }

    fn place(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        wanted: &WantedTasks,
    ) -> Result<TaskCheck, TaskFilterError> {
        let Self { engine, id } = self;
        let current = check(engine, wanted)?;
        let no_session = |_| AttachError::NoSession(id.0);
        let session = engine.sessions.get(*id).map_err(no_session)?;
        let is_graph = session.config.tracer == TracerKind::Graph;
        let inside = engine.transient.inside.as_deref();
        let lists = TaskLists::new(wanted, inside, &*target)?;
        let foothold = engine.foothold.as_mut().ok_or(AttachError::NotAttached)?;
        foothold.place_tasks(target, (*id, wanted, &lists), (current, is_graph))
    }
}

/// Whether the guest can be asked what `wanted` asks, as far as the image says. Where the task is that runs.
///
/// # Errors
/// A [`TaskFilterError`].
pub fn check(engine: &Engine, wanted: &WantedTasks) -> Result<CurrentTask, TaskFilterError> {
    let current = guest_kind::of(&engine.image).current_task(&engine.image);
    let current = current.ok_or(TaskFilterError::Unknown)?;
    let is_number = |term: &&TaskTerm| matches!(term, TaskTerm::Number(_));
    let other = wanted.terms.iter().find(|term| !is_number(term));
    if let Some(other) = other.filter(|_| current.task.is_none()) {
        return Err(TaskFilterError::NumbersOnly(other.to_string()));
    }
    let tells = engine.points.begins_tasks;
    if wanted.follows && (tells.is_none() || current.task.is_none()) {
        let why = "no function with a patch site is known that it calls for each new task";
        return Err(TaskFilterError::NoForks(why));
    }
    Ok(current)
}

impl Foothold {
    /// Puts what the stubs of a session are to ask into the guest.
    fn place_tasks(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        (id, wanted, lists): (SessionId, &WantedTasks, &TaskLists),
        (current, is_graph): (CurrentTask, bool),
    ) -> Result<TaskCheck, TaskFilterError> {
        let heard = match is_graph {
            true => Some(self.heard(target)?),
            false => None,
        };
        let block = self.task_block(target, id)?;
        let at = block.at();
        let written = block.write(target, wanted, lists);
        written.map_err(|why| AttachError::Store(StoreError::Write(why)))?;
        let task = current.task.filter(|_| !lists.is_of_numbers());
        let routine = task.map(|task| {
            let routine = TaskRoutine {
                current: current.at,
                task,
                block: at,
            };
            self.stubs.place(target, Piece::Task(routine))
        });
        Ok(TaskCheck {
            current,
            block: at,
            heard,
            routine: routine.transpose().map_err(AttachError::Store)?,
        })
    }

    /// From a word of the mirror to the one that says who has the beginning of a call, which the first graph makes that asks.
    fn heard(&mut self, target: &mut (impl StoppedTarget + ?Sized)) -> Result<i32, AttachError> {
        if let Some(heard) = self.heard {
            return Ok(heard);
        }
        let heard = self.beside_mirror(target)?;
        self.heard = Some(heard);
        Ok(heard)
    }

    /// The memory of session number `id` for that, which is made when it asks first.
    fn task_block(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
    ) -> Result<&mut TaskBlock, AttachError> {
        use std::collections::btree_map::Entry;
        match self.task_blocks.entry(id) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(free) => {
                let extent = self.window.map(target, BLOCK_BYTES, PageUse::Data)?;
                Ok(free.insert(TaskBlock::new(extent)))
            }
        }
    }
}
