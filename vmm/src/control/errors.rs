//! The last errors that requests have come to: who was told is gone by the time that somebody asks why nothing is traced.

use std::collections::VecDeque;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::protocol::{Mark, RpcError};

/// So many are kept.
const KEPT: usize = 64;
/// Characters of a message that are kept: one that is longer quotes what a client has sent.
const CHARACTERS: usize = 2048;

/// An error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastError {
    /// When it was, in milliseconds from the start of the run.
    pub uptime_ms: u64,
    /// The method that was asked for.
    pub method: String,
    /// The code of the reply.
    pub code: i32,
    /// Its message.
    pub message: String,
    /// What in the request is wrong, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Mark>,
}

/// The last errors.
#[derive(Debug)]
pub struct ErrorLog {
    started: Instant,
    kept: VecDeque<PastError>,
    forgotten: u64,
}

/// What can be asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastErrors {
    /// The last errors, the oldest first.
    pub errors: Vec<PastError>,
    /// How many there were before them, since the start or since they were cleared.
    pub forgotten: u64,
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            kept: VecDeque::new(),
            forgotten: 0,
        }
    }
}

impl ErrorLog {
    /// A request has come to this.
    pub fn note(&mut self, method: &str, error: &RpcError) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.forgotten = self.forgotten.saturating_add(1);
        }
        let uptime_ms = self.started.elapsed().as_millis();
        self.kept.push_back(PastError {
            uptime_ms: u64::try_from(uptime_ms).unwrap_or(u64::MAX),
            method: start_of(method),
            code: error.code,
            message: start_of(&error.message),
            data: error.data.clone(),
        });
    }

    /// The last ones.
    #[must_use]
    pub fn told(&self) -> PastErrors {
        PastErrors {
            errors: self.kept.iter().cloned().collect(),
            forgotten: self.forgotten,
        }
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.kept.clear();
        self.forgotten = 0;
    }
}

fn start_of(text: &str) -> String {
    text.chars().take(CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_kept_and_those_before_are_counted() {
        let mut log = ErrorLog::default();
        for number in 0..KEPT + 3 {
            log.note("start", &RpcError::failed(number));
        }
        let told = log.told();
        assert_eq!((told.errors.len(), told.forgotten), (KEPT, 3));
        assert_eq!(told.errors[0].message, "3");
        assert_eq!(told.errors[KEPT - 1].message, (KEPT + 2).to_string());
        log.clear();
        assert_eq!((log.told().errors.len(), log.told().forgotten), (0, 0));
    }

    #[test]
    fn of_what_is_too_long_the_beginning_is_kept() {
        let mut log = ErrorLog::default();
        log.note(&"é".repeat(60_000), &RpcError::failed("b".repeat(60_000)));
        let first = &log.told().errors[0];
        assert_eq!(first.method.chars().count(), CHARACTERS);
        assert_eq!(first.message.len(), CHARACTERS);
    }
}
