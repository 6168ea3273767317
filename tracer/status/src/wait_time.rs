//! Whether a guest sees that its vCPUs wait for a reader: as an option, and in what is told of the waits.

use terms::choice::choices;

choices! {
    /// Whether the guest sees by its clock that its vCPUs wait.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum WaitTime {
        /// Its counters go on.
        #[default]
        Visible = "visible",
        /// All its vCPUs are held meanwhile, and their counters set back by that.
        Hidden = "hidden",
    }
}
