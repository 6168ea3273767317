//! One piece of code, stamped for many functions: assembled once, then copied with the few fields
//! rewritten that differ.

use insn::asm::{
    Assembled, CodeAssembler, FieldKind, IcedError, PLACE_CONTINUE, PLACE_ENTRY_CAPTURE,
    PLACE_EXIT_CAPTURE, assemble,
};
use terms::addr::Gva;
use terms::function::FunctionId;

use crate::capture::CaptureError;
use crate::record::function_word;
use crate::stub::graph;
use crate::stub::profile::TableLayout;
use crate::stub::recorder::{Full, Recorder, Unforeseen};
use crate::stub::registers::{ENTRY, HEAD, Kept, RECORDING};
use crate::stub::spec::StubSpec;
use trace::event::Step;

/// Why no stub could be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// iced-x86 refused an instruction.
    #[error("a stub could not be assembled: {0}")]
    Assemble(String),
    /// A capture cannot be made code.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// An operand is more than 2 GiB away.
    #[error("the stub at {stub} cannot reach {what}: it is more than 2 GiB away")]
    OutOfReach {
        /// Where the stub was to lie.
        stub: Gva,
        /// What it must reach.
        what: &'static str,
    },
}

impl From<IcedError> for StubError {
    fn from(error: IcedError) -> Self {
        Self::Assemble(error.to_string())
    }
}

/// No stub is longer than this many bytes.
pub const TEMPLATE_MAX: u64 = 1 << 16;

/// The routines that the stub of one function calls, which capture values. They change no register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Captures {
    /// Called with everything as at the function's entry, but the stack pointer 8 lower.
    pub entry: Option<Gva>,
    /// Called with everything as at the return, but the stack pointer 8 lower: where the return address was.
    pub exit: Option<Gva>,
}

impl Captures {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.entry.is_none() && self.exit.is_none()
    }
}

/// The code of the stubs of all functions that are traced by the same sessions.
#[derive(Debug, Clone)]
pub struct Template {
    assembled: Assembled,
    counters: Option<TableLayout>,
}

impl Template {
    /// The code that `spec` asks for, for stubs near `near`. Nothing that the code refers to may lie
    /// in the [`TEMPLATE_MAX`] bytes from there on: it would be taken for a part of the stub.
    ///
    /// # Errors
    /// [`StubError::Assemble`].
    pub fn new(spec: &StubSpec, near: Gva) -> Result<Self, StubError> {
        let mut a = CodeAssembler::new(64)?;
        // A short branch is not widened: the way back to the function is always far.
        a.set_prefer_short_branch(false);
        let go_on = near.wrapping_add(PLACE_CONTINUE);
        if spec.captures_entry {
            a.call(near.wrapping_add(PLACE_ENTRY_CAPTURE).0)?;
        }
        match &spec.hook {
            Some(hook) => {
                let at_exit = near.wrapping_add(PLACE_EXIT_CAPTURE);
                graph::emit(&mut a, hook, spec, go_on, at_exit)?;
            }
            None => emit_entry(&mut a, spec, go_on)?,
        }
        Ok(Self {
            assembled: assemble(&mut a, near.0)?,
            counters: spec.profiles.first().map(|profile| profile.layout),
        })
    }

    /// Code that was assembled elsewhere, for one stub or many.
    pub(super) const fn of_code(assembled: Assembled) -> Self {
        Self {
            assembled,
            counters: None,
        }
    }

    /// The stub for `function` at `at`, which continues at `continue_at`, of a template that captures nothing.
    ///
    /// # Errors
    /// [`StubError::OutOfReach`].
    pub fn stamp(
        &self,
        at: Gva,
        function: FunctionId,
        continue_at: Gva,
    ) -> Result<Vec<u8>, StubError> {
        self.stamp_capturing(at, function, continue_at, Captures::default())
    }

    /// The same of one that calls these routines.
    ///
    /// # Errors
    /// As [`Self::stamp`].
    pub fn stamp_capturing(
        &self,
        at: Gva,
        function: FunctionId,
        continue_at: Gva,
        captures: Captures,
    ) -> Result<Vec<u8>, StubError> {
        let mut bytes = self.assembled.bytes.clone();
        let moved = at.0.wrapping_sub(self.assembled.base);
        let lead = |old, place, to: Gva| {
            let place = self.assembled.base.wrapping_add(place);
            shift(old, to.0.wrapping_sub(place).wrapping_sub(moved))
        };
        let capture = |old, place, to: Option<Gva>| lead(old, place, to?);
        for field in &self.assembled.fields {
            let Some(slot) = bytes
                .get_mut(field.offset..)
                .and_then(<[u8]>::first_chunk_mut)
            else {
                continue;
            };
            let old = i32::from_le_bytes(*slot);
            let (new, what) = match field.kind {
                FieldKind::Value => (Some(function_word(function)), "its own value"),
                FieldKind::Entry => {
                    let place = self.counters.map(|layout| layout.displacement(function));
                    let place = place.and_then(|place| i32::try_from(place).ok());
                    (place, "its counters")
                }
                FieldKind::Fixed => (shift(old, moved.wrapping_neg()), "its ring"),
                FieldKind::Continue => (lead(old, PLACE_CONTINUE, continue_at), "its function"),
                FieldKind::EntryCapture => {
                    let to = capture(old, PLACE_ENTRY_CAPTURE, captures.entry);
                    (to, "what captures at its entry")
                }
                FieldKind::ExitCapture => {
                    let to = capture(old, PLACE_EXIT_CAPTURE, captures.exit);
                    (to, "what captures at its exit")
                }
            };
            *slot = new
                .ok_or(StubError::OutOfReach { stub: at, what })?
                .to_le_bytes();
        }
        Ok(bytes)
    }
}

/// Runs the recorders one after the other and continues in the function.
fn emit_entry(a: &mut CodeAssembler, spec: &StubSpec, go_on: Gva) -> Result<(), IcedError> {
    let recorders = &*spec.recorders;
    let beside = spec.shape.keeps_all();
    let beside = beside.then(|| Kept::with_flags(vec![ENTRY.mark, HEAD]));
    beside.iter().try_for_each(|kept| kept.emit_save(a))?;
    let is_direct = |recorder: &Recorder| recorder.access(&ENTRY).is_direct();
    let detail = recorders.iter().any(|one| one.format.has_details());
    let base = (!recorders.iter().all(is_direct)).then_some(ENTRY.base);
    let further = detail.then_some(ENTRY.detail).into_iter().chain(base);
    let saved = Kept::of(RECORDING.into_iter().chain(further).collect());
    let slot = spec
        .shape
        .slot(saved.words() + beside.as_ref().map_or(0, Kept::words));
    let is_known = spec.shape.has_return_address();
    let mut unforeseen = Vec::new();
    let mut write = |a: &mut CodeAssembler, one: &Recorder| {
        one.emit_beside(a, &ENTRY, (slot, is_known))?;
        unforeseen.extend(one.emit_write(a, &ENTRY, Step::Entry)?);
        Ok::<_, IcedError>(())
    };
    let mut full = Vec::new();
    let mut out = a.create_label();
    match recorders {
        // Nothing is saved before there is anything to write.
        [only] if is_direct(only) => {
            let label = a.create_label();
            only.emit_task_check(a, out)?;
            let room = only.emit_check(a, &ENTRY, label)?;
            saved.emit_save(a)?;
            write(a, only)?;
            saved.emit_restore(a)?;
            full.push(Full::new(label, room, out, (only, &ENTRY)));
        }
        _ => {
            if let [only] = recorders {
                only.emit_task_check(a, out)?;
            }
            saved.emit_save(a)?;
            for recorder in recorders {
                let mut back = a.create_label();
                let label = a.create_label();
                if recorders.len() > 1 {
                    recorder.emit_task_check(a, back)?;
                }
                let room = recorder.emit_check(a, &ENTRY, label)?;
                write(a, recorder)?;
                a.set_label(&mut back)?;
                full.push(Full::new(label, room, back, (recorder, &ENTRY)));
            }
            saved.emit_restore(a)?;
        }
    }
    a.set_label(&mut out)?;
    beside.iter().try_for_each(|kept| kept.emit_restore(a))?;
    a.jmp(go_on.0)?;
    let mut unforeseen = unforeseen.into_iter();
    unforeseen.try_for_each(|part: Unforeseen| part.emit(a))?;
    full.into_iter().try_for_each(|part| part.emit(a))
}

/// A relative distance changed by `by`, when it still fits.
fn shift(distance: i32, by: u64) -> Option<i32> {
    i32::try_from(i64::from(distance).wrapping_add(by.cast_signed())).ok()
}

#[cfg(test)]
mod tests {
    use insn::asm::first_jump;

    use super::*;
    use crate::record::Format;
    use crate::ring::geometry::Geometry;
    use crate::ring::turnstile::WaitAt;
    use crate::stub::cell::CellPlace;
    use crate::stub::halt::Halts;
    use crate::stub::recorder::Clock;
    use crate::stub::spec::SiteShape;

    fn spec(recorder: Recorder) -> StubSpec {
        StubSpec {
            recorders: vec![recorder],
            profiles: Vec::new(),
            shape: SiteShape::Entry,
            hook: None,
            captures_entry: false,
            captures_exit: false,
        }
    }

    fn recorder(rings: Gva) -> Recorder {
        Recorder {
            cell: CellPlace::FromGs(64),
            rings,
            format: Format::Calls,
            details: None,
            geometry: Geometry::with_bytes(4096).unwrap(),
            clock: Clock::Tsc,
            halts: Halts::default(),
            waits: None,
            tasks: None,
        }
    }

    /// Where there is room a stub that would wait does what any other does, byte for byte; and when it is full both first
    /// look again.
    #[test]
    fn a_stub_that_waits_differs_only_where_the_ring_is_full() {
        let near = Gva(0xffff_ffff_9000_0000);
        for clock in [Clock::Tsc, Clock::None] {
            let usual = recorder(near.wrapping_add(0x10_0000));
            let usual = Recorder { clock, ..usual };
            let waits = Some(WaitAt {
                awaited: near.wrapping_add(0x18_0000),
                at: near.wrapping_add(0x20_0000),
            });
            let waits = Recorder { waits, ..usual };
            let code = |recorder| {
                let template = Template::new(&spec(recorder), near).unwrap();
                let to = near.wrapping_add(0x4000_0000);
                template.stamp(near, FunctionId(7), to).unwrap()
            };
            let (usual, waits) = (code(usual), code(waits));
            // Counting and going back: `inc gs:[..]` of nine bytes, `jmp`.
            let counting = usual.len() - 9 - 5;
            assert_eq!(waits[..counting], usual[..counting]);
            assert_eq!(waits[waits.len() - 14..][..9], usual[counting..][..9]);
            // `mov r11, [rip + ..]`, `test r11, r11`, `je`, `mov r11, [rip + ..]`, `jmp`.
            assert_eq!(waits.len() - usual.len(), 7 + 3 + 6 + 7 + 5);
        }
    }

    #[test]
    fn stubs_lead_back_from_anywhere_even_across_the_end_of_the_address_space() {
        for near in [
            0x1000_0000,
            0x7fff_0000,
            0xffff_ffff_9000_0000,
            0xffff_ffff_ffe0_0000,
        ] {
            let near = Gva(near);
            let template =
                Template::new(&spec(recorder(near.wrapping_add(0x10_0000))), near).unwrap();
            for (moved, distance) in [(0, -0x4000_0000), (0x1_0000, 0x4000_0000), (0x8_0000, -5)] {
                let at = near.wrapping_add(moved);
                let to = Gva(at.0.wrapping_add_signed(distance));
                let code = template.stamp(at, FunctionId(7), to).unwrap();
                assert_eq!(code.len(), template.assembled.bytes.len());
                assert_eq!(first_jump(&code, at.0), Some(to.0));
            }
        }
    }

    #[test]
    fn what_cannot_be_reached_is_named() {
        // Not where a displacement alone names every address.
        let near = Gva(0xffff_ffe0_9000_0000);
        let far = Gva(0xffff_8000_0000_0000);
        let error = Template::new(&spec(recorder(far)), near).unwrap_err();
        assert!(matches!(error, StubError::Assemble(_)), "{error}");
        let rings = near.wrapping_add(TEMPLATE_MAX);
        let template = Template::new(&spec(recorder(rings)), near).unwrap();
        let stamp = |at, to| {
            template
                .stamp(at, FunctionId(0), to)
                .unwrap_err()
                .to_string()
        };
        assert!(stamp(near, far).contains("cannot reach its function"));
        assert!(stamp(far, far).contains("cannot reach its ring"));
    }
}
