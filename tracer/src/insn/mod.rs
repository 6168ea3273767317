//! Everything that knows x86 instruction bytes: the only module that names iced-x86.

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
