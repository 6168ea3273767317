//! Calls.
