//! Several sessions on one function.

use tracer::tracing::options::{ClockSource, Tracer};
use vmm::control::method::Method;
use vmm::control::methods::sessions::{CreateSession, NewSession, SessionName};
use vmm::control::methods::tracing::{Start, Wanted};
use vmm::control::protocol::Call;
use vmm::options::session::SessionOptions;

use super::Failed;

/// What makes it `sessions` function sessions on what `glob` matches, the default one included.
pub fn more_sessions(sessions: usize, glob: &str, clock: ClockSource) -> Result<Vec<Call>, Failed> {
    let mut calls = Vec::new();
    for number in 1..sessions {
        let name = format!("session{number}");
        let create = NewSession {
            name: name.clone(),
            tracer: Tracer::Function,
            options: SessionOptions {
                clock,
                ..SessionOptions::default()
            },
        };
        let start = Wanted {
            session: SessionName(name),
            filter: vec![glob.to_owned()],
            ..Wanted::default()
        };
        calls.extend([CreateSession(create).call()?, Start(start).call()?]);
    }
    Ok(calls)
}
