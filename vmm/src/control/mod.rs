//! Control of a running VMM from outside: the protocol, the socket that serves it, its client.

mod claim;
pub mod client;
pub mod connection;
pub mod dynfunc;
pub mod events;
pub mod line_buffer;
pub mod probes;
pub mod protocol;
pub mod server;
pub mod sessions;
pub mod status;
