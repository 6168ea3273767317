//! A guest as a run drives it: what happens to it, how it is paused for the user, and how it is let go in the end.

use std::os::fd::RawFd;
use std::time::Duration;

use trace::export::uftrace::PauseSpread;
use tracer::guest::{Guest, StopError};
use tracer::tracing::{Finished, Tracing};

use crate::black_box::Scratch;
use crate::control::status::VcpuStatus;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::outcome::Outcome;

/// Where a guest comes from: a machine of ours, or another VMM.
pub trait Provider: Guest {
    /// What can be read from when something has happened.
    fn bell(&self) -> RawFd;

    /// Sees to one thing that has happened; the bell rings on when there may be more. Returns how the run is to end, if it
    /// is.
    fn see_to_event(&mut self, tracing: &mut Tracing) -> Option<Outcome>;

    /// Lets threads go that have not stopped in time for the last pause, and have by now. How soon that is to be done again, if there
    /// are more of them.
    fn let_late_go(&self) -> Option<Duration>;

    /// Looks whether the kernel that is traced still runs. Returns how the run is to end, if it is.
    fn look(&mut self) -> Option<Outcome>;

    /// How long the pauses took in which that was looked at, where it takes any.
    fn kernel_looks(&self) -> Option<PauseSpread> {
        None
    }

    /// The window was found to be lost. Returns how the run is to end, if it is.
    fn lost_window(&mut self) -> Option<Outcome>;

    /// Pauses the guest until [`Self::resume`]. Says whether that changed anything.
    ///
    /// # Errors
    /// [`StopError`] names the vCPU in the way; then the guest runs on.
    fn pause(&self) -> Result<bool, StopError>;

    /// Ends a [`Self::pause`]. Says whether there was one.
    fn resume(&self) -> bool;

    /// How the guest as a whole is: `running`, `paused`, `trapped` or `ended`.
    fn state(&self) -> &'static str;

    /// How each vCPU is.
    fn vcpu_states(&self) -> Vec<VcpuStatus>;

    /// How much RAM it has.
    fn ram_bytes(&self) -> u64;

    /// What of its memory is mapped here; the window is.
    fn mapped(&self) -> &Memory;

    /// Has those counters of vCPUs looked at that were not for long.
    fn nudge_for_clocks(&self);

    /// Somebody has typed something.
    fn console_input(&self, bytes: &[u8]);

    /// What was asked for and could not be done, though the guest has ended as if all were well. Asked for before
    /// [`Self::finish`].
    fn not_done(&self, _tracing: &Tracing) -> Option<Failure> {
        None
    }

    /// The run is over: completes the traces, and ends the guest or lets it go. Of one whose last calls are wanted, `last`
    /// names directories for those that are in no output.
    ///
    /// # Errors
    /// When a trace could not be completed, or something of ours is left in the guest.
    fn finish(
        &mut self,
        tracing: &mut Tracing,
        last: Option<&Scratch>,
    ) -> Result<Finished, Failure>;
}
