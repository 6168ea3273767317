//! Why tracing operations fail.

use tracer::engine::{ApplyError, AttachError};
use tracer::export::uftrace::ExportError;
use tracer::filter::FilterError;
use tracer::graph::threads::BadStackSize;
use tracer::image::ImageError;
use tracer::patch::poke::TransactionError;
use tracer::ring::geometry::RingSizeError;
use tracer::target::MemoryError;

use super::DEFAULT_ATTACH;
use crate::control::protocol::RpcError;
use crate::failure::Failure;
use crate::quiesce::QuiesceError;
use crate::vcpu::AskVcpuError;

/// Why a tracing operation failed. The guest goes on in each case.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// The guest could not be paused.
    #[error(transparent)]
    Quiesce(#[from] QuiesceError),
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The window or the session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The change.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Normalising the sites.
    #[error("the image's patch sites cannot be prepared: {0}")]
    Normalise(#[from] TransactionError),
    /// The image has nothing to trace.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Tracing is on already.
    #[error("tracing has been started already: `filter` changes what is traced, `stop` ends it")]
    AlreadyStarted,
    /// Tracing is off.
    #[error("tracing has not been started: use `start` first")]
    NotStarted,
    /// The ring size.
    #[error("--ring-size: {0}")]
    RingSize(#[from] RingSizeError),
    /// The stack size.
    #[error("--stack-size: {0}")]
    StackSize(#[from] BadStackSize),
    /// A root of the graph.
    #[error("--graph-function '{0}' matches no function of the image")]
    NoRoot(String),
    /// The trace directory.
    #[error(transparent)]
    Output(#[from] ExportError),
    /// The drain thread.
    #[error("the system gives no thread to read the rings: {0}")]
    Thread(#[source] std::io::Error),
    /// The text cannot be read.
    #[error("the guest's text cannot be read: {0}")]
    Digest(#[source] MemoryError),
    /// The guest's clock.
    #[error("the guest's time-stamp counter cannot be read: {0}")]
    Clock(#[from] AskVcpuError),
    /// No such symbol to attach at.
    #[error("--attach-at {symbol}: the kernel has no such symbol{near}")]
    NoAttachSymbol {
        /// The name given.
        symbol: String,
        /// What is like it, as text.
        near: String,
    },
    /// The kernel is none that we know.
    #[error(
        "this kernel has no function `{DEFAULT_ATTACH}`, so it is not known when it can be traced: say it with --attach-at SYMBOL, or leave --trace out and use `vmm ctl start` when it runs"
    )]
    NoDefaultAttach,
    /// A machine that runs already cannot be prepared.
    #[error("the guest has been started already")]
    Started,
}

impl From<TracingError> for RpcError {
    fn from(error: TracingError) -> Self {
        Self::failed(error)
    }
}

impl From<TracingError> for Failure {
    fn from(error: TracingError) -> Self {
        match &error {
            TracingError::Filter(_)
            | TracingError::Image(_)
            | TracingError::RingSize(_)
            | TracingError::StackSize(_)
            | TracingError::NoRoot(_)
            | TracingError::NoAttachSymbol { .. }
            | TracingError::NoDefaultAttach => Self::bad_input(error),
            TracingError::Output(
                ExportError::Exists(_)
                | ExportError::NotADirectory(_)
                | ExportError::NotATrace { .. },
            ) => Self::bad_input(error),
            TracingError::Output(_) => Self::output(error),
            _ => Self::tracing(error),
        }
    }
}
