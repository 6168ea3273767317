//! Function tracing from outside the traced system.
//!
//! This crate knows no hypervisor, no threads and no clock: bytes come in, decisions go out. A
//! guest is an [`image`] description (symbols, sites, text ranges) and what a VMM gives access to: a [`guest::Guest`],
//! and stopped a [`target`]. [`tracing::Tracing`] is the door: sessions, what they trace, and their lives.

#![forbid(unsafe_code)]

pub mod choice;
pub mod clock;
pub mod collect;
pub mod guest;
pub mod guest_kind;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod personality;
pub mod target;
pub mod tracing;

/// Rooms that an embedder has no need of. Tests and fuzz targets go in by the feature `internals`, which promises nothing.
macro_rules! rooms {
    ($($room:ident),+) => {
        $(
            #[cfg(feature = "internals")]
            pub mod $room;
            #[cfg(not(feature = "internals"))]
            mod $room;
        )+
    };
}

rooms!(
    capture,
    digest,
    engine,
    event_formats,
    filter,
    linux,
    paging,
    patch,
    probe,
    record,
    ring,
    session,
    stub,
    text,
    window
);

pub use linux::kernel::remark as remark_on_types;
pub use paging::{PageTableRoot, translate};
pub use patch::any::without_sites;
pub use patch::events::Dispatch;
pub use patch::locks::LockPrefixes;
pub use patch::tactic::Tactic;
pub use ring::reader::Mode;
pub use stub::clock_page;
pub use stub::graph::ReturnHook;
pub use text::journal;
