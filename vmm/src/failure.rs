//! What a command says when it cannot continue: one line, and the exit status that goes with it.

use crate::exit_status::ExitStatus;

/// A command failed.
#[derive(Debug)]
pub struct Failure {
    /// How `vmm` is to end.
    pub status: ExitStatus,
    /// One line that names the thing and what to do.
    pub message: String,
}

impl Failure {
    /// A failure with this status and message.
    pub fn new(status: ExitStatus, message: impl ToString) -> Self {
        let message = message.to_string().replace('\n', " ");
        Self { status, message }
    }

    /// Usage or bad input.
    pub fn bad_input(message: impl ToString) -> Self {
        Self::new(ExitStatus::BadInput, message)
    }

    /// Tracing failed.
    pub fn tracing(message: impl ToString) -> Self {
        Self::new(ExitStatus::TracingFailed, message)
    }

    /// Output could not be written.
    pub fn output(message: impl ToString) -> Self {
        Self::new(ExitStatus::OutputFailed, message)
    }
}

impl From<crate::machine::BuildError> for Failure {
    fn from(error: crate::machine::BuildError) -> Self {
        use crate::machine::BuildError as E;
        let status = match &error {
            E::Vcpus { .. } | E::Memory(_) | E::Load(_) => ExitStatus::BadInput,
            E::NoKvm
            | E::NoPermission
            | E::OpenKvm { .. }
            | E::NotKvm
            | E::ApiVersion { .. }
            | E::NotNested
            | E::Kvm { .. } => ExitStatus::NoKvm,
            E::System { .. } | E::AlreadyStarted => ExitStatus::BadInput,
        };
        Self::new(status, error)
    }
}

impl From<crate::foreign::error::ForeignError> for Failure {
    fn from(error: crate::foreign::error::ForeignError) -> Self {
        Self::bad_input(error)
    }
}
