//! What a user writes for a probe, and what is captured for it.
//!
//! ```text
//! SPEC [FETCH...] [if CONDITION]
//!
//! SPEC       FUNCTION              before its first instruction
//!            FUNCTION+OFFSET       before the instruction at this offset
//!            FUNCTION%return       after its return
//!            FILE:LINE             before the code of a line, wherever it is
//!            ADDRESS               before the instruction at 0x...
//!            mod:MODULE:FUNCTION   of a module, also one that comes later (+OFFSET, %return; or without the mod:)
//! FETCH      [NAME=]VALUE[:TYPE]   without blanks, but in brackets
//!            $args                 all parameters that can be captured here
//! VALUE      a variable, a number, a register (%rdi, %eax), $retval, $arg1 to $arg16, and on these what C and
//!            Rust have: p->f, s.f, s.0, a[i], *p, &x, -x, ~x, ( ), * / % + - << >> & ^ |
//!            $stack, $stack[N] (the callers, by N bytes of the stack),
//!            $current (the task that runs), this_cpu_read(x) and this_cpu_ptr(x) (of what each processor has its own),
//!            (struct s *)p as in C, and as in the kernel's probes (s)p->f, and (s,member)p->f for the s that a member is in
//! TYPE       u8 u16 u32 u64 i8 i16 i32 i64 x8 x16 x32 x64 (hexadecimal), bool, char, pointer,
//!            string, string[N] (at most N bytes of it), u32[3] (three of them in memory), string[N][3] (the texts that three
//!            pointers in memory lead to)
//! CONDITION  what a value can be, and == != < <= > >= ! && ||, "text", 'c', enumerators, true, false, NULL
//! ```
//!
//! `%rdi`, `$arg1` and the like are whole registers. `*(%rsp+8):u32` reads as many bytes as its type has, 8 without one;
//! `%rsi:string` is the text at the address that `%rsi` holds, and `*(%rsp+8):string` that at the address which lies at
//! `%rsp+8`. A name that no variable has is a symbol of the image: `jiffies:u64`.
//!
//! Numbers are promoted, and signs compared, as in C. Pointers count in what they point to. References of Rust are
//! followed by `.` without a `*`. Text of Rust and arrays of `char` are text by themselves; `char *` needs `:string`. A
//! structure in memory is bytes, one in registers its members. In conditions, `"text"` is compared with a `char *`, an
//! array of `char` or Rust's text.
//!
//! At a function's first instruction, parameters of unoptimised code are taken from where the calling convention puts
//! them (System V: integers and pointers), not from where debug information says, which is right only after the prologue.
//! At its return there is `$retval`.

mod access;
mod blame;
#[cfg(test)]
mod btf_tests;
mod cast;
#[cfg(test)]
mod compiled_tests;
mod condition;
mod elements;
mod error;
mod evaluate;
mod expression;
mod known;
mod misfit;
mod of_cpu;
mod parameters;
mod places;
mod request;
mod resolve;
#[cfg(test)]
mod tests;
mod token;
mod typed;

pub use error::BadProbe;
pub use parameters::{parameters, return_value};
pub use places::Point;
pub use request::{Request, parse};
pub use resolve::{Resolved, resolve};
