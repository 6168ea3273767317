//! Functions that come and go while the guest runs: those of its modules, and its init text.

use std::sync::Arc;
use std::time::Instant;

use log::Level;
use terms::function::FunctionId;

use super::Tracing;
use super::remarks::functions_traced;
use crate::machine::Machine;

impl Tracing {
    /// Whether modules can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        self.engine.has_modules()
    }

    /// Looks what has come and gone since the last time. Sessions that are started trace what their
    /// filters select among what has come. The guest is paused only for that.
    pub fn look(&mut self, machine: &Machine) {
        let now = Instant::now();
        let moved = match self.engine.take_in(machine.memory()) {
            Ok(moved) => moved,
            Err(error) => {
                log::debug!("{error}");
                return;
            }
        };
        // What is new now was not live when this began.
        let before = self.looked.replace(now);
        for (module, why) in &moved.unread {
            let refused = format!("module {module} cannot be traced: {why}");
            self.remarks.say(Level::Warn, refused);
        }
        if !moved.is_change() {
            return;
        }
        self.look_for_lost_probes();
        log::debug!("modules: came {:?}, left {:?}", moved.came, moved.left);
        self.shared.image = Arc::clone(self.engine.image());
        let image = Arc::clone(&self.shared.image);
        for session in &mut self.sessions {
            session.extend(&image);
        }
        self.refilter_started(machine);
        if let Some(before) = before {
            self.note_late(&moved.came, before);
        }
    }

    /// Sessions that trace functions of modules that came after `before` do so from now on only, and say so.
    fn note_late(&mut self, came: &[Arc<str>], before: Instant) {
        let late = before.elapsed();
        let found = self.found();
        for session in self.sessions.iter_mut().filter(|session| session.started) {
            let selection = session.live.as_ref().and_then(|live| {
                let session = self.engine.session(live.id).ok()?;
                Some(&session.selection.selected)
            });
            let mut is_late = false;
            for module in came {
                let is_of = |id: &&FunctionId| {
                    let function = self.shared.image.function(**id);
                    let its = function.and_then(|function| function.module.as_ref());
                    its == Some(module) && !self.engine.is_gone(**id)
                };
                let functions = selection.into_iter().flatten().filter(is_of).count();
                if functions > 0 {
                    session.came_late(module, functions as u64, late);
                    is_late = true;
                }
            }
            if is_late {
                session.describe(&self.shared, found);
            }
        }
    }

    /// Says at the end what is missing because modules were there before they were noticed.
    pub(super) fn say_late(&self) {
        for session in &self.sessions {
            for late in session.late() {
                log::warn!("session {}: {late}", session.name);
            }
        }
    }

    fn refilter_started(&mut self, machine: &Machine) {
        for index in 0..self.sessions.len() {
            let Some(session) = self.sessions.get(index).filter(|session| session.started) else {
                continue;
            };
            let (name, filter) = (session.name.clone(), session.filter.clone());
            let Ok(id) = session.started() else { continue };
            let selected = filter.select(&self.shared.image);
            let changed = selected
                .map_err(Into::into)
                .and_then(|selection| self.change(machine, index, id, filter, selection));
            let (level, remark) = match changed {
                Ok(changed) => {
                    let traced = functions_traced(changed.traced);
                    (Level::Info, format!("session {name}: {traced}"))
                }
                Err(error) => (Level::Warn, format!("session {name}: {error}")),
            };
            self.remarks.say(level, remark);
        }
    }
}
