//! Dynamic functions of the guest.

use crate::guest_kind;
use crate::target::TargetMemory;
use image::{DynamicFunction, StaticCall};
use terms::addr::Gva;

use super::attachment::Attachment;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::engine::plan::{Plan, PlanStep, What};
use crate::guest::Guest;
use crate::points::dynamic::target;
use status::{DynamicChange, DynamicChanged, DynamicList, DynamicStatus, microseconds};

impl Tracing {
    /// Those of the image; also the static calls of a kernel that has such, as they are now.
    ///
    /// # Errors
    /// [`TracingError::Stop`], where there are static calls.
    pub fn dynamic_functions(&self, guest: &impl Guest) -> Result<DynamicList, TracingError> {
        let dynamic = self.attachment.shared.image.dynamic.iter();
        let mut functions: Vec<_> = dynamic
            .map(|function| self.attachment.show_dynamic(function))
            .collect();
        functions.sort_by(|one, other| one.name.cmp(&other.name));
        if !self.attachment.shared.image.static_calls.is_empty() {
            let stopped = guest.stop()?;
            let calls = self.attachment.shared.image.static_calls.iter();
            functions.extend(calls.map(|call| self.attachment.show_static_call(&stopped, call)));
        }
        Ok(DynamicList { functions })
    }

    /// All of these functions lead to the targets that are named, or without one where they did when the guest was
    /// built; or none is changed.
    ///
    /// # Errors
    /// A [`TracingError`] that names the function.
    pub fn retarget<'a>(
        &mut self,
        guest: &impl Guest,
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<DynamicChanged, TracingError> {
        let plan = self.attachment.engine.plan_dynamic(changes)?;
        self.attachment.retarget(guest, plan)
    }
}

impl Attachment {
    /// Where the kernel's own mechanism leads now.
    fn show_static_call(&self, memory: &dyn TargetMemory, call: &StaticCall) -> DynamicStatus {
        let image = &self.shared.image;
        let name = |to: Option<Gva>| match to {
            Some(to) => image.name_at(to),
            None => "nothing (returns)".to_owned(),
        };
        let target = guest_kind::of(image).leads_to(image, call, memory);
        DynamicStatus {
            name: call.name.to_string(),
            kind: "static_call".to_owned(),
            jump: call.trampoline.to_string(),
            types: format!("static call with {} sites", call.sites),
            target: target.map_or_else(|error| format!("unknown: {error}"), name),
            default: name(call.default),
            targets: Vec::new(),
        }
    }

    fn show_dynamic(&self, function: &DynamicFunction) -> DynamicStatus {
        let image = &self.shared.image;
        let target = target(self.engine.sites(), function);
        let same = image
            .dynamic
            .iter()
            .filter(|other| other.signature == function.signature);
        let targets = same.flat_map(|other| &other.targets);
        let mut targets: Vec<String> = targets.map(|at| image.name_at(*at)).collect();
        targets.sort();
        targets.dedup();
        DynamicStatus {
            name: function.name.to_string(),
            kind: "dynamic".to_owned(),
            jump: function.jump.to_string(),
            types: function.types.to_string(),
            target: image.name_at(target),
            default: image.name_at(function.default),
            targets,
        }
    }

    fn retarget(&mut self, guest: &impl Guest, plan: Plan) -> Result<DynamicChanged, TracingError> {
        if plan.is_empty() {
            return Ok(DynamicChanged::default());
        }
        let image = &self.shared.image;
        let change = |step: &PlanStep| match step.what {
            What::Dynamic(jump, to) => Some(DynamicChange {
                name: image.name_at(jump),
                target: image.name_at(to),
            }),
            _ => None,
        };
        let functions = plan.steps.iter().filter_map(change).collect();
        let mut stops = Stops::default();
        self.carry_out(guest, plan, &mut stops)?;
        Ok(DynamicChanged {
            functions,
            pauses: stops.count,
            pause_us: microseconds(stops.longest),
        })
    }
}
