//! What a stub has to do for the sessions that trace its function.

use terms::session_set::SessionSet;

use crate::session::Session;
use crate::stub::arena::Arena;
use crate::stub::graph::{Hook, ReturnHook, SiteShape};
use crate::stub::mirror::Mirror;
use crate::stub::template::{Captures, StubSpec};

/// What the stub of the functions that `set` traces does, and of which this is captured.
pub(super) fn stub_spec(
    sessions: &[Option<Session>],
    set: SessionSet,
    shape: SiteShape,
    captures: Captures,
    mirror: Option<Mirror>,
    arena: &Arena,
) -> StubSpec {
    let of = |id: u8| sessions.get(usize::from(id)).and_then(Option::as_ref);
    let traced_by: Vec<&Session> = set.iter().filter_map(of).collect();
    let graph = traced_by
        .iter()
        .find(|session| session.config.tracer.hooks_returns());
    let variant = graph.map(|session| session.config.return_hook);
    let variant = variant.or_else(|| captures.exit.map(|_| ReturnHook::default()));
    let hook = variant.zip(mirror).map(|(variant, mirror)| Hook {
        variant,
        mirror,
        stubs: arena.start(),
        stub_bytes: u32::try_from(arena.bytes()).unwrap_or(u32::MAX >> 1),
    });
    let shape = match shape {
        SiteShape::Bare => shape,
        _ if hook.is_some() => shape,
        _ => SiteShape::Entry,
    };
    StubSpec {
        recorders: traced_by.iter().filter_map(|one| one.recorder).collect(),
        profiles: traced_by.iter().filter_map(|one| one.profile).collect(),
        shape,
        hook,
        captures_entry: captures.entry.is_some(),
        captures_exit: captures.exit.is_some(),
    }
}
