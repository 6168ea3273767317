//! The store of stubs: what of ours lies in the window to be executed, or to be read by what is, and where.
//!
//! A stub is put there for the first who needs it, and stays, for a thread that was preempted inside it comes back to
//! what it left. Who needs the same again gets the same: a [`Piece`] says all that decides its bytes. So what is
//! traced for a while, and again later, takes no more room than the first time. Nothing leads to a piece before it is
//! wholly there: it can be put there while the guest runs.

use std::collections::HashMap;

use insn::relocate::RelocateError;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::arena::{Arena, ArenaFull};
use super::capture::CaptureStub;
use super::detour::Detour;
use super::doorbell::Doorbell;
use super::halt::HaltRoutine;
use super::spec::StubSpec;
use super::task::fork::ForkRoutine;
use super::task::routine::TaskRoutine;
use super::template::{Captures, StubError, TEMPLATE_MAX, Template};
use crate::target::{MemoryError, WindowMemory};

/// Why something is not in the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No code could be made.
    #[error(transparent)]
    Stub(#[from] StubError),
    /// There is no room.
    #[error(transparent)]
    Arena(#[from] ArenaFull),
    /// No detour could be made.
    #[error(transparent)]
    Detour(#[from] RelocateError),
    /// It could not be written.
    #[error("cannot write a stub: {0}")]
    Write(MemoryError),
}

/// A template in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TemplateId(usize);

/// Something in the store, as all that decides its bytes but the place where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Piece {
    /// The stub of a function.
    Function {
        /// What it does.
        template: TemplateId,
        /// Whose it is.
        function: FunctionId,
        /// Where it continues.
        go_on: Gva,
        /// What it calls.
        captures: Captures,
    },
    /// Code that captures values.
    Capture {
        /// What it captures, for whom.
        stub: Box<CaptureStub>,
        /// Where it continues; of no meaning to one that returns.
        go_on: Gva,
    },
    /// Instructions that are displaced from their place.
    Detour(Detour),
    /// A routine that tells the host of something.
    Doorbell(Doorbell),
    /// A routine that ends what a session records.
    Halt(HaltRoutine),
    /// A routine that says whether the task that runs is recorded.
    Task(TaskRoutine),
    /// A routine that says so of tasks that begin.
    Fork(ForkRoutine),
    /// Bytes that are the same wherever they lie.
    Bytes(Box<[u8]>),
}

impl Piece {
    /// These words.
    pub fn words(words: impl IntoIterator<Item = u64>) -> Self {
        Self::Bytes(words.into_iter().flat_map(u64::to_le_bytes).collect())
    }
}

/// Everything of ours in the executable part of the window.
#[derive(Debug)]
pub struct StubStore {
    arena: Arena,
    templates: Vec<(StubSpec, Template)>,
    placed: HashMap<Piece, Gva>,
}

impl StubStore {
    /// An empty one in this memory.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self {
            arena,
            templates: Vec::new(),
            placed: HashMap::new(),
        }
    }

    /// Its memory.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Where templates are made: before the arena lies nothing that a stub refers to.
    const fn near(&self) -> Gva {
        Gva(self.arena.start().0.wrapping_sub(TEMPLATE_MAX))
    }

    /// The template of stubs that do this.
    ///
    /// # Errors
    /// A [`StoreError`].
    pub fn template(&mut self, spec: StubSpec) -> Result<TemplateId, StoreError> {
        let known = self.templates.iter().position(|(known, _)| *known == spec);
        if let Some(index) = known {
            return Ok(TemplateId(index));
        }
        let template = Template::new(&spec, self.near())?;
        self.templates.push((spec, template));
        Ok(TemplateId(self.templates.len() - 1))
    }

    /// Where this piece is. Puts it there if nobody has needed it before.
    ///
    /// # Errors
    /// A [`StoreError`]; then the store is as it was.
    pub fn place(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        piece: Piece,
    ) -> Result<Gva, StoreError> {
        if let Some(at) = self.placed.get(&piece) {
            return Ok(*at);
        }
        let bytes = self.bytes(&piece, self.arena.next())?;
        let at = self.put(memory, &bytes)?;
        self.placed.insert(piece, at);
        Ok(at)
    }

    /// Puts bytes where [`Arena::next`] says, which nobody else will need.
    ///
    /// # Errors
    /// A [`StoreError`]; then the store is as it was.
    pub fn put(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        bytes: &[u8],
    ) -> Result<Gva, StoreError> {
        let mut after = self.arena;
        let (at, physical) = after.allocate(bytes.len() as u64)?;
        memory
            .write_window(physical, bytes)
            .map_err(StoreError::Write)?;
        self.arena = after;
        Ok(at)
    }

    /// The bytes of a piece that lies at `at`.
    fn bytes(&self, piece: &Piece, at: Gva) -> Result<Vec<u8>, StoreError> {
        Ok(match piece {
            Piece::Function {
                template,
                function,
                go_on,
                captures,
            } => {
                let none = || StubError::Assemble("no such template".to_owned());
                let (_, code) = self.templates.get(template.0).ok_or_else(none)?;
                code.stamp_capturing(at, *function, *go_on, *captures)?
            }
            // The numbers of the events are in it already.
            Piece::Capture { stub, go_on } => {
                let template = stub.template(self.near())?;
                template.stamp(at, FunctionId(0), *go_on)?
            }
            Piece::Detour(detour) => detour.code(at)?,
            Piece::Doorbell(doorbell) => doorbell.code(at)?,
            Piece::Halt(routine) => routine.code(at).map_err(StubError::from)?,
            Piece::Task(routine) => routine.code(at).map_err(StubError::from)?,
            Piece::Fork(routine) => routine.code(at).map_err(StubError::from)?,
            Piece::Bytes(bytes) => bytes.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use image::testing::nop_image;
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{Faults, MockTarget, Rights};
    use crate::target::PhysicalMemory;

    const START: Gva = Gva(0xffff_ffff_9000_0000);
    const PHYSICAL: Gpa = Gpa(1 << 32);

    fn store(bytes: u64) -> (StubStore, MockTarget) {
        let target = MockTarget::with_image(1, 1 << 21, &nop_image(1), Rights::ALL).unwrap();
        (StubStore::new(Arena::new(START, PHYSICAL, bytes)), target)
    }

    fn doorbell(go_on: Option<Gva>) -> Piece {
        Piece::Doorbell(Doorbell { port: 0xf6, go_on })
    }

    #[test]
    fn what_is_needed_again_is_found_and_what_is_different_lies_elsewhere() {
        let (mut store, mut target) = store(4096);
        let mut place = |piece: Piece| store.place(&mut target, piece).unwrap();
        let list = place(Piece::words([1, 2, 0]));
        let first = place(doorbell(None));
        let second = place(doorbell(Some(first)));
        let distinct = [list, first, second, place(Piece::words([1, 0]))];
        for (number, one) in distinct.iter().enumerate() {
            assert!(distinct[..number].iter().all(|other| other != one));
        }
        assert_eq!(place(Piece::words([1, 2, 0])), list);
        assert_eq!(place(doorbell(Some(first))), second);
        let mut there = [0; 7];
        let physical = PHYSICAL.wrapping_add(second.0 - START.0);
        target.read_physical(physical, &mut there).unwrap();
        // out 0xf6, al
        assert_eq!(there[..2], [0xe6, 0xf6]);
        let back = insn::jump::jump(second.wrapping_add(2), first).unwrap();
        assert_eq!(there[2..], back);
    }

    /// A piece that is not there is not found, and the room that it would have had is the next one's.
    #[test]
    fn what_could_not_be_written_takes_no_room() {
        let (mut store, mut target) = store(64);
        target.faults.unwritable_physical.insert(PHYSICAL);
        let piece = Piece::words([7]);
        let refused = store.place(&mut target, piece.clone());
        assert!(matches!(refused, Err(StoreError::Write(_))), "{refused:?}");
        assert_eq!(store.arena().used(), 0);
        target.faults = Faults::default();
        assert_eq!(store.place(&mut target, piece), Ok(START));
        let long = store.place(&mut target, Piece::words([0; 5]));
        assert!(matches!(long, Err(StoreError::Arena(_))), "{long:?}");
        let fits = store.place(&mut target, Piece::words([0; 4])).unwrap();
        assert_eq!(fits, START.wrapping_add(32));
        assert_eq!(store.arena().used(), 64);
    }
}
