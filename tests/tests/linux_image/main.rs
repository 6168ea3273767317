//! What is read from the images of stock kernels, in files and in memory. Needs no KVM, but the kernels that images/linux
//! fetches, and QEMU.
//!
//! One module per subject; a new test goes into the module whose first line fits.
#![cfg(test)]

mod ages;
mod damaged;
mod in_memory;
mod rewritten;
