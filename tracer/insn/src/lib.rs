//! Everything that knows x86 instruction bytes: the only crate that names iced-x86.

#![forbid(unsafe_code)]

pub mod asm;
pub mod boundary;
pub mod flow;
pub mod jump;
pub mod lock;
pub mod nop;
pub mod operand;
pub mod relocate;
pub mod scan;
pub mod trap;
