//! A guest is given back what tracers that are dead have changed in it.

use image::Image;

use super::TracingError;
use super::leave::until_nobody;
use crate::clock::HostClock;
use crate::engine::{self, Leaving, Restored};
use crate::guest::Guest;
use crate::guest_kind;

/// Gives a guest back what tracers that are dead have changed in it, whose window is the guest's. With the image of the kernel that
/// runs, as its memory has it once all text is its own again, the kernel can be asked what may still lead to the window; without
/// it, everything that looks so may. With a clock it is looked several times what does, between which the guest runs; else once.
///
/// # Errors
/// A [`TracingError`]; what has been given back by then stays so, and the rest can be tried again.
pub fn restore(
    guest: &impl Guest,
    image: Option<&Image>,
    patience: Option<HostClock>,
) -> Result<Restored, TracingError> {
    let kernel = image.and_then(|image| guest_kind::of(image).introspection(image));
    let mut all = Restored::default();
    let mut look = |leaving| {
        let stopped = &mut guest.stop()?;
        let more = engine::restore(stopped, guest.window(), kernel.as_deref(), leaving)?;
        all.places += more.places;
        // As long as something stays, all of it is looked at again.
        all.others = all.others.max(more.others);
        Ok(more.inside)
    };
    all.inside = match patience {
        Some(host) => until_nobody(host, look)?,
        None => look(Leaving::LastTry)?,
    };
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use image::testing::nop_image;
    use terms::addr::Gva;
    use terms::function::FunctionId;

    use super::*;
    use crate::engine::Engine;
    use crate::filter::Selection;
    use crate::mock::{HOST, MockGuest, MockTarget, Rights};
    use crate::ring::geometry::Geometry;
    use crate::session::{SessionConfig, TracerKind};
    use crate::stub::recorder::Clock;
    use crate::stub::spec::ReturnHook;
    use crate::target::{TargetMemory, TextMemory};

    /// Where a place is, what stood there, and what we put there.
    type Place = (Gva, [u8; 5], [u8; 5]);

    /// A guest whose tracer is dead, with so many places changed.
    fn left(functions: u32) -> (MockTarget, Vec<Place>) {
        let image = nop_image(functions.into());
        let sites: Vec<_> = image.sites.iter().map(|site| site.address).collect();
        let mut target = MockTarget::with_image(1, 64 << 20, &image, Rights::ALL).unwrap();
        let mut engine = Engine::new(Arc::new(image));
        let region = target.region();
        engine.attach(&mut target, region).unwrap();
        let config = SessionConfig {
            name: "left".to_owned(),
            tracer: TracerKind::Function,
            return_hook: ReturnHook::Balanced,
            geometry: Geometry::with_bytes(4096).unwrap(),
            clock: Clock::Tsc,
            halts: Vec::new(),
            waits: false,
            callers: false,
        };
        let id = engine.create_session(&mut target, config).unwrap();
        let selection = Selection {
            selected: (0..functions).map(FunctionId).collect(),
            ..Selection::default()
        };
        let plan = engine.plan(&mut target, id, &selection).unwrap();
        let before: Vec<_> = sites.iter().map(|site| bytes(&target, *site)).collect();
        engine.apply(&mut target, &plan).unwrap();
        let places = sites.iter().zip(before);
        let places = places.map(|(site, before)| (*site, before, bytes(&target, *site)));
        let places = places.collect();
        (target, places)
    }

    fn bytes(memory: &impl TargetMemory, at: Gva) -> [u8; 5] {
        let mut bytes = [0; 5];
        memory.read(at, &mut bytes).unwrap();
        bytes
    }

    /// While something stays, each look is at all of it.
    #[test]
    fn what_is_somebody_elses_is_counted_once_however_often_it_is_looked_at() {
        let (mut target, sites) = left(3);
        // A kprobe on one jump, and other text in the place of another.
        target.write(sites[0].0, &[0xcc]).unwrap();
        target.write(sites[1].0, &[0x90; 5]).unwrap();
        let guest = MockGuest::new(target);
        let restored = restore(&guest, None, Some(HOST)).unwrap();
        let counted = (
            restored.places,
            restored.others,
            restored.inside.breakpoints,
        );
        assert_eq!(counted, (1, 1, 1));
    }

    /// The window was once taken away: a jump that had become a call, or whose place had other bytes after it, led nowhere.
    #[test]
    fn what_others_have_changed_stays_and_the_window_with_it_while_that_leads_there() {
        let (mut target, sites) = left(4);
        let (kprobe, call) = (sites[0].0, sites[1].0);
        target.write(kprobe, &[0xcc]).unwrap();
        target.write(call, &[0xe8]).unwrap();
        let theirs = [kprobe, call].map(|at| bytes(&target, at));
        let guest = MockGuest::new(target);
        let look = || restore(&guest, None, Some(HOST)).unwrap();
        let first = look();
        assert_eq!((first.places, first.others), (2, 1));
        assert_eq!((first.inside.breakpoints, first.inside.jumps), (1, 1));
        assert!(!first.inside.is_nobody());
        let said = first.inside.to_string();
        assert!(
            said.contains("1 kprobe of its own and 1 jump changed"),
            "{said}"
        );
        let now = [kprobe, call].map(|at| bytes(&*guest.target(), at));
        assert_eq!(now, theirs);
        for (at, before, _) in &sites[2..] {
            assert_eq!(bytes(&*guest.target(), *at), *before);
        }
        // The kprobe is removed, and puts our byte back; the other goes on.
        guest.target().write(kprobe, &[0xe9]).unwrap();
        let second = look();
        assert_eq!((second.places, second.others), (1, 1));
        assert_eq!((second.inside.breakpoints, second.inside.jumps), (0, 1));
        guest.target().write(call, &[0xe9]).unwrap();
        let last = look();
        assert_eq!((last.places, last.others), (1, 0));
        assert!(last.inside.is_nobody());
        for (at, before, _) in &sites {
            assert_eq!(bytes(&*guest.target(), *at), *before);
        }
    }

    /// They were once somebody else's, and stayed half.
    #[test]
    fn writes_that_were_cut_off_are_brought_to_their_end() {
        let (mut target, sites) = left(8);
        for (cut, pair) in (1..5).zip(sites.chunks(2)) {
            let [(patched, ..), (given_back, before, _)] = pair else {
                panic!("{pair:?}");
            };
            let (_, original, ours) = pair[0];
            target.write(*patched, &original).unwrap();
            target.write(*patched, &ours[..cut]).unwrap();
            target.write(*given_back, &before[..cut]).unwrap();
        }
        // The last byte of a jump can be the one that stood there.
        let is_half = |(at, before, _): &&(Gva, _, _)| bytes(&target, *at) != *before;
        let half = sites.iter().filter(is_half).count() as u64;
        assert!(half >= 7, "{half}");
        let guest = MockGuest::new(target);
        let restored = restore(&guest, None, None).unwrap();
        assert_eq!((restored.places, restored.others), (half, 0));
        assert!(restored.inside.is_nobody());
        for (at, before, _) in &sites {
            assert_eq!(bytes(&*guest.target(), *at), *before);
        }
    }
}
