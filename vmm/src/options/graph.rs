//! Options that select calls of a graph, with the names that ftrace has for them.

use std::num::NonZeroU32;

use clap::Args;
use serde::{Deserialize, Serialize};
use trace::glob::GlobError;
use trace::graph::rules::{Rules, Threshold};
use tracer::tracing::options;

/// Which calls of a graph are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GraphOptions {
    /// Leave out calls nested deeper than N (graph)
    #[arg(long, value_name = "N", value_parser = depth)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<NonZeroU32>,
    /// Only functions whose name matches and what they call (graph); may be given several times
    #[arg(long, value_name = "GLOB")]
    pub graph_function: Vec<String>,
    /// Not the functions whose name matches, nor what they call (graph); may be given several times
    #[arg(long, value_name = "GLOB")]
    pub graph_notrace: Vec<String>,
    /// Leave out calls that took less, in us or with a unit, as 2ms (graph)
    #[arg(long, value_name = "US")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Threshold>,
}

impl From<options::GraphOptions> for GraphOptions {
    fn from(of: options::GraphOptions) -> Self {
        Self {
            max_depth: of.max_depth,
            graph_function: of.functions,
            graph_notrace: of.notrace,
            threshold: of.threshold,
        }
    }
}

impl GraphOptions {
    /// What they ask for.
    #[must_use]
    pub fn to_session(&self) -> options::GraphOptions {
        options::GraphOptions {
            max_depth: self.max_depth,
            functions: self.graph_function.clone(),
            notrace: self.graph_notrace.clone(),
            threshold: self.threshold,
        }
    }

    /// The same for a trace that is there.
    ///
    /// # Errors
    /// A glob that is none.
    pub fn rules(&self) -> Result<Rules, GlobError> {
        self.to_session().rules()
    }
}

fn depth(text: &str) -> Result<NonZeroU32, String> {
    let depth: u32 = text.parse().map_err(|_| "it must be a number".to_owned())?;
    NonZeroU32::new(depth).ok_or_else(|| "a depth of 0 shows nothing: 1 or more".to_owned())
}
