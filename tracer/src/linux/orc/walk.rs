//! A stack walked by the tables: from each address where it goes on after its caller's call.

use std::sync::Arc;

use terms::addr::Gva;

use super::{Frame, Orc, Rule};
use crate::module::Module;
use crate::stack::{CopiedStack, OwnReturn, Unwind, Walked, as_it_lies};
use crate::target::PhysicalMemory;

/// Frames of one stack, at most.
const FRAMES_MAX: usize = 64;

/// The registers that entries name.
pub(super) const UNDEFINED: u8 = 0;
const PREVIOUS_STACK: u8 = 1;
const BASE: u8 = 4;
const STACK: u8 = 5;
const BASE_INDIRECT: u8 = 8;
const STACK_INDIRECT: u8 = 9;

/// Where in `struct pt_regs` the kernel keeps what was interrupted; the processor saves the last five words.
const REGISTERS_BASE: u64 = 32;
const REGISTERS_ADDRESS: u64 = 128;
/// The same from the address on.
const INTERRUPT_SEGMENT: u64 = 8;
const INTERRUPT_STACK: u64 = 24;

/// How a thread goes on where its stack begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::linux) enum Unwinding {
    /// It executes what is there.
    Executes,
    /// It returns there from a call.
    Returns,
}

/// A function that has not returned, as far as a walk needs to know.
#[derive(Debug, Clone, Copy)]
struct State {
    at: Gva,
    /// Where that lies on the stack; what the walk begins with lies nowhere.
    slot: Option<u64>,
    stack: u64,
    base: u64,
    /// Whether it is about to execute what is there; else it returns there.
    is_exact: bool,
}

/// What is above a function.
enum Above {
    Caller(State),
    Nobody,
    Unknown,
}

impl Unwind for Orc {
    fn walk(&self, stack: &CopiedStack) -> Walked {
        let (frames, is_whole) = self.frames(stack, &as_it_lies, true);
        Walked {
            addresses: frames.into_iter().map(|frame| frame.at).collect(),
            is_whole,
        }
    }

    fn with(&self, memory: &dyn PhysicalMemory, modules: &[Module]) -> Arc<dyn Unwind> {
        Arc::new(self.and(memory, modules))
    }
}

impl Orc {
    /// The words by which a thread goes on that is where a copied stack begins, and where they lead, up to its outermost
    /// caller; none if that is not known. Calls return to what `own` makes of what lies there; who was interrupted goes on where
    /// it says.
    pub(in crate::linux) fn returns(
        &self,
        stack: &CopiedStack,
        unwinding: Unwinding,
        own: &OwnReturn<'_>,
    ) -> Option<Vec<(Gva, Gva)>> {
        let (frames, is_whole) = self.frames(stack, own, unwinding == Unwinding::Executes);
        let slots = frames.into_iter();
        let slots = slots.filter_map(|frame| Some((Gva(frame.slot?), frame.at)));
        is_whole.then(|| slots.collect())
    }

    /// The functions that have not returned, from the one that is there or is returned to, and whether the last is the outermost.
    fn frames(
        &self,
        stack: &CopiedStack,
        own: &OwnReturn<'_>,
        is_exact: bool,
    ) -> (Vec<State>, bool) {
        let mut state = State {
            at: stack.at,
            slot: None,
            stack: stack.pointer.0,
            base: stack.frame,
            is_exact,
        };
        let mut frames = vec![state];
        while frames.len() < FRAMES_MAX {
            match self.above(state, stack, own) {
                Some(Above::Caller(caller)) => state = caller,
                Some(Above::Nobody) => return (frames, true),
                Some(Above::Unknown) | None => break,
            }
            frames.push(state);
        }
        (frames, false)
    }

    /// Who has called, or was interrupted; none where what says so was not copied.
    fn above(&self, of: State, copied: &CopiedStack, own: &OwnReturn<'_>) -> Option<Above> {
        // A call may be the last instruction of its function.
        let within = Gva(of.at.0.wrapping_sub(u64::from(!of.is_exact)));
        let entry = self.at(within)?;
        match entry.frame {
            Frame::Unknown => return Some(Above::Unknown),
            Frame::Outermost => return Some(Above::Nobody),
            Frame::Call | Frame::Registers | Frame::Interrupt => {}
        }
        let stack = stack(of, entry.stack, copied)?;
        let caller = match entry.frame {
            Frame::Registers => {
                let saved = stack.wrapping_add(REGISTERS_ADDRESS);
                let base = copied.word(stack.wrapping_add(REGISTERS_BASE))?;
                return interrupted(saved, base, copied);
            }
            Frame::Interrupt => return interrupted(stack, of.base, copied),
            _ => {
                let slot = stack.wrapping_sub(8);
                State {
                    at: own(Gva(slot), Gva(copied.word(slot)?)),
                    slot: Some(slot),
                    stack,
                    base: base(of, entry.base, stack, copied)?,
                    is_exact: false,
                }
            }
        };
        // A caller's frame lies above.
        Some(match caller.at.0 != 0 && stack > of.stack {
            true => Above::Caller(caller),
            false => Above::Unknown,
        })
    }
}

/// What the processor has interrupted, whose registers it has saved there.
fn interrupted(saved: u64, base: u64, copied: &CopiedStack) -> Option<Above> {
    let at = copied.word(saved)?;
    let segment = copied.word(saved.wrapping_add(INTERRUPT_SEGMENT))?;
    // A program; or a thread of the kernel, which has none.
    if segment & 3 != 0 || at == 0 {
        return Some(Above::Nobody);
    }
    Some(Above::Caller(State {
        at: Gva(at),
        slot: Some(saved),
        stack: copied.word(saved.wrapping_add(INTERRUPT_STACK))?,
        base,
        is_exact: true,
    }))
}

/// The stack pointer of the caller.
fn stack(of: State, rule: Rule, copied: &CopiedStack) -> Option<u64> {
    let moved = |from: u64| from.wrapping_add_signed(i64::from(rule.offset));
    match rule.register {
        STACK => Some(moved(of.stack)),
        BASE => Some(moved(of.base)),
        STACK_INDIRECT => copied.word(of.stack).map(moved),
        BASE_INDIRECT => copied.word(moved(of.base)),
        _ => None,
    }
}

/// The frame pointer's register of the caller.
fn base(of: State, rule: Rule, stack: u64, copied: &CopiedStack) -> Option<u64> {
    let moved = |from: u64| from.wrapping_add_signed(i64::from(rule.offset));
    match rule.register {
        UNDEFINED => Some(of.base),
        PREVIOUS_STACK => copied.word(moved(stack)),
        BASE => copied.word(moved(of.base)),
        _ => None,
    }
}
