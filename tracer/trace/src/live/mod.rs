//! The stream of a session for who listens while it is recorded: what the store gets, with names, in the order of time.
//!
//! Each listener has a [`Tail`] of its own, of bounded length. Nobody waits for who does not take what is there: that is
//! counted, and the tail says where it is missing.

mod lines;
mod live_event;
mod lost_before;
mod occasion;
mod open;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Field, FieldValue};
use terms::function::{FunctionId, Functions};

pub use self::lines::Lines;
pub use self::live_event::{Happening, LiveEvent};
pub use self::lost_before::LostBefore;
pub use self::occasion::{BadOccasion, Occasion};
pub use self::tail::{Listener, Tail, tail};
use crate::event::{Event, EventKind, Moment, Sink};
use crate::export::call_formats::CallFormats;
use crate::export::events::Fields;
use crate::export::store::{News, Store};
use crate::host::HostStep;

/// Who listens to a session, and what there is to know about its events.
#[derive(Debug, Default)]
pub struct Live {
    listeners: Vec<Listener>,
    known: Known,
    before: LostBefore,
}

/// What there is to know about events.
#[derive(Debug, Default)]
struct Known {
    points: Vec<Arc<EventFormat>>,
    values: CallFormats,
    threads: BTreeMap<u32, String>,
}

impl Live {
    /// Of rings that nobody has read, and what they had lost by then.
    #[must_use]
    pub fn after(before: LostBefore) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// One more listens from now on.
    pub fn add(&mut self, listener: Listener) {
        self.listeners.push(listener);
    }

    /// Whether anybody listens. Who does not any more is forgotten.
    pub fn is_heard(&mut self) -> bool {
        self.listeners.retain(Listener::is_there);
        !self.listeners.is_empty()
    }

    /// Something is known from now on. Functions are told with each event.
    pub fn learn(&mut self, news: &News<'_>) {
        match news {
            News::Points(formats) => self.known.points = formats.to_vec(),
            News::Values(values) => self.known.values = values.clone(),
            News::Thread(thread, name) => _ = self.known.threads.insert(*thread, name.clone()),
            News::Functions(_) | News::Metadata(_) | News::Probes(_) => {}
        }
    }

    /// Tells everybody who is to hear of it and has room for it.
    fn tell(&mut self, event: &Event, functions: Functions<'_>, has_returns: bool) {
        let Some(kind) = self.before.news(event) else {
            return;
        };
        let known = &self.known;
        let mut told = None;
        for listener in &mut self.listeners {
            if listener.wants(event, &functions, &known.points) {
                let make = || known.told(event, kind, functions, has_returns);
                listener.hear(|| told.get_or_insert_with(make).clone());
            }
        }
    }
}

impl Live {
    /// Tells of calls that take too long and have not ended. What has ended by `now_ns` was told.
    pub fn tell_overdue(&mut self, now_ns: u64, functions: Functions<'_>) {
        let known = &self.known;
        for listener in &mut self.listeners {
            while let Some(entry) = listener.overdue(now_ns) {
                let mut told = known.told(&entry, entry.kind, functions, true);
                if let Happening::Call { function, .. } = told.what {
                    let open_ns = now_ns.saturating_sub(entry.time_ns);
                    told.what = Happening::Open { function, open_ns };
                    told.time_ns = now_ns;
                    listener.hear(|| told);
                }
            }
        }
    }
}

impl Known {
    /// What is told of an event, of this kind.
    fn told(
        &self,
        event: &Event,
        kind: EventKind,
        functions: Functions<'_>,
        has_returns: bool,
    ) -> LiveEvent {
        let what = match kind {
            EventKind::Entry(function) if !has_returns => Happening::Entry {
                function: name(functions, function),
                caller: event.caller().map(|address| caller(functions, address)),
            },
            EventKind::Entry(function) => Happening::Call {
                function: name(functions, function),
                args: self.args(event, function, functions),
            },
            EventKind::Exit {
                function,
                end,
                duration,
            } => Happening::Return {
                function: name(functions, function),
                duration_ns: duration,
                remark: end.remark().map(ToOwned::to_owned),
                retval: event.values.as_deref().unwrap_or_default().to_vec(),
            },
            EventKind::Lost(count) => Happening::Lost { count },
            EventKind::Point(point) => {
                let format = self.points.get(point.index());
                Happening::Event {
                    event: format.map_or_else(|| "?".to_owned(), |format| format.name.to_string()),
                    fields: fields(format.map_or(&[], |format| &format.fields), event),
                }
            }
            EventKind::LostPoints(count) => Happening::LostEvents { count },
            EventKind::Stall(length_ns) => Happening::Stall { length_ns },
            EventKind::Wait(length_ns) => Happening::Wait { length_ns },
            EventKind::Host(HostStep::Lost(count)) => Happening::LostEvents {
                count: count.into(),
            },
            EventKind::Host(step) => Happening::Event {
                event: step.name().unwrap_or_default().to_owned(),
                fields: step.into(),
            },
        };
        LiveEvent {
            time_ns: event.time_ns,
            vcpu: event.vcpu,
            thread: event.thread,
            task: self.threads.get(&event.thread).cloned(),
            depth: event.depth,
            what,
        }
    }

    fn args(&self, event: &Event, function: FunctionId, functions: Functions<'_>) -> Fields {
        if event.values.is_none() {
            return Fields::default();
        }
        let function = functions.get(function.index());
        let known = function.and_then(|one| self.values.fields(one.address.0, Moment::Entry));
        fields(known.unwrap_or_default(), event)
    }
}

fn name(functions: Functions<'_>, function: FunctionId) -> String {
    let function = functions.get(function.index());
    function.map_or_else(|| "?".to_owned(), |function| function.display.to_string())
}

/// What made a call that returns to this address.
fn caller(functions: Functions<'_>, address: Gva) -> String {
    // What was called last in a function that it does not come back to returns to where the next one begins.
    match functions.at(Gva(address.0.wrapping_sub(1))) {
        Some(caller) => name(functions, caller),
        None => address.to_string(),
    }
}

fn fields(known: &[Field], event: &Event) -> Fields {
    let values: &[FieldValue] = event.values.as_deref().unwrap_or_default();
    let named = known.iter().zip(values);
    let named = named.map(|(field, value)| (field.name.to_string(), value.clone()));
    Fields(named.collect())
}

/// What is kept, and who listens: a sink of both.
#[derive(Debug)]
pub struct Heard<'a> {
    /// Where events are kept, if they are.
    pub store: Option<&'a mut (dyn Store + 'static)>,
    /// Who listens.
    pub live: &'a mut Live,
    /// The functions of the guest.
    pub functions: Functions<'a>,
    /// Whether returns are traced.
    pub has_returns: bool,
}

impl Sink for Heard<'_> {
    fn event(&mut self, event: Event) {
        self.live.tell(&event, self.functions, self.has_returns);
        if let Some(store) = &mut self.store {
            store.event(event);
        }
    }
}
