//! The tracing session of a running guest: the engine's decisions carried out on this machine.
//!
//! All calls come from the main thread. In the order of a run: [`Tracing::new`] before the machine
//! is built, [`Tracing::before_start`] with the kernel loaded, [`Tracing::at_breakpoint`] when the
//! attach point is reached, the control methods at any time, [`Tracing::finish`] at the end.

use std::path::PathBuf;

use tracer::addr::Gva;

use crate::control::protocol::{FilterChange, FunctionsQuery, RpcError, Start};
use crate::control::status::{Changed, Digest, Dumped, Functions, Switched, TracingStatus};
use crate::failure::Failure;
use crate::loader::KernelFile;
use crate::machine::Machine;

/// What the command line says about tracing.
#[derive(Debug, Clone, Default)]
pub struct TracingOptions {
    /// `--trace` was given.
    pub enabled: bool,
    /// Globs of functions to trace; none means all.
    pub filter: Vec<String>,
    /// Globs of functions not to trace.
    pub notrace: Vec<String>,
    /// Attach when this function is reached.
    pub attach_at: Option<String>,
    /// A full ring drops the newest record instead of the oldest.
    pub discard: bool,
    /// Size of one ring in KiB.
    pub ring_kib: u64,
    /// Where the trace goes at the end.
    pub output: Option<PathBuf>,
    /// The output directory may exist already.
    pub force: bool,
}

/// The tracing session.
#[derive(Debug)]
pub struct Tracing {}

impl Tracing {
    /// Checks the options against the image, before anything is built.
    ///
    /// # Errors
    /// [`Failure`] with one line for the user.
    pub fn new(_options: TracingOptions, _kernel: &KernelFile) -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// The kernel is loaded and no vCPU has run: the time to normalise sites. Returns the address
    /// of the attach point when there is to be a breakpoint.
    ///
    /// # Errors
    /// [`Failure`] with one line for the user.
    pub fn before_start(&mut self, _machine: &mut Machine) -> Result<Option<Gva>, Failure> {
        Ok(None)
    }

    /// A vCPU is trapped at the attach point. Afterwards the breakpoint is removed, whatever this
    /// returns, and the guest goes on.
    ///
    /// # Errors
    /// [`Failure`] ends the run.
    pub fn at_breakpoint(&mut self, _machine: &Machine) -> Result<(), Failure> {
        Ok(())
    }

    /// The guest has ended or is to end; the vCPUs can still be quiesced. Writes the trace.
    ///
    /// # Errors
    /// [`Failure`] with one line for the user.
    pub fn finish(&mut self, _machine: &Machine) -> Result<(), Failure> {
        Ok(())
    }

    /// Part of `status`.
    pub fn status(&mut self, _machine: &Machine) -> TracingStatus {
        TracingStatus {
            state: "off".to_owned(),
            ..TracingStatus::default()
        }
    }

    /// `functions`.
    ///
    /// # Errors
    /// A glob that makes no sense.
    pub fn functions(&self, _query: &FunctionsQuery) -> Result<Functions, RpcError> {
        Err(not_yet())
    }

    /// `start`.
    ///
    /// # Errors
    /// Why it could not be started.
    pub fn start(&mut self, _machine: &Machine, _start: &Start) -> Result<Changed, RpcError> {
        Err(not_yet())
    }

    /// `stop`.
    ///
    /// # Errors
    /// Why it could not be stopped.
    pub fn stop(&mut self, _machine: &Machine) -> Result<Changed, RpcError> {
        Err(not_yet())
    }

    /// `filter.add`.
    ///
    /// # Errors
    /// Why the filter is as before.
    pub fn filter_add(
        &mut self,
        _machine: &Machine,
        _change: &FilterChange,
    ) -> Result<Changed, RpcError> {
        Err(not_yet())
    }

    /// `filter.remove`.
    ///
    /// # Errors
    /// Why the filter is as before.
    pub fn filter_remove(
        &mut self,
        _machine: &Machine,
        _change: &FilterChange,
    ) -> Result<Changed, RpcError> {
        Err(not_yet())
    }

    /// `filter.set`; with an empty change it is `filter.clear`.
    ///
    /// # Errors
    /// Why the filter is as before.
    pub fn filter_set(
        &mut self,
        _machine: &Machine,
        _change: &FilterChange,
    ) -> Result<Changed, RpcError> {
        Err(not_yet())
    }

    /// `tracing-on` and `tracing-off`.
    ///
    /// # Errors
    /// When there is nothing to switch.
    pub fn switch(&mut self, _machine: &Machine, _on: bool) -> Result<Switched, RpcError> {
        Err(not_yet())
    }

    /// `dump`.
    ///
    /// # Errors
    /// Why nothing (or not everything) was written.
    pub fn dump(&mut self, _machine: &Machine, _dir: &str) -> Result<Dumped, RpcError> {
        Err(not_yet())
    }

    /// `digest`.
    ///
    /// # Errors
    /// When the text cannot be read.
    pub fn digest(&self, _machine: &Machine) -> Result<Digest, RpcError> {
        Err(not_yet())
    }
}

fn not_yet() -> RpcError {
    RpcError::failed("tracing is not built in yet")
}
