//! Text that the guest announces: it says what comes or goes, rings the doorbell and waits. Our own stub does so for a
//! Linux, of the module whose description is the argument of the function that it belongs to.

use crate::target::{PhysicalMemory, StoppedTarget};
use crate::text::poke::PokeError;
use image::Image;
use log::Level;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::quantity::counted;

use super::attachment::Attachment;
use super::modules::Modules;
use super::probes::SetProbes;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::guest::Guest;

/// Two words of the guest: where the text begins, and whether it is there (1) or about to go (0).
const NOTICE: &str = "text_notice";

impl Tracing {
    /// Sees to what the guest has announced: text that has come is patched if a session wants it, before
    /// its first function runs; text that goes is forgotten. A notice that makes no sense is the guest's own
    /// business; text that has come and cannot be patched is said, and not traced.
    pub fn announcement(&mut self, guest: &impl Guest, vcpu: u16) {
        if self.has_modules() {
            let (on, probes) = (&mut self.attachment, &mut self.probes);
            return self.modules.announced(on, probes, guest, vcpu);
        }
        let attachment = &mut self.attachment;
        let Some((start, is_there)) = notice(&attachment.shared.image, guest) else {
            let nonsense = "the guest has announced something that is no text of its image";
            return attachment.remarks.say(Level::Warn, nonsense);
        };
        if !is_there {
            attachment.engine.part_goes(start);
            return attachment.look_for_lost_probes();
        }
        let looks = &mut self.modules.looks;
        if let Err(error) = attachment.take_in_part(guest, start, looks) {
            attachment.remarks.say(Level::Error, error);
        }
    }
}

impl Modules {
    /// A vCPU waits that is about to call the first function of a module.
    fn announced(
        &mut self,
        on: &mut Attachment,
        probes: &mut SetProbes,
        guest: &impl Guest,
        vcpu: u16,
    ) {
        let module = self.looks.during(guest, |stopped| {
            let registers = stopped.vcpus().get(usize::from(vcpu));
            registers.map(|registers| Gva(registers.rdi))
        });
        match module {
            Ok(module) => self.look(on, probes, guest, module),
            // The next look finds it, and counts it as late.
            Err(error) => on.remarks.say(Level::Warn, error),
        }
    }
}

impl Attachment {
    fn take_in_part(
        &mut self,
        guest: &impl Guest,
        start: Gva,
        looks: &mut Stops,
    ) -> Result<(), TracingError> {
        let mut skipped = Vec::new();
        let taken_in = looks.during(guest, |stopped| {
            if self.engine.part_came(stopped, start)? == 0 {
                return Ok(());
            }
            let started = self.sessions.started();
            let ids: Vec<_> = started
                .filter_map(|session| session.live.as_ref().map(|live| live.id))
                .collect();
            for id in ids {
                let selection = self.engine.sessions().get(id)?.selection.clone();
                let memory = &mut guest.memory().clone();
                let plan = self.engine.plan(memory, id, &selection)?;
                let applied = self.engine.apply(stopped, &plan)?;
                self.patching.wrote_stopped(&applied);
                skipped.push((id, applied.skipped));
            }
            Ok(())
        })?;
        for (id, skipped) in skipped {
            let remark = left_out(self.sessions.name_of(id), &skipped);
            let said = remark.into_iter();
            said.for_each(|remark| self.remarks.say(Level::Warn, remark));
        }
        taken_in
    }
}

/// What of text that has come a session does not trace, for something else stands there.
fn left_out(session: &str, skipped: &[(FunctionId, PokeError)]) -> Option<String> {
    let (_, why) = skipped.first()?;
    let functions = counted(skipped.len() as u64, "function");
    Some(format!(
        "session {session}: {functions} of what has come left out: {why}"
    ))
}

/// What the guest announces: where text begins, and whether it is there.
fn notice(image: &Image, guest: &impl Guest) -> Option<(Gva, bool)> {
    let at = image.symbols.address_of(NOTICE)?;
    let (at, _) = guest.locate(at).filter(|(_, bytes)| *bytes >= 16)?;
    let mut bytes = [0; 16];
    guest.memory().read_physical(at, &mut bytes).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let [start, is_there] = words else {
        return None;
    };
    let start = Gva(u64::from_le_bytes(*start));
    image.part_at(start)?;
    Some((start, u64::from_le_bytes(*is_there) == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_of_text_that_has_come_is_said() {
        let why = PokeError::GuestPatches {
            symbol: "f".into(),
            at: Gva(16),
        };
        let skipped = [7, 8].map(|number| (FunctionId(number), why.clone()));
        assert_eq!(left_out("one", &[]), None);
        let said = left_out("one", &skipped).unwrap();
        assert!(said.starts_with("session one: 2 functions of "), "{said}");
        assert!(said.ends_with(&why.to_string()), "{said}");
    }
}
