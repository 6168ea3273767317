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
    use terms::function::FunctionId;

    use super::*;
    use crate::engine::Engine;
    use crate::filter::Selection;
    use crate::mock::{HOST, MockGuest, MockTarget, Rights};
    use crate::ring::geometry::Geometry;
    use crate::session::{SessionConfig, TracerKind};
    use crate::stub::recorder::Clock;
    use crate::stub::spec::ReturnHook;
    use crate::target::TextMemory;

    /// While something stays, each look is at all of it.
    #[test]
    fn what_is_somebody_elses_is_counted_once_however_often_it_is_looked_at() {
        let image = nop_image(3);
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
            selected: (0..3).map(FunctionId).collect(),
            ..Selection::default()
        };
        let plan = engine.plan(&mut target, id, &selection).unwrap();
        engine.apply(&mut target, &plan).unwrap();
        // A kprobe on one jump, and other text in the place of another.
        target.write(sites[0], &[0xcc]).unwrap();
        target.write(sites[1], &[0x90; 5]).unwrap();
        let guest = MockGuest::new(target);
        let restored = restore(&guest, None, Some(HOST)).unwrap();
        let counted = (
            restored.places,
            restored.others,
            restored.inside.breakpoints,
        );
        assert_eq!(counted, (1, 1, 1));
    }
}
