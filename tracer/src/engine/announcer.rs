//! Modules that have come, told by the guest itself before their first function runs.
//!
//! The list of modules says what is there when somebody looks. A function of the guest is called once for each module,
//! when all of it is in its place and nothing of it has run: while anybody wants to know, the stub of that function
//! rings the host's doorbell, which leaves the guest. The vCPU goes on when the host has seen to the module. What is
//! written is a routine of two instructions in the window and our jump at the function's own site, which is no user's: it
//! is in no count, and goes when nobody wants to know any more.

use image::Image;
use insn::jump::jump;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::{ApplyError, Engine};
use crate::guest_kind;
use crate::patch::functions::PlanError;
use crate::target::WindowMemory;

/// `out imm8, al`: changes no register and no flag.
const OUT: u8 = 0xe6;
const RETURN: u8 = 0xc3;
/// Room for one routine.
const ROUTINE_BYTES: u64 = 8;

/// The function, and what its stub calls.
#[derive(Debug)]
pub(super) struct Announcer {
    function: FunctionId,
    port: u8,
    /// Whether anybody wants to know.
    is_wanted: bool,
    /// Where the routine is that goes on at this other one.
    routines: Vec<(Option<Gva>, Gva)>,
}

impl Announcer {
    fn of(image: &Image, port: u8) -> Option<Self> {
        let called = guest_kind::of(image).called_for_modules()?;
        let is_it = |id: &FunctionId| {
            let function = image.function(*id);
            function.is_some_and(|one| &*one.name == called && one.module.is_none())
        };
        let mut functions = image.sites.iter().map(|site| site.function);
        Some(Self {
            function: functions.find(is_it)?,
            port,
            is_wanted: false,
            routines: Vec::new(),
        })
    }

    /// The routine at `at`.
    fn code(&self, at: Gva, go_on: Option<Gva>) -> Option<Vec<u8>> {
        let mut code = vec![OUT, self.port];
        match go_on {
            None => code.push(RETURN),
            Some(go_on) => code.extend(jump(at.wrapping_add(code.len() as u64), go_on)?),
        }
        Some(code)
    }
}

impl Engine {
    /// The host sees to vCPUs that write to this port: modules are announced by it, where the guest can.
    #[must_use]
    pub fn announcing_by(mut self, port: u8) -> Self {
        self.announcer = Announcer::of(&self.image, port).filter(|_| self.has_modules());
        self
    }

    /// Says whether anybody wants to know of modules, from the next plan on.
    pub fn want_announcements(&mut self, is_wanted: bool) {
        if let Some(announcer) = &mut self.announcer {
            announcer.is_wanted = is_wanted;
        }
    }

    /// The function whose stub can tell of modules.
    pub(super) fn announcer(&self) -> Option<FunctionId> {
        self.announcer.as_ref().map(|announcer| announcer.function)
    }

    /// What the stub of `function` calls when it is entered: `routine`, unless it has to tell of a module before.
    pub(super) fn announcing(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        function: FunctionId,
        routine: Option<Gva>,
    ) -> Result<Option<Gva>, ApplyError> {
        let Some(announcer) = &mut self.announcer else {
            return Ok(routine);
        };
        if announcer.function != function || !announcer.is_wanted {
            return Ok(routine);
        }
        let mut known = announcer.routines.iter();
        if let Some((_, at)) = known.find(|(go_on, _)| *go_on == routine) {
            return Ok(Some(*at));
        }
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let room = ground.arena.allocate(ROUTINE_BYTES);
        let (at, physical) = room.map_err(PlanError::from)?;
        // Both are in the arena, which a jump spans: without it nothing is told, and the module is late.
        let Some(code) = announcer.code(at, routine) else {
            return Ok(routine);
        };
        memory
            .write_window(physical, &code)
            .map_err(ApplyError::Stub)?;
        announcer.routines.push((routine, at));
        Ok(Some(at))
    }
}
