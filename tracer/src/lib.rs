//! Function tracing from outside the traced system.
//!
//! This crate knows no hypervisor, no threads and no clock: bytes come in, decisions go out. A
//! guest is an [`image`] description (symbols, sites, text ranges) and what a VMM gives access to: a [`guest::Guest`],
//! and stopped a [`target`]. [`tracing::Tracing`] is the door: sessions, what they trace, and their lives.

#![forbid(unsafe_code)]

pub mod capture;
pub mod choice;
pub mod clock;
pub mod collect;
pub mod digest;
pub mod engine;
pub mod event_formats;
pub mod filter;
pub mod guest;
pub mod guest_kind;
pub mod linux;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod paging;
pub mod patch;
pub mod personality;
pub mod probe;
pub mod record;
pub mod ring;
pub mod session;
pub mod stub;
pub mod target;
pub mod text;
pub mod tracing;
pub mod window;
