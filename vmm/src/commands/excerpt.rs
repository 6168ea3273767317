//! Options that choose a part of a trace that is there.

use std::time::Duration;

use clap::Args;
use terms::quantity::{self, BadQuantity};
use trace::glob::Pattern;
use trace::graph::excerpt::Excerpt;

use crate::failure::Failure;
use crate::options::graph::GraphOptions;

/// Which part of a trace is read.
#[derive(Debug, Clone, Default, Args)]
pub struct ExcerptOptions {
    #[command(flatten)]
    graph: GraphOptions,
    /// Only calls on the way to functions whose name matches, and these (graph); may be given several times
    #[arg(long, value_name = "GLOB", value_parser = Pattern::new)]
    callers: Vec<Pattern>,
    /// Not the functions whose name matches, but what they call (graph); may be given several times
    #[arg(long, value_name = "GLOB", value_parser = Pattern::new)]
    hide: Vec<Pattern>,
    /// Not functions that are smaller, but what they call (graph): in bytes, up to the next function, or as 1K
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// Only what was entered, or happened, on these vCPUs, as 0,2
    #[arg(long, value_name = "N", value_delimiter = ',')]
    vcpu: Vec<u16>,
    /// Only threads whose name, pid or number matches, as 'kworker*' or 42 (graph, without events); may be given several times
    #[arg(long, value_name = "NAME|TID", value_parser = Pattern::new)]
    task: Vec<Pattern>,
    /// Only what had not ended before this time, in seconds as reports show them or with a unit, as 12.5ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<u64>,
    /// Only what had begun at this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<u64>,
}

/// How large a function is, in bytes.
fn size(text: &str) -> Result<u64, BadQuantity> {
    quantity::bytes(text, "B")
}

/// A time of the guest, in nanoseconds.
fn time(text: &str) -> Result<u64, BadQuantity> {
    quantity::nanoseconds(text, "s")
}

impl ExcerptOptions {
    /// What they ask for.
    ///
    /// # Errors
    /// A glob that is none; an end before the beginning.
    pub fn excerpt(self) -> Result<Excerpt, Failure> {
        if let Some((from, to)) = self.from.zip(self.to).filter(|(from, to)| from > to) {
            let (from, to) = (Duration::from_nanos(from), Duration::from_nanos(to));
            let message = format!("--from {from:?} is after --to {to:?}: nothing is in between");
            return Err(Failure::bad_input(message));
        }
        Ok(Excerpt {
            rules: self.graph.rules().map_err(Failure::bad_input)?,
            callers_of: self.callers,
            hidden: self.hide,
            min_bytes: self.min_size,
            vcpus: self.vcpu,
            threads: self.task,
            from_ns: self.from,
            until_ns: self.to,
        })
    }
}
