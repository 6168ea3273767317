//! When a trace ends: as it says itself, or the last time that anything in it has, whichever thread or vCPU that is of. A call that is
//! open then has lasted at least until then.

use std::path::PathBuf;
use std::sync::Arc;

use super::data_file;
use super::directory::{Task, TraceDirectory};
use crate::export::call_formats::CallFormats;
use crate::export::last_event::last_event_ns;
use crate::export::remark::Remark;

/// Where it is said.
#[derive(Debug)]
pub(super) struct TraceEnd {
    directory: PathBuf,
    tasks: Vec<Task>,
    values: Arc<CallFormats>,
    /// The last time that something was said of all vCPUs.
    remark_ns: Option<u64>,
    /// Up to when something would have been recorded.
    until_ns: Option<u64>,
}

impl TraceEnd {
    /// Of this trace.
    pub fn of(trace: &TraceDirectory) -> Self {
        let remarks = trace.side.as_ref().map(Remark::all);
        let last = remarks.unwrap_or_default().pop();
        Self {
            directory: trace.path.clone(),
            tasks: trace.tasks.clone(),
            values: Arc::clone(&trace.values),
            remark_ns: last.map(|remark| remark.time_ns()),
            until_ns: trace.side.as_ref().map(|side| side.until_ns),
        }
    }

    /// When it is. Of what cannot be read nothing is known: who reads it says so.
    pub fn time_ns(&self) -> u64 {
        let tasks = self.tasks.iter();
        let records = tasks.filter_map(|task| data_file::last_ns(task, &self.values));
        let others = [
            self.remark_ns,
            self.until_ns,
            last_event_ns(&self.directory),
        ];
        let all = records.chain(others.into_iter().flatten());
        all.max().unwrap_or_default()
    }
}
