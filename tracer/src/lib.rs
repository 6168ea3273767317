//! Function tracing from outside the traced system.
//!
//! This crate knows no hypervisor, no threads and no clock: bytes come in, decisions go out. A
//! guest is an [`image`] description (symbols, sites, text ranges) and what a VMM gives access to: a [`guest::Guest`],
//! and stopped a [`target`]. [`tracing::Tracing`] is the door: sessions, what they trace, and their lives.
//!
//! Who embeds it implements [`guest::Guest`] for a virtual machine and gives a [`tracing::Host`]. With the feature `mock`
//! there is a guest without a hypervisor:
//!
//! ```
//! use image::testing::nop_image;
//! use terms::function::FunctionId;
//! use tracer::mock::{HOST, MockGuest, MockTarget, NoPollers, Rights};
//! use tracer::tracing::closing::Closing;
//! use tracer::tracing::options::{DEFAULT_SESSION, SessionOptions, TracingOptions};
//! use tracer::tracing::{Host, Kernel, Tracing, filters::Globs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A kernel whose functions are f0 to f39, in a machine with two vCPUs.
//! let image = nop_image(40);
//! let guest = MockGuest::new(MockTarget::with_image(2, 64 << 20, &image, Rights::ALL)?);
//! let folder = tempfile::tempdir()?;
//! let session = SessionOptions {
//!     output: Some(folder.path().join("trace")),
//!     ..SessionOptions::default()
//! };
//! let options = TracingOptions { session, vcpus: 2, ..TracingOptions::default() };
//! let kernel = Kernel { image, debug: None, name: "kernel".to_owned() };
//! let pollers = Box::new(NoPollers);
//! let host = Host { clock: HOST, pollers, command_line: "example".to_owned() };
//! let mut tracing = Tracing::new(options, kernel, host)?;
//! let untouched = tracing.digest(&guest)?;
//!
//! // From now on the first ten functions are traced; the guest calls one of them, on either vCPU.
//! let filter = Globs { filter: vec!["f?".to_owned()], ..Globs::default() };
//! let changed = tracing.start(&guest, DEFAULT_SESSION, None, &filter)?;
//! assert_eq!(changed.traced, 10);
//! let rings = tracing.rings_of(DEFAULT_SESSION)?;
//! for vcpu in [0, 1] {
//!     guest.call(&rings, vcpu, FunctionId(7), 1 << 40)?;
//! }
//!
//! // Not a byte is left in the guest; both calls are in the trace.
//! tracing.stop(&guest, DEFAULT_SESSION)?;
//! assert_eq!(tracing.digest(&guest)?, untouched);
//! let finished = tracing.finish(&guest, None)?;
//! assert!(matches!(&finished.closings[..], [Closing::Written { tally, .. }] if tally.calls == 2));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod clock;
pub mod collect;
pub mod guest;
mod guest_kind;
pub mod host_events;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
mod personality;
pub mod target;
pub mod tasks;
pub mod tracing;
pub mod waits;

// Rooms that an embedder has no need of. Tests and fuzz targets go in by the feature `internals`, which promises
// nothing. Said twice for each, as formatters do not look into macros.
#[cfg(not(feature = "internals"))]
mod capture;
#[cfg(feature = "internals")]
pub mod capture;
#[cfg(not(feature = "internals"))]
mod current_task;
#[cfg(feature = "internals")]
pub mod current_task;
#[cfg(not(feature = "internals"))]
mod digest;
#[cfg(feature = "internals")]
pub mod digest;
#[cfg(not(feature = "internals"))]
mod engine;
#[cfg(feature = "internals")]
pub mod engine;
#[cfg(not(feature = "internals"))]
mod event_formats;
#[cfg(feature = "internals")]
pub mod event_formats;
#[cfg(not(feature = "internals"))]
mod filter;
#[cfg(feature = "internals")]
pub mod filter;
#[cfg(not(feature = "internals"))]
mod introspection;
#[cfg(feature = "internals")]
pub mod introspection;
#[cfg(not(feature = "internals"))]
mod linux;
#[cfg(feature = "internals")]
pub mod linux;
#[cfg(not(feature = "internals"))]
mod module;
#[cfg(feature = "internals")]
pub mod module;
#[cfg(not(feature = "internals"))]
mod paging;
#[cfg(feature = "internals")]
pub mod paging;
#[cfg(not(feature = "internals"))]
mod points;
#[cfg(feature = "internals")]
pub mod points;
#[cfg(not(feature = "internals"))]
mod probe;
#[cfg(feature = "internals")]
pub mod probe;
#[cfg(not(feature = "internals"))]
mod record;
#[cfg(feature = "internals")]
pub mod record;
#[cfg(not(feature = "internals"))]
mod ring;
#[cfg(feature = "internals")]
pub mod ring;
#[cfg(not(feature = "internals"))]
mod session;
#[cfg(feature = "internals")]
pub mod session;
#[cfg(not(feature = "internals"))]
mod stack;
#[cfg(feature = "internals")]
pub mod stack;
#[cfg(not(feature = "internals"))]
mod stub;
#[cfg(feature = "internals")]
pub mod stub;
#[cfg(not(feature = "internals"))]
mod text;
#[cfg(feature = "internals")]
pub mod text;
#[cfg(not(feature = "internals"))]
mod window;
#[cfg(feature = "internals")]
pub mod window;

pub use engine::Inside;
pub use linux::kernel::remark as remark_on_types;
pub use paging::{PageTableRoot, TranslateError, translate};
pub use personality::PanicMarks;
pub use points::any::without_sites;
pub use points::events::Dispatch;
pub use points::locks::LockPrefixes;
pub use points::tactic::Tactic;
pub use ring::geometry::{Geometry, RingSizeError};
pub use ring::reader::Mode;
#[cfg(any(test, feature = "mock"))]
pub use session::SessionMemory;
pub use stub::spec::ReturnHook;

// Guests that another process has started and may trace already: which kernel runs, from its memory alone, and what a
// tracer that is dead has left in it.
#[cfg(feature = "foreign")]
pub use engine::{RestoreError, Restored};
#[cfg(feature = "foreign")]
pub use linux::in_memory::error::{BrokenList, NoKernel, NoSites};
#[cfg(feature = "foreign")]
pub use linux::in_memory::moved::{MovedKernel, OtherKernel};
#[cfg(feature = "foreign")]
pub use linux::in_memory::{FoundKernel, KernelMap, kernel_in_memory};
#[cfg(feature = "foreign")]
pub use text::journal;
#[cfg(feature = "foreign")]
pub use tracing::restore;
