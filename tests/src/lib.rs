//! The harness of the integration tests: guests that are started, traced and listened to as a user
//! would do it.
//!
//! `tests/run` builds the programs and decides where the suites run. `tests/law` needs no KVM,
//! the suite `kvm` needs one, the suite `ring0` needs one that executes ring 0.

#![expect(
    clippy::panic,
    clippy::expect_used,
    reason = "what the harness cannot do is a failed test, with the reason in the panic"
)]

pub mod bare;
pub mod conformance;
mod control;
pub mod demo;
pub mod elf;
pub mod empty_dev;
pub mod exact;
pub mod forced;
mod guest;
pub mod host_side;
pub mod measure;
mod missed;
mod monitor;
pub mod mortal;
pub mod oracle;
mod output;
mod place;
pub mod qemu;
mod ramdisk;
mod random;
pub mod reader;
mod standstill;
pub mod start;
pub mod stepped;
mod trace;
pub mod transcript;
pub mod users;

pub use control::Client;
pub use guest::{CALLS, Guest, Running};
pub use monitor::Monitor;
pub use output::{Counts, Ended, Printed};
pub use place::{
    ATOMIC, Kernel, bare_guest, foreign_kernel, guest, guest_with_retpolines, in_the_box, is_long,
    kernels, limited, linux, linux_initrd, lives_to_see, look_again, patched_by, patience, patient,
    promises_atomic, scaled, starts_vmm, stormy, until, usual_or_long, vmm, vmm_says,
};
pub use ramdisk::with_file;
pub use random::Random;
pub use trace::{Trace, counts_of};
