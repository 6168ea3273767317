//! Injected machine code: the only place that makes it.
//!
//! Each traced function has a stub of its own, entered by the `jmp` that stands at its patch site.
//! A stub runs the [`recorder`] of each session that traces the function, one after the other, and
//! jumps back to what follows the site. What it may change of the registers is in `registers`; it pushes onto
//! the stack of the function, below which nothing lives at its entry (System V x86-64 ABI §3.2.2: the
//! red zone belongs to the function that has been entered, and that has not used it yet).
//!
//! `cell` says where a recorder finds its ring, `recorder` emits the code, `template` stamps it for
//! each function. `store` knows where each is, and puts new ones into the memory that `arena` hands out.

mod access;
pub mod arena;
pub mod capture;
pub mod cell;
pub mod detour;
pub mod doorbell;
pub mod event;
pub mod graph;
pub mod gs_list;
pub mod halt;
pub mod mirror;
pub mod profile;
pub mod reach;
pub mod recorder;
mod registers;
pub mod spec;
pub mod store;
pub mod task;
pub mod template;
