//! Where the stream of a session is kept: what a format of traces on disk has to do. Another format is another file that
//! does this, and what the guest captures is not its concern.

use std::fmt::Debug;
use std::sync::Arc;

use terms::event_format::EventFormat;

use super::budget::Budget;
use super::call_formats::CallFormats;
use super::probes::ProbeNote;
use super::uftrace::layout::Text;
use super::uftrace::{AnomalyNote, CodedCalls, Entries, ExportError, Metadata, Tally};
use crate::crew::Crew;
use crate::doubt::TimeNote;
use crate::event::Sink;
use crate::stream::{Pass, Stream};

/// Takes the events of one session, and what there is to know about them. What cannot be kept is counted, the first reason
/// is remembered, and later events are tried again.
pub trait Store: Sink + Debug + Send {
    /// Something is known from now on.
    fn learn(&mut self, news: News<'_>);

    /// Takes what it keeps of events from a budget, from now on. What describes them does not count.
    fn set_budget(&mut self, budget: &Budget);

    /// Takes so much of what waits in this stream, side by side with this crew where that can be.
    fn take(&mut self, stream: &mut Stream, pass: Pass, crew: &dyn Crew);

    /// Whether calls without returns are best put into bytes by who reads them: then what that takes.
    fn entries(&self) -> Option<&Entries>;

    /// The next calls of this vCPU, which were put into bytes so.
    fn coded(&mut self, vcpu: u16, calls: CodedCalls);

    /// Keeps what was taken and still waits: who reads the trace finds it, whatever becomes of this process.
    fn flush(&mut self);

    /// Why not everything was kept so far.
    fn error(&self) -> Option<&ExportError>;

    /// No event comes any more. Completes the trace, and says what is in it.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun; everything that could be kept was.
    fn finish(&mut self, end: Ending) -> Result<Tally, ExportError>;
}

/// What there is to know about events; of each kind the newest, which has what was before.
#[derive(Debug)]
pub enum News<'a> {
    /// The functions of the guest.
    Functions(Text<'a>),
    /// What the trace says of itself.
    Metadata(Box<Metadata>),
    /// What points are called, by number.
    Points(&'a [Arc<EventFormat>]),
    /// The probes among them.
    Probes(&'a [ProbeNote]),
    /// What the values of calls are.
    Values(CallFormats),
    /// A thread has this name.
    Thread(u32, String),
}

/// What is known at the end.
#[derive(Debug, Default)]
pub struct Ending {
    /// Records whose times may be wrong.
    pub doubts: Vec<TimeNote>,
    /// What did not fit, where threads are told apart.
    pub anomalies: Vec<AnomalyNote>,
    /// Records of vCPUs that the trace does not have.
    pub strays: u64,
    /// Whether what came is not all that there was.
    pub is_cut: bool,
    /// Up to when something would have been recorded, in nanoseconds; 0 where nothing but the records says so.
    pub until_ns: u64,
}
