//! Functions that come and go while the guest runs: those of its modules, and its init text.

use super::Tracing;
use super::remarks::functions_traced;
use crate::machine::Machine;
use log::Level;
use std::sync::Arc;

impl Tracing {
    /// Whether modules can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        let linux = self.shared.image.linux.as_ref();
        linux.is_some_and(|linux| linux.modules.is_some())
    }

    /// Looks what has come and gone since the last time. Sessions that are started trace what their
    /// filters select among what has come. The guest is paused only for that.
    pub fn look(&mut self, machine: &Machine) {
        let moved = match self.engine.take_in(machine.memory()) {
            Ok(moved) => moved,
            Err(error) => {
                log::debug!("{error}");
                return;
            }
        };
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
