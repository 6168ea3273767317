//! What a compact trace says beside its records, as JSON: with names, so that it can be read by people, too.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Enumeration, Field, FieldType};
use terms::function::{Function, FunctionId};
use terms::printable::masked;

use super::bytes::Malformed;
use crate::doubt::TimeNote;
use crate::event::Moment;
use crate::export::events::VCPUS_MAX;
use crate::export::uftrace::Metadata;
use crate::glob::GlobError;
use crate::graph::Death;
use crate::graph::rules::{Rules, Threshold};
use crate::stream::StreamOptions;

/// Nothing can be read of it.
pub(super) const UNSAID: Malformed = Malformed("it does not say how it was recorded");
/// It says too much.
pub(super) const TOO_MUCH: Malformed =
    Malformed("it says more of how it was recorded than a session has");

/// How the trace was recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BeginNote {
    rings: u16,
    stack_bytes: Option<u64>,
    has_values: bool,
    #[serde(default)]
    max_depth: Option<NonZeroU32>,
    #[serde(default)]
    roots: Vec<String>,
    #[serde(default)]
    notrace: Vec<String>,
    #[serde(default)]
    threshold: Option<Threshold>,
    pub metadata: Metadata,
}

impl BeginNote {
    pub fn of(options: &StreamOptions, metadata: Metadata) -> Self {
        let texts = |patterns: &[crate::glob::Pattern]| {
            let texts = patterns.iter().map(|pattern| pattern.text().to_owned());
            texts.collect()
        };
        let rules = &options.rules;
        Self {
            rings: options.rings,
            stack_bytes: options.stack_bytes,
            has_values: options.has_values,
            max_depth: rules.max_depth,
            roots: texts(&rules.roots),
            notrace: texts(&rules.notrace),
            threshold: rules.threshold,
            metadata,
        }
    }

    pub fn options(&self) -> Result<StreamOptions, Malformed> {
        if self.rings > VCPUS_MAX {
            return Err(Malformed("it says more vCPUs than a session can have"));
        }
        let rules = Rules::new(self.max_depth, &self.roots, &self.notrace, self.threshold);
        let rules = rules.map_err(|error| match error {
            GlobError::Many { .. } => Malformed("it says more globs than a session can have"),
            GlobError::Bad { .. } | GlobError::Long { .. } => UNSAID,
        })?;
        Ok(StreamOptions {
            rings: self.rings,
            stack_bytes: self.stack_bytes,
            has_values: self.has_values,
            rules,
        })
    }
}

/// Functions that have come.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FunctionsNote {
    /// Where those end at the latest that come later.
    pub limit: Option<u64>,
    pub functions: Vec<FunctionNote>,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FunctionNote {
    at: u64,
    size: u64,
    name: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    display: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    aliases: Vec<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<Box<str>>,
}

impl From<&Function> for FunctionNote {
    fn from(function: &Function) -> Self {
        let display = &function.display;
        Self {
            at: function.address.0,
            size: function.size,
            name: (*function.name).into(),
            display: (*display != function.name).then(|| (**display).into()),
            aliases: function
                .aliases
                .iter()
                .map(|name| (**name).into())
                .collect(),
            module: function.module.as_deref().map(Into::into),
        }
    }
}

impl From<FunctionNote> for Function {
    /// Its names go into files that have one on a line, and from there to terminals. Those of an image are plain.
    fn from(note: FunctionNote) -> Self {
        let plain = |name: &str| Arc::from(&*masked(name));
        let name: Arc<str> = plain(&note.name);
        let display = note.display.as_deref().map(plain);
        Self {
            address: Gva(note.at),
            size: note.size,
            display: display.unwrap_or_else(|| Arc::clone(&name)),
            name,
            aliases: note.aliases.iter().map(|alias| plain(alias)).collect(),
            module: note.module.as_deref().map(plain),
        }
    }
}

/// What an event says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PointNote {
    name: String,
    fields: Vec<FieldNote>,
    has_status: bool,
}

impl From<&EventFormat> for PointNote {
    fn from(format: &EventFormat) -> Self {
        Self {
            name: format.name.to_string(),
            fields: format.fields.iter().map(FieldNote::from).collect(),
            has_status: format.has_status,
        }
    }
}

impl PointNote {
    pub fn format(&self) -> Option<Arc<EventFormat>> {
        let fields = self.fields.iter().map(FieldNote::field);
        Some(Arc::new(EventFormat {
            // As those of functions.
            name: (*masked(&self.name)).into(),
            fields: fields.collect::<Option<_>>()?,
            has_status: self.has_status,
        }))
    }
}

/// A field of it, or a value of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FieldNote {
    name: String,
    r#type: String,
    bytes: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Vec<(i64, String)>>,
}

impl From<&Field> for FieldNote {
    fn from(field: &Field) -> Self {
        let named = |of: &Enumeration| {
            let names = of.names.iter();
            names
                .map(|(value, name)| (*value, name.to_string()))
                .collect()
        };
        Self {
            name: field.name.to_string(),
            r#type: field.kind.name().to_owned(),
            bytes: field.kind.bytes(),
            names: field.kind.names().map(named),
        }
    }
}

impl FieldNote {
    pub fn field(&self) -> Option<Field> {
        let kind = match (&self.names, &*self.r#type) {
            (Some(names), name) => {
                let names = names.iter();
                let names = names.map(|(value, name)| (*value, name.as_str().into()));
                let names = Enumeration {
                    name: name.into(),
                    names: names.collect(),
                };
                FieldType::enumeration(u8::try_from(self.bytes).ok()?, Arc::new(names))
            }
            (None, "string") => FieldType::text(self.bytes),
            (None, "bytes") => FieldType::raw(self.bytes),
            (None, name) => FieldType::named(name)?,
        };
        Some(Field {
            name: self.name.as_str().into(),
            kind,
        })
    }
}

/// What is captured of the calls of a function.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ValuesNote {
    pub function: u32,
    is_exit: bool,
    fields: Vec<FieldNote>,
}

impl ValuesNote {
    pub fn of((function, moment, fields): (FunctionId, Moment, &[Field])) -> Self {
        Self {
            function: function.0,
            is_exit: moment == Moment::Exit,
            fields: fields.iter().map(FieldNote::from).collect(),
        }
    }

    pub fn fields(&self) -> Option<(FunctionId, Moment, Vec<Field>)> {
        let moment = match self.is_exit {
            true => Moment::Exit,
            false => Moment::Entry,
        };
        let fields = self.fields.iter().map(FieldNote::field);
        Some((
            FunctionId(self.function),
            moment,
            fields.collect::<Option<_>>()?,
        ))
    }
}

/// What was found out about threads; each goes by the lowest address of its stack.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ThreadsNote {
    pub names: Vec<(u64, String)>,
    pub deaths: Vec<DeathNote>,
}

/// One has ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct DeathNote {
    pub stack: u64,
    alive_ns: u64,
    gone_ns: u64,
}

impl DeathNote {
    pub const fn of(stack: Gva, death: Death) -> Self {
        Self {
            stack: stack.0,
            alive_ns: death.alive_ns,
            gone_ns: death.gone_ns,
        }
    }

    pub const fn death(self, thread: u32) -> Death {
        Death {
            thread,
            alive_ns: self.alive_ns,
            gone_ns: self.gone_ns,
        }
    }
}

/// The end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EndNote {
    pub doubts: Vec<TimeNote>,
    /// Whether everything could be written.
    pub is_whole: bool,
    /// Up to when something would have been recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning may be of 64 MiB: each glob would be compared with all functions, and each round look at all rings.
    #[test]
    fn more_globs_and_more_rings_than_a_session_has_are_refused() {
        let begin = |rings, roots, notrace| BeginNote {
            rings,
            roots: vec!["f".to_owned(); roots],
            notrace: vec!["g*".to_owned(); notrace],
            ..BeginNote::default()
        };
        // What a session takes its trace is read with.
        begin(VCPUS_MAX, 512, 512).options().unwrap();
        let refused = |note: BeginNote| note.options().unwrap_err().0;
        for (roots, notrace) in [(513, 0), (0, 513)] {
            assert!(refused(begin(1, roots, notrace)).contains("more globs"));
        }
        assert!(refused(begin(VCPUS_MAX + 1, 0, 0)).contains("more vCPUs"));
    }

    #[test]
    fn names_that_a_file_says_have_one_line_and_nothing_that_a_terminal_acts_on() {
        let text = r#"{"at":4096,"size":1,"name":"f\nf","display":"f\u001b]0;x\u0007","aliases":["a\r"],"module":"m\u009b"}"#;
        let note: FunctionNote = serde_json::from_str(text).unwrap();
        let function = Function::from(note);
        assert_eq!((&*function.name, &*function.display), ("f?f", "f?]0;x?"));
        assert_eq!(&*function.aliases[0], "a?");
        assert_eq!(function.module.as_deref(), Some("m?"));
        let text = r#"{"name":"a\nb","fields":[],"has_status":false}"#;
        let note: PointNote = serde_json::from_str(text).unwrap();
        assert_eq!(&*note.format().unwrap().name, "a?b");
    }
}
