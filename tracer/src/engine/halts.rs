//! What ends the recording of a session at once: where its routines are, and the words that say how often they still do
//! something.

use terms::addr::{Gpa, Gva};

use super::foothold::CellsMoved;
use super::{AttachError, Engine, Foothold};
use crate::paging::PageUse;
use crate::ring::geometry::{LIMIT_HOLD, LIMIT_OFF};
use crate::session::{PlacedHalt, SessionConfig, SessionId, WantedHalt};
use crate::stub::halt::{HALTS_MAX, Halt, HaltRoutine, When};
use crate::stub::mirror::Mirror;
use crate::stub::store::{Piece, StoreError};
use crate::target::StoppedTarget;
use crate::window::WindowError;
use trace::live::Occasion;

/// Bytes of a word.
const WORD: u64 = 8;

impl Foothold {
    /// Puts what ends the recording of session number `id` into the guest: what its stubs need, and where the host finds
    /// the words that say how often each is still to do something.
    pub(super) fn place_halts(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
    ) -> Result<(Vec<PlacedHalt>, Option<Gpa>), AttachError> {
        let (_, physical) = self.halts_left(id);
        for (wanted, offset) in config.halts.iter().take(HALTS_MAX).zip((0..).step_by(8)) {
            let times = wanted.times.min(u64::MAX >> 1).to_le_bytes();
            let written = target.write_window(physical.wrapping_add(offset), &times);
            written.map_err(StoreError::Write)?;
        }
        let placed = self.place_routines(target, id, config)?;
        let physical = (!placed.is_empty()).then_some(physical);
        Ok((placed, physical))
    }

    /// The routines, for the cells that the session has now.
    fn place_routines(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
    ) -> Result<Vec<PlacedHalt>, AttachError> {
        let (left, _) = self.halts_left(id);
        let mut placed = Vec::new();
        for (wanted, offset) in config.halts.iter().take(HALTS_MAX).zip((0..).step_by(8)) {
            let halt = self.place_halt(target, id, wanted, left.wrapping_add(offset))?;
            let occasion = wanted.occasion.clone();
            placed.push(PlacedHalt { occasion, halt });
        }
        Ok(placed)
    }

    fn place_halt(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        wanted: &WantedHalt,
        left: Gva,
    ) -> Result<Halt, AttachError> {
        let when = match wanted.occasion {
            Occasion::Longer(..) => When::Longer {
                entered: self.entered(target)?,
                ticks: wanted.ticks,
            },
            Occasion::Call(_) | Occasion::Event(_) => When::Passed,
        };
        let cells = self.strategy.cells(self.cells.at, id.0).offsets;
        let cells = cells
            .iter()
            .map(|offset| self.cells.at.wrapping_add(*offset));
        let limit = if wanted.counts_lost {
            LIMIT_HOLD
        } else {
            LIMIT_OFF
        };
        let routine = HaltRoutine {
            left,
            cells: cells.collect(),
            limit: u32::try_from(limit).unwrap_or_default(),
        };
        let routine = self.stubs.place(target, Piece::Halt(routine))?;
        Ok(Halt { routine, when })
    }

    /// From a word of the mirror to the one for the time of entry, which the first session makes that wants it.
    fn entered(&mut self, target: &mut (impl StoppedTarget + ?Sized)) -> Result<i32, AttachError> {
        if let Some(entered) = self.entered {
            return Ok(entered);
        }
        let entered = self.beside_mirror(target)?;
        self.entered = Some(entered);
        Ok(entered)
    }

    /// A word for each of the mirror's that nobody has used yet: the distance to it.
    pub(super) fn beside_mirror(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<i32, AttachError> {
        let mirror = self.mirror.ok_or(WindowError::NoVcpu)?;
        let (_, bytes) = Mirror::bytes(mirror.pages_log2);
        let pages = self.window.map(target, bytes, PageUse::Data)?;
        let distance = pages.at.0.wrapping_sub(mirror.pages.0).cast_signed();
        Ok(i32::try_from(distance).map_err(|_| WindowError::NoVcpu)?)
    }

    /// How often each halt of a session still does something: for stubs and for the host.
    fn halts_left(&self, id: SessionId) -> (Gva, Gpa) {
        let offset = u64::from(id.0) * HALTS_MAX as u64 * WORD;
        let (at, physical) = self.halts_at();
        (at.wrapping_add(offset), physical.wrapping_add(offset))
    }
}

impl CellsMoved {
    /// Has the sessions have their cells there, with the words that they have now; and what ends the recording of one, from
    /// its next plan on, writes the limits there. Nothing may lead to the old ones any more. Who reads rings has to be told.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn give_to(
        &self,
        engine: &mut Engine,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        engine.sessions.move_cells(self);
        let foothold = engine.foothold.as_mut().ok_or(AttachError::NotAttached)?;
        engine.sessions.each_mut().try_for_each(|(id, session)| {
            session.halts = foothold.place_routines(target, id, &session.config)?;
            Ok(())
        })
    }
}
