//! Guests as a run drives them, one file for each kind of [`Provider`](crate::provider::Provider).

mod foreign;
mod machine;
