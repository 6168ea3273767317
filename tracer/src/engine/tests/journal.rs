//! A tracer that is killed at any moment leaves a guest that a stranger can put right, from the guest's memory alone.

use super::*;
use crate::target::{MemoryError, NotProvided, StoppedTarget, VcpuRegisters, WindowMemory};
use crate::text::journal;

/// The guest of a tracer that is killed after so many writes: later ones are not made.
pub(in crate::engine) struct Killed<'a> {
    pub target: &'a mut MockTarget,
    writes: usize,
}

impl Killed<'_> {
    fn is_alive(&mut self) -> bool {
        let is_alive = self.writes > 0;
        self.writes = self.writes.saturating_sub(1);
        is_alive
    }
}

impl TargetMemory for Killed<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.target.read(at, into)
    }
}

impl TextMemory for Killed<'_> {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.is_alive() {
            true => self.target.write_physical(at, bytes),
            false => Ok(()),
        }
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.is_alive() {
            true => self.target.write(at, bytes),
            false => Ok(()),
        }
    }
}

impl PhysicalMemory for Killed<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.target.read_physical(at, into)
    }
}

impl WindowMemory for Killed<'_> {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.is_alive() {
            true => self.target.write_window(at, bytes),
            false => Ok(()),
        }
    }
}

impl StoppedTarget for Killed<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        StoppedTarget::vcpus(&*self.target)
    }

    fn ram(&self) -> Vec<Region> {
        self.target.ram()
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.target.has_gigabyte_pages()
    }

    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        self.target.provide(part)
    }
}

/// What of the guest's own is not as it was after a tracer that was killed after so many writes of `life`, and somebody has
/// given back what it left. None when `life` was over before.
fn killed_after(
    writes: usize,
    make: impl Fn() -> (Engine, MockTarget),
    life: impl Fn(&mut Engine, &mut Killed<'_>),
) -> bool {
    let (mut engine, mut target) = make();
    let before = target.own_memory();
    let mut killed = Killed {
        target: &mut target,
        writes,
    };
    life(&mut engine, &mut killed);
    let is_complete = killed.writes > 0;
    let region = target.region();
    let restored = crate::engine::restore(&mut target, region, None, Leaving::LastTry).unwrap();
    assert!(
        restored.inside.is_nobody() && restored.others == 0,
        "{restored:?}"
    );
    // Whoever comes next finds nothing.
    assert_eq!(
        crate::engine::restore(&mut target, region, None, Leaving::LastTry),
        Ok(crate::Restored::default())
    );
    let after = target.own_memory();
    let frames = before.keys().chain(after.keys());
    let changed: Vec<_> = frames
        .filter(|at| before.get(at) != after.get(at))
        .collect();
    assert!(changed.is_empty(), "after {writes} writes: {changed:x?}");
    is_complete
}

pub(in crate::engine) fn killed_everywhere(
    make: impl Fn() -> (Engine, MockTarget),
    life: impl Fn(&mut Engine, &mut Killed<'_>),
) -> usize {
    let mut writes = 0;
    while !killed_after(writes, &make, &life) {
        writes += 1;
    }
    writes
}

/// A second session joins the first at some functions, takes others, and the first lets go of some.
#[test]
fn a_guest_whose_tracer_was_killed_is_put_right_from_its_own_memory() {
    let life = |engine: &mut Engine, target: &mut Killed<'_>| -> Result<(), ApplyError> {
        let region = target.target.region();
        let attached = engine.attach(target, region);
        attached.map_err(|_| ApplyError::NotAttached)?;
        let mut create = |name, target: &mut Killed<'_>| {
            let config = SessionConfig {
                tracer: TracerKind::Graph,
                ..config(name)
            };
            let created = engine.create_session(target, config);
            created.map_err(|_| ApplyError::NotAttached)
        };
        let (one, two) = (create("one", target)?, create("two", target)?);
        for (session, functions) in [(one, 0..4), (two, 2..6), (one, 3..4), (two, 0..0)] {
            let plan = engine.plan(target, session, &select(functions))?;
            engine.apply(target, &plan)?;
        }
        Ok(())
    };
    let writes = killed_everywhere(
        || machine(6),
        |engine, target| {
            let _ = life(engine, target);
        },
    );
    assert!(writes > 30, "{writes}");
}

/// What the journal says, by address.
pub(super) fn written(engine: &Engine, target: &MockTarget) -> Vec<journal::Entry> {
    let at = engine.foothold().map(Foothold::journal_at).unwrap();
    let mut all = journal::read(target, target.region(), at).unwrap();
    all.sort_by_key(|entry| entry.at);
    all
}

/// Nobody will carry it out: who comes after a tracer that is killed then would look for bytes that were never written.
#[test]
fn a_plan_that_is_old_is_not_noted() {
    let (mut engine, mut target, one) = attached(4);
    let two = engine.create_session(&mut target, config("two")).unwrap();
    let old = engine.plan(&mut target, one, &select(0..4)).unwrap();
    change(&mut engine, &mut target, two, 0..2).unwrap();
    let before = written(&engine, &target);
    engine.commit().note(&mut target, &old).unwrap();
    let noted = written(&engine, &target);
    let (ours, others) = noted.split_at(2);
    assert_eq!(ours, before, "those that two has taken since");
    assert!(others.iter().all(|entry| entry.sessions.has(one.0)));
    let error = engine.apply(&mut target, &old).unwrap_err();
    assert_eq!(error, ApplyError::Stale);
    assert_eq!(written(&engine, &target), before);
}

#[test]
fn the_journal_is_what_the_table_of_sites_says() {
    let (mut engine, mut target, session) = attached(6);
    change(&mut engine, &mut target, session, 1..5).unwrap();
    let sites: Vec<_> = engine.sites().ours().collect();
    assert_eq!(sites.len(), 4);
    assert!(sites.iter().all(|site| site.sessions.has(session.0)));
    assert_eq!(written(&engine, &target), sites);
    // A change that fails leaves both as they were.
    let at = engine.image().sites[5].address;
    target.faults.sticky.insert(at);
    change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert_eq!(written(&engine, &target), sites);
    // One that would have had them lead to another session, too.
    let two = engine.create_session(&mut target, config("two")).unwrap();
    change(&mut engine, &mut target, two, 0..6).unwrap_err();
    assert_eq!(written(&engine, &target), sites);
    target.faults = Faults::default();
    // A plan that another one has overtaken is not in it, either.
    let old = engine.plan(&mut target, session, &select([])).unwrap();
    change(&mut engine, &mut target, session, 2..5).unwrap();
    assert_eq!(engine.apply(&mut target, &old), Err(ApplyError::Stale));
    assert_eq!(written(&engine, &target), &sites[1..]);
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(written(&engine, &target), []);
    assert_eq!(engine.sites().ours().count(), 0);
}

fn text_at(target: &MockTarget, at: Gva) -> SiteBytes {
    let mut bytes = [0; 5];
    target.read(at, &mut bytes).unwrap();
    SiteBytes::new(bytes)
}

/// It was once overwritten, and when the guest took its breakpoint away, it put the first byte of our jump over an instruction of its own.
#[test]
fn a_kprobe_on_a_jump_of_a_dead_tracer_keeps_what_it_leads_to() {
    let (mut engine, mut target, session) = attached(4);
    let text = digest(&engine, &target);
    change(&mut engine, &mut target, session, 0..4).unwrap();
    let at = engine.image().sites[2].address;
    let jump = text_at(&target, at);
    let covered = jump.starting_with(0xcc);
    target.write(at, covered.as_slice()).unwrap();
    let region = target.region();
    let restore = |target: &mut MockTarget| {
        crate::engine::restore(target, region, None, Leaving::LastTry).unwrap()
    };
    let restored = restore(&mut target);
    let left = (
        restored.places,
        restored.others,
        restored.inside.breakpoints,
    );
    assert_eq!(left, (3, 0, 1));
    assert!(!restored.inside.is_nobody(), "{}", restored.inside);
    assert_eq!(text_at(&target, at), covered);
    // It is taken away, and what stood there stands there again.
    target.write(at, jump.as_slice()).unwrap();
    let restored = restore(&mut target);
    assert!(
        restored.inside.is_nobody() && restored.places == 1,
        "{restored:?}"
    );
    assert_eq!(digest(&engine, &target), text);
}

/// The window was once taken away below it, and when the breakpoint went, the jump led to nowhere.
#[test]
fn who_leaves_keeps_what_a_covered_jump_leads_to() {
    let (mut engine, mut target, session) = attached(4);
    change(&mut engine, &mut target, session, 2..3).unwrap();
    let site = engine.image().sites[2].clone();
    let (at, jump) = (site.address, text_at(&target, site.address));
    // A breakpoint of the guest's own, and a call that it has made of ours.
    for changed in [jump.starting_with(0xcc), jump.starting_with(0xe8)] {
        target.write(at, changed.as_slice()).unwrap();
        let refused = engine.leave(&mut target, Leaving::LastTry).unwrap_err();
        let expected = ApplyError::StillLeads {
            sites: 1,
            first: at,
        };
        assert_eq!(refused, expected, "{changed:?}");
    }
    let covered = jump.starting_with(0xcc);
    target.write(at, covered.as_slice()).unwrap();
    let vcpus = StoppedTarget::vcpus(&target).to_vec();
    assert_eq!(engine.check_foothold(&mut target, &vcpus), Ok(()));
    target.write(at, NOP5.as_slice()).unwrap();
    let left = engine.leave(&mut target, Leaving::LastTry).unwrap();
    assert!(left.is_nobody());
}

/// All of its text was once taken for somebody else's then, and the jumps led to nowhere.
#[test]
fn a_guest_whose_kernel_is_not_in_sight_is_left_as_it_is() {
    let (mut engine, mut target, session) = attached(4);
    let text = digest(&engine, &target);
    change(&mut engine, &mut target, session, 0..4).unwrap();
    let region = target.region();
    let start = crate::window::left::Told::read(&target, region);
    let start = start.unwrap().unwrap().text;
    let mut hidden = target.clone();
    let sites = engine.image().sites.iter().map(|site| site.address);
    hidden.faults.unreadable = sites.chain([start]).collect();
    let before = hidden.own_memory();
    let refused = crate::engine::restore(&mut hidden, region, None, Leaving::LastTry);
    assert_eq!(refused, Err(crate::RestoreError::NotShown { text: start }));
    assert_eq!(hidden.own_memory(), before);
    hidden.faults = Faults::default();
    let restored = crate::engine::restore(&mut hidden, region, None, Leaving::LastTry);
    let restored = restored.unwrap();
    assert!(
        restored.inside.is_nobody() && restored.places == 4,
        "{restored:?}"
    );
    assert_eq!(digest(&engine, &hidden), text);
}
