//! Places of the code that are switched while it runs, and how they are declared: each macro leaves a
//! record in a section of the image, which says where the place is and what may be put there. Nothing in
//! the guest switches them; whoever does finds the records in the image.

#![no_std]

pub mod function;
pub mod marker;
pub mod text;
pub mod tracepoint;
