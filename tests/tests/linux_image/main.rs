//! What is read from the images of stock kernels. Needs no KVM, but the kernels that images/linux fetches.
//!
//! One module per subject; a new test goes into the module whose first line fits.
#![cfg(test)]

mod ages;
mod damaged;
mod in_memory;
mod rewritten;
