//! Several sessions on one function.

use tracer::tracing::options::{ClockSource, Tracer};
use vmm::control::protocol::{Call, CreateSession, SessionName, Start};
use vmm::options::session::SessionOptions;

/// What makes it `sessions` function sessions on what `glob` matches, the default one included.
#[must_use]
pub fn more_sessions(sessions: usize, glob: &str, clock: ClockSource) -> Vec<Call> {
    let calls = (1..sessions).flat_map(|number| {
        let name = format!("session{number}");
        let create = CreateSession {
            name: name.clone(),
            tracer: Tracer::Function,
            options: SessionOptions {
                clock,
                ..SessionOptions::default()
            },
        };
        let start = Start {
            session: SessionName(name),
            filter: vec![glob.to_owned()],
            ..Start::default()
        };
        [Call::CreateSession(create), Call::Start(start)]
    });
    calls.collect()
}
