//! What a user writes for a probe.

use std::sync::Arc;

use terms::function::FunctionId;

use crate::engine::probes::NewProbe;
use crate::guest_kind;
use crate::probe::{self, BadProbe};

use super::TracingError;
use super::session::Shared;

/// What a probe's text means now.
#[derive(Debug)]
pub(super) enum Read {
    /// Probes, one at each of its places.
    Here(Vec<NewProbe>),
    /// What a module will be probed for once it comes.
    Waits {
        /// What its event is called.
        name: Arc<str>,
    },
}

impl Shared {
    /// What `text` describes; `is_gone` says which functions are not there any more.
    ///
    /// # Errors
    /// [`TracingError::BadProbe`] says what is wrong with it.
    pub fn read_probe(
        &self,
        text: &str,
        tactic: Option<u8>,
        is_gone: impl Fn(FunctionId) -> bool,
    ) -> Result<Read, TracingError> {
        let read = probe::parse(text).and_then(|request| match request.module() {
            Some(module) => self.read_in_module(&request, module, is_gone),
            None => {
                let mut all = self.resolve(&request)?;
                let is_there = |one: &probe::Resolved| !one.point.function().is_some_and(&is_gone);
                // What has gone matters only where nothing else is meant.
                if all.iter().any(is_there) {
                    all.retain(is_there);
                }
                Ok(Read::Here(all.into_iter().map(new).collect()))
            }
        });
        let read = read.map(|read| match read {
            Read::Here(mut new) => {
                let waits_for_module = module_of(text).is_some();
                for one in &mut new {
                    one.tactic = tactic;
                    one.waits_for_module = waits_for_module;
                }
                Read::Here(new)
            }
            waits => waits,
        });
        read.map_err(|why| TracingError::BadProbe {
            probe: text.to_owned(),
            why,
        })
    }

    fn resolve(&self, request: &probe::Request) -> Result<Vec<probe::Resolved>, BadProbe> {
        probe::resolve(&self.image, self.debug.as_deref(), request)
    }

    fn read_in_module(
        &self,
        request: &probe::Request,
        module: &str,
        is_gone: impl Fn(FunctionId) -> bool,
    ) -> Result<Read, BadProbe> {
        if !guest_kind::has_modules(&self.image) {
            return Err(BadProbe::NoModules {
                module: module.to_owned(),
            });
        }
        let functions = (0..).map(FunctionId).zip(&self.image.functions);
        let mut of_module = functions
            .filter(|(id, function)| function.module.as_deref() == Some(module) && !is_gone(*id));
        if of_module.next().is_none() {
            return Ok(Read::Waits {
                name: request.name().into(),
            });
        }
        let mut all = self.resolve(request)?;
        all.retain(|one| !one.point.function().is_some_and(&is_gone));
        match all.len() {
            1 => Ok(Read::Here(all.into_iter().map(new).collect())),
            count => Err(BadProbe::Ambiguous {
                module: module.to_owned(),
                name: request.name().to_owned(),
                count,
            }),
        }
    }
}

fn new(resolved: probe::Resolved) -> NewProbe {
    NewProbe {
        name: resolved.name,
        point: resolved.point,
        capture: resolved.capture,
        tactic: None,
        waits_for_module: false,
        again: None,
    }
}

/// The module that a probe's text names.
pub(super) fn module_of(text: &str) -> Option<Arc<str>> {
    let request = probe::parse(text).ok()?;
    request.module().map(Into::into)
}
