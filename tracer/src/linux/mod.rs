//! What is particular to a running Linux kernel, beside what its image says (`image::linux`).

pub mod address_space;
mod cgroup;
mod current;
mod deny;
#[cfg(feature = "foreign")]
pub mod in_memory;
mod introspection;
pub mod kernel;
pub mod kernel_view;
pub mod kprobes;
pub mod module;
pub mod mutex;
pub mod orc;
mod per_cpu;
pub mod personality;
pub mod stacks;
pub mod static_call;
pub mod task;

pub use kernel::Kernel;
