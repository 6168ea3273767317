//! Control of a running VMM from outside: the protocol, the socket that serves it, its client.

mod claim;
pub mod client;
pub mod connection;
#[cfg(test)]
mod document;
pub mod errors;
#[cfg(test)]
mod fields;
pub mod line_buffer;
pub mod method;
pub mod methods;
pub mod outputs;
pub mod protocol;
pub mod server;
pub mod status;
pub mod subscription;
